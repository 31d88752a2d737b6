/*
 * slots.c
 *	  What a worker of outbox has in hand, and the threads that run handlers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "worker.h"

#define TRANSACTION_TRIES 3

static const char *const ack_one_sql =
	"SELECT outbox.ack_one($1::uuid, $2::bigint, $3::int, strict => true)";
static const char *const nack_sql =
	"SELECT outbox.release($1::uuid, $6::bigint[]),"
	" outbox.nack_one($1::uuid, $2::bigint, $3::text, $4::interval, $5::int)";
static const char *const fail_sql =
	"SELECT outbox.fail_one($1::uuid, $2::bigint, $3::text, $4::int, $5::int)";

void
outbox_push(list *l, message *m)
{
	if (l->count == l->size)
		l->at = outbox_allocate(l->at, (l->size = 2 * l->size + 16) * sizeof(message *));
	l->at[l->count++] = m;
}

message *
outbox_take(list *l, int i)
{
	message    *m = l->at[i];

	memmove(l->at + i, l->at + i + 1, (--l->count - i) * sizeof(message *));
	return m;
}

void
outbox_forget(message *m)
{
	PQclear(m->row);
	free(m);
}


/* '{1,2}' of ids or attempts.  The caller frees it. */
char *
outbox_array(message *const *messages, int count, bool attempts)
{
	char	   *s = outbox_allocate(NULL, 24 * count + 3),
			   *end = s;

	end += sprintf(end, "{");
	for (int i = 0; i < count; i++)
		end += sprintf(end, "%s%s", i ? "," : "", attempts ? messages[i]->public.attempts : messages[i]->public.id);
	sprintf(end, "}");
	return s;
}

int
outbox_running(outbox_worker *w)
{
	int			count = 0;

	for (int i = 0; i < w->options.concurrency; i++)
		count += w->slots[i].message != NULL;
	return count;
}

static void
tell(outbox_worker *w, const char *sql, int count, const char *const *values)
{
	PQclear(outbox_call(w, NULL, sql, count, values));
}

/* The first message that is not beside another of its stream, or -1 */
static int
startable(outbox_worker *w)
{
	for (int i = 0; i < w->waiting.count; i++)
	{
		const char *stream = w->waiting.at[i]->public.stream_id;
		bool		busy = false;

		for (int n = 0; stream && n < w->options.concurrency; n++)
		{
			message    *m = w->slots[n].message;

			busy |= m && m->public.stream_id && strcmp(m->public.stream_id, stream) == 0;
		}
		if (!busy)
			return i;
	}
	return -1;
}

/* How many messages to claim now; 0 if no slot is free for one */
int
outbox_how_many(outbox_worker *w)
{
	int			run = outbox_running(w),
				free_slots = w->options.concurrency - run,
				held = w->waiting.count + run,
				count;
	double		took = outbox_now() - w->claimed_at;

	if (free_slots == 0 || startable(w) >= 0)
		return 0;
	if (!w->full || took > 0.5)
		w->target = w->options.concurrency;
	else if (took < 0.1)
		w->target = 2 * w->target < w->options.max_batch ? 2 * w->target : w->options.max_batch;
	count = w->target - held > free_slots ? w->target - held : free_slots;
	return count < w->options.max_batch - held ? count : w->options.max_batch - held;
}

/* Take out what is behind a message in its stream; their ids, as an array */
static char *
drop_stream(outbox_worker *w, message *of)
{
	list		dropped = {0};
	char	   *ids;

	for (int i = w->waiting.count - 1; i >= 0 && of->public.stream_id; i--)
	{
		const char *stream = w->waiting.at[i]->public.stream_id;

		if (stream && strcmp(stream, of->public.stream_id) == 0)
			outbox_push(&dropped, outbox_take(&w->waiting, i));
	}
	ids = outbox_array(dropped.at, dropped.count, false);
	while (dropped.count)
		outbox_forget(outbox_take(&dropped, 0));
	free(dropped.at);
	return ids;
}

const handler *
outbox_handler_of(outbox_worker *w, const char *topic)
{
	const handler *others = NULL;

	for (const handler *h = w->handlers; h; h = h->next)
	{
		if (strcmp(h->topic, topic) == 0)
			return h;
		if (strcmp(h->topic, "*") == 0)
			others = h;
	}
	return others;
}

/*
 * Decide what becomes of a message, unless that is decided.  What is not
 * acknowledged is told to the server at once.
 */
void
outbox_judge(outbox_worker *w, message *m, outbox_outcome outcome, const char *error)
{
	const char *values[6] = {w->owner, m->public.id, error, m->extra[0] ? m->extra : NULL, m->public.attempts, NULL};
	bool		decided;
	char	   *behind;

	pthread_mutex_lock(&w->lock);
	decided = m->outcome != 0;
	if (!decided)
		m->outcome = outcome;
	pthread_mutex_unlock(&w->lock);
	if (decided)
		return;
	if (outcome == OUTBOX_ACK)
	{
		if (w->acks.count == 0)
			w->acks_since = outbox_now();
		outbox_push(&w->acks, m);
	}
	else if (outcome == OUTBOX_FAIL)
		tell(w, fail_sql, 5, values);
	else
	{
		values[5] = behind = drop_stream(w, m);
		if (outcome == OUTBOX_RETRY)
			tell(w, nack_sql, 6, values);
		free(behind);
	}
}

void
outbox_cancel(outbox_worker *w, message *m)
{
	pthread_mutex_lock(&w->lock);
	m->cancelled = true;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
}


/* Run the handler, and acknowledge in its transaction if it has one. */
static outbox_outcome
invoke(slot *s, message *m, const handler *h)
{
	outbox_worker *w = s->worker;
	PGconn	   *conn = h->transaction ? s->conn : NULL;
	const char *values[] = {w->owner, m->public.id, m->public.attempts};
	outbox_outcome outcome;
	PGresult   *result;

	if (h->transaction && (conn == NULL || PQstatus(conn) != CONNECTION_OK))
	{
		PQfinish(conn);
		conn = s->conn = PQconnectdb(w->conninfo);
	}
	if (conn)
	{
		result = PQexec(conn, "BEGIN");
		if (PQresultStatus(result) != PGRES_COMMAND_OK)
			outbox_failed(&m->public, result);
		PQclear(result);
		if (PQtransactionStatus(conn) != PQTRANS_INTRANS)
			return OUTBOX_RETRY;
	}
	outcome = w->options.wrap ? w->options.wrap(&m->public, conn, h->call, h->data, w->options.data) :
		h->call(&m->public, conn, h->data);
	if (conn == NULL)
		return outcome;
	if (outcome == OUTBOX_ACK)
	{
		/* from here on, the transaction decides */
		pthread_mutex_lock(&w->lock);
		outcome = m->outcome ? OUTBOX_LOST : OUTBOX_ACK;
		if (outcome == OUTBOX_ACK)
			m->outcome = OUTBOX_ACK;
		pthread_mutex_unlock(&w->lock);
	}
	if (outcome == OUTBOX_ACK)
	{
		result = PQexecParams(conn, ack_one_sql, 3, NULL, values, NULL, NULL, 0);
		if (PQresultStatus(result) == PGRES_TUPLES_OK)
		{
			PQclear(result);
			result = PQexec(conn, "COMMIT");
			if (PQresultStatus(result) == PGRES_COMMAND_OK && strcmp(PQcmdStatus(result), "COMMIT") == 0)
			{
				PQclear(result);
				return OUTBOX_ACK;
			}
		}
		outcome = outbox_failed(&m->public, result);
		PQclear(result);
		if (strcmp(m->state, "55000") == 0)
			outcome = OUTBOX_LOST;
		pthread_mutex_lock(&w->lock);
		m->outcome = 0;
		pthread_mutex_unlock(&w->lock);
	}
	PQclear(PQexec(conn, "ROLLBACK"));
	return outcome;
}

void *
outbox_run_slot(void *argument)
{
	slot	   *s = argument;
	outbox_worker *w = s->worker;

	pthread_mutex_lock(&w->lock);
	for (;;)
	{
		message    *m;
		outbox_outcome result;
		const handler *h;

		while ((s->message == NULL || s->result) && !w->ending)
			pthread_cond_wait(&w->changed, &w->lock);
		if (s->message == NULL || s->result)
			break;
		m = s->message;
		pthread_mutex_unlock(&w->lock);
		h = outbox_handler_of(w, m->public.topic);
		for (int left = TRANSACTION_TRIES - 1;; left--)
		{
			m->error[0] = m->state[0] = m->extra[0] = '\0';
			result = invoke(s, m, h);
			if (left == 0 || result != OUTBOX_RETRY || (strcmp(m->state, "40001") && strcmp(m->state, "40P01")))
				break;
		}
		pthread_mutex_lock(&w->lock);
		s->result = result;
		outbox_wake(w);
	}
	pthread_mutex_unlock(&w->lock);
	PQfinish(s->conn);
	return NULL;
}

/* Give messages to free slots. */
void
outbox_start(outbox_worker *w)
{
	int			next;

	pthread_mutex_lock(&w->lock);
	for (int i = 0; i < w->options.concurrency && !w->stops; i++)
	{
		slot	   *s = &w->slots[i];

		if (s->message || (next = startable(w)) < 0)
			continue;
		s->message = outbox_take(&w->waiting, next);
		s->message->began = outbox_now();
		s->result = 0;
		pthread_cond_broadcast(&w->changed);
	}
	pthread_mutex_unlock(&w->lock);
}

/* See which handlers have ended, or have taken too long. */
void
outbox_collect(outbox_worker *w)
{
	static const char *const names[] = {"", "ack", "retry", "fail", "lost"};

	for (int i = 0; i < w->options.concurrency; i++)
	{
		slot	   *s = &w->slots[i];
		message    *m = s->message;
		outbox_outcome result;
		char		described[520];
		double		timeout;

		if (m == NULL)
			continue;
		pthread_mutex_lock(&w->lock);
		result = s->result;
		pthread_mutex_unlock(&w->lock);
		timeout = outbox_handler_of(w, m->public.topic)->timeout;
		if (result == 0)
		{
			if (timeout > 0 && outbox_now() > m->began + timeout && !m->cancelled)
			{
				outbox_judge(w, m, OUTBOX_RETRY, "timeout");
				outbox_cancel(w, m);
			}
			continue;
		}
		snprintf(described, sizeof(described), "error %s", m->state);
		outbox_judge(w, m, result, m->error[0] ? m->error : m->state[0] ? described : "error");
		s->message = NULL;
		w->handled++;
		outbox_emit(w, (outbox_event) {.name = "finished", .message = &m->public, .outcome = names[m->outcome],
			.seconds = outbox_now() - m->began});
		if (w->acks.count == 0 || w->acks.at[w->acks.count - 1] != m)
			outbox_forget(m);
	}
}

/* What handlers call */

static outbox_outcome
note(outbox_message *public, const char *text, const char *extra, outbox_outcome outcome)
{
	message    *m = (message *) public;

	snprintf(m->error, sizeof(m->error), "%s", text ? text : "");
	snprintf(m->extra, sizeof(m->extra), "%s", extra);
	return outcome;
}

outbox_outcome
outbox_permanent(outbox_message *public, const char *text, int reason)
{
	char		extra[40];

	snprintf(extra, sizeof(extra), "%d", reason);
	return note(public, text, extra, OUTBOX_FAIL);
}

outbox_outcome
outbox_retry(outbox_message *public, const char *text, double after)
{
	char		extra[40];

	snprintf(extra, sizeof(extra), "%f s", after);
	return note(public, text, extra, OUTBOX_RETRY);
}

outbox_outcome
outbox_failed(outbox_message *public, const PGresult *result)
{
	message    *m = (message *) public;
	const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;

	snprintf(m->state, sizeof(m->state), "%s", state ? state : "08006");
	return OUTBOX_RETRY;
}

bool
outbox_cancelled(outbox_message *public)
{
	return outbox_sleep(public, 0);
}

bool
outbox_sleep(outbox_message *public, double seconds)
{
	message    *m = (message *) public;
	outbox_worker *w = m->worker;
	struct timespec until;
	bool		cancelled;
	int			error = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	seconds += until.tv_nsec / 1e9;
	until.tv_sec += (time_t) seconds;
	until.tv_nsec = (long) ((seconds - (time_t) seconds) * 1e9);
	pthread_mutex_lock(&w->lock);
	while (!m->cancelled && error == 0)
		error = pthread_cond_timedwait(&w->changed, &w->lock, &until);
	cancelled = m->cancelled;
	pthread_mutex_unlock(&w->lock);
	return cancelled;
}
