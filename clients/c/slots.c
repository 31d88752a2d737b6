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

/* Memory with zeros, or more memory.  Without any, the process ends. */
void *
outbox_allocate(void *old, size_t size)
{
	void	   *new = realloc(old, size);

	if (new == NULL)
		abort();
	if (old == NULL)
		memset(new, 0, size);
	return new;
}

void
outbox_push(list *l, void *item)
{
	if (l->count == l->size)
		l->at = outbox_allocate(l->at, (l->size = 2 * l->size + 16) * sizeof(void *));
	l->at[l->count++] = item;
}

void *
outbox_take(list *l, int i)
{
	void	   *item = l->at[i];

	memmove(l->at + i, l->at + i + 1, (--l->count - i) * sizeof(void *));
	return item;
}

void
outbox_free_list(list *l, void (*free_item) (void *))
{
	for (int i = 0; free_item && i < l->count; i++)
		free_item(l->at[i]);
	free(l->at);
	*l = (list) {0};
}

void
outbox_forget(void *item)
{
	message    *m = item;

	PQclear(m->row);
	free(m);
}

/* The stream of a message, or its id if it has none */
const char *
outbox_key(const outbox_message *m)
{
	return m->stream_id ? m->stream_id : m->id;
}

int
outbox_running(outbox_worker *w)
{
	int			count = 0;

	for (int i = 0; i < w->options.concurrency; i++)
		count += w->slots[i].message != NULL;
	return count;
}

static outbox_outcome
outcome_of(outbox_worker *w, message *m)
{
	outbox_outcome outcome;

	pthread_mutex_lock(&w->lock);
	outcome = m->outcome;
	pthread_mutex_unlock(&w->lock);
	return outcome;
}

/* What must be renewed */
void
outbox_leased(outbox_worker *w, list *leased)
{
	for (int i = 0; i < w->waiting.count; i++)
		outbox_push(leased, w->waiting.at[i]);
	for (int i = 0; i < w->options.concurrency; i++)
		if (w->slots[i].message && !outcome_of(w, w->slots[i].message))
			outbox_push(leased, w->slots[i].message);
}

static bool
same_stream(const message *a, const message *b)
{
	return a->public.stream_id && b->public.stream_id && strcmp(a->public.stream_id, b->public.stream_id) == 0;
}

/* The first message that is not beside another of its stream, or -1 */
static int
startable(outbox_worker *w)
{
	for (int i = 0; i < w->waiting.count; i++)
	{
		bool		busy = outbox_now() > ((message *) w->waiting.at[i])->until;

		for (int n = 0; n < w->options.concurrency; n++)
			busy |= w->slots[n].message && same_stream(w->slots[n].message, w->waiting.at[i]);
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

/* Decide what becomes of a message; false if that is decided. */
static bool
decide(outbox_worker *w, message *m, outbox_outcome outcome)
{
	bool		undecided;

	pthread_mutex_lock(&w->lock);
	if ((undecided = m->outcome == 0))
		m->outcome = outcome;
	pthread_mutex_unlock(&w->lock);
	return undecided;
}

/* The handler has ended, or must: what becomes of the message.  False if that is decided. */
bool
outbox_judge(outbox_worker *w, message *m, outbox_outcome outcome, const char *error, const char *extra)
{
	if (!decide(w, m, outcome))
		return false;
	if (outcome == OUTBOX_ACK)
	{
		if (w->acks.count == 0)
			w->acks_since = outbox_now();
		outbox_push(&w->acks, m);
		return true;
	}
	if (outcome != OUTBOX_LOST)
		outbox_tell_judgement(w, m, outcome, error, extra);
	if (outcome == OUTBOX_RETRY && w->draining)
		outbox_push(&w->retried, strdup(outbox_key(&m->public)));
	/* the server takes back what is behind it in its stream */
	for (int i = w->waiting.count - 1; i >= 0 && outcome != OUTBOX_FAIL; i--)
		if (w->waiting.at[i] != m && same_stream(w->waiting.at[i], m))
			outbox_push(&w->dropped, outbox_take(&w->waiting, i));
	return true;
}

void
outbox_cancel(outbox_worker *w, message *m)
{
	pthread_mutex_lock(&w->lock);
	m->cancelled = true;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
}

/* Another worker has the message, or soon will have. */
void
outbox_lose(outbox_worker *w, message *m)
{
	if (!outbox_judge(w, m, OUTBOX_LOST, NULL, NULL))
		return;
	outbox_cancel(w, m);
	outbox_emit(w, (outbox_event) {.name = "lost", .message = &m->public});
	for (int i = w->waiting.count - 1; i >= 0; i--)
		if (w->waiting.at[i] == m)
			outbox_push(&w->dropped, outbox_take(&w->waiting, i));
}

/* Begin a transaction.  A connection that was idle may have broken since. */
static bool
begin(slot *s)
{
	for (;;)
	{
		bool		fresh = s->conn == NULL;
		PGresult   *result;
		bool		done;

		if (fresh)
			s->conn = PQconnectdb(s->worker->conninfo);
		result = PQexec(s->conn, "BEGIN");
		done = PQresultStatus(result) == PGRES_COMMAND_OK && PQtransactionStatus(s->conn) == PQTRANS_INTRANS;
		if (!done && fresh)
			outbox_failed(&s->message->public, result);
		PQclear(result);
		if (done)
			return true;
		PQfinish(s->conn);
		s->conn = NULL;
		if (fresh)
			return false;
	}
}

/* Acknowledge in the handler's transaction, and commit it. */
static outbox_outcome
commit(slot *s, message *m)
{
	const char *values[] = {m->public.owner_token, m->public.id, m->public.attempts};
	PGresult   *result = PQexecParams(s->conn, ack_one_sql, 3, NULL, values, NULL, NULL, 0);
	bool		done = false;

	if (PQresultStatus(result) == PGRES_TUPLES_OK)
	{
		PQclear(result);
		result = PQexec(s->conn, "COMMIT");
		/* what was aborted, COMMIT rolls back without an error */
		done = PQresultStatus(result) == PGRES_COMMAND_OK && strcmp(PQcmdStatus(result), "COMMIT") == 0;
	}
	if (!done)
		outbox_failed(&m->public, result);
	PQclear(result);
	return done ? OUTBOX_ACK : strcmp(m->state, "55000") == 0 ? OUTBOX_LOST : OUTBOX_RETRY;
}

/* Run the handler, and acknowledge in its transaction if it has one. */
static outbox_outcome
invoke(slot *s, message *m, const handler *h)
{
	outbox_worker *w = s->worker;
	outbox_outcome outcome;
	PGconn	   *conn;

	if (h->transaction && !begin(s))
		return OUTBOX_RETRY;
	conn = h->transaction ? s->conn : NULL;
	outcome = w->options.wrap ? w->options.wrap(&m->public, conn, h->call, h->data, w->options.data) :
		h->call(&m->public, conn, h->data);
	if (conn == NULL)
		return outcome;
	/* from here on, the transaction decides */
	if (outcome == OUTBOX_ACK && !decide(w, m, OUTBOX_ACK))
		outcome = OUTBOX_LOST;
	else if (outcome == OUTBOX_ACK)
	{
		if ((outcome = commit(s, m)) == OUTBOX_ACK)
			return OUTBOX_ACK;
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
			if (!h->transaction || left == 0 || result != OUTBOX_RETRY ||
				(strcmp(m->state, "40001") && strcmp(m->state, "40P01")))
				break;
		}
		pthread_mutex_lock(&w->lock);
		s->result = result >= OUTBOX_ACK && result <= OUTBOX_LOST ? result : OUTBOX_RETRY;
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

	for (int i = 0; i < w->options.concurrency && !w->stops; i++)
	{
		slot	   *s = &w->slots[i];

		if (s->message || (next = startable(w)) < 0)
			continue;
		pthread_mutex_lock(&w->lock);
		s->message = outbox_take(&w->waiting, next);
		s->message->began = outbox_now();
		s->result = 0;
		pthread_cond_broadcast(&w->changed);
		pthread_mutex_unlock(&w->lock);
	}
}

/* What the handler of a slot has returned; then the slot is free. */
static outbox_outcome
result_of(slot *s)
{
	outbox_outcome result;

	pthread_mutex_lock(&s->worker->lock);
	if ((result = s->result) != 0)
		s->message = NULL;
	pthread_mutex_unlock(&s->worker->lock);
	return result;
}

/* See which handlers have ended, or have taken too long. */
void
outbox_collect(outbox_worker *w)
{
	static const char *const names[] = {"", "ack", "retry", "fail", "lost"};

	for (int i = 0; i < w->options.concurrency; i++)
	{
		message    *m = w->slots[i].message;
		outbox_outcome result;
		char		described[20];
		double		timeout;
		bool		judged;

		if (m == NULL)
			continue;
		timeout = outbox_handler_of(w, m->public.topic)->timeout;
		if ((result = result_of(&w->slots[i])) == 0)
		{
			if (timeout > 0 && outbox_now() > m->began + timeout && !m->cancelled &&
				outbox_judge(w, m, OUTBOX_RETRY, "timeout", NULL))
				outbox_cancel(w, m);
			continue;
		}
		snprintf(described, sizeof(described), m->state[0] ? "error %s" : "error", m->state);
		judged = outbox_judge(w, m, result, m->error[0] ? m->error : described, m->extra[0] ? m->extra : NULL);
		w->handled++;
		outbox_emit(w, (outbox_event) {.name = "finished", .message = &m->public, .outcome = names[m->outcome],
			.seconds = outbox_now() - m->began});
		if (!judged || result != OUTBOX_ACK)
			outbox_forget(m);
	}
}

/* What handlers call */

/* How many bytes the first character has; 0 if this is not UTF-8 */
static int
character_length(const unsigned char *s)
{
	int			length = s[0] < 0x80 ? 1 : s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : s[0] < 0xF5 ? 4 : 0;

	for (int i = 1; i < length; i++)
		if ((s[i] & 0xC0) != 0x80)
			return 0;
	return length;
}

static outbox_outcome
note(outbox_message *public, const char *text, const char *extra, outbox_outcome outcome)
{
	message    *m = (message *) public;
	char	   *end = m->error;

	for (int count = 0; text && *text && count < TEXT_CHARACTERS; count++)
	{
		int			length = character_length((const unsigned char *) text);

		*end = '?';
		memcpy(end, text, length);
		text += length ? length : 1;
		end += length ? length : 1;
	}
	*end = '\0';
	snprintf(m->extra, sizeof(m->extra), "%s", extra);
	return outcome;
}

outbox_outcome
outbox_permanent(outbox_message *public, const char *text, int reason)
{
	char		extra[40] = "";

	if (reason)
		snprintf(extra, sizeof(extra), "%d", reason);
	return note(public, text, extra, OUTBOX_FAIL);
}

outbox_outcome
outbox_retry(outbox_message *public, const char *text, double after)
{
	char		extra[40] = "";

	if (after >= 0)
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
	double		end = outbox_now() + seconds;
	struct timespec until = {(time_t) end, (long) ((end - (time_t) end) * 1e9)};
	bool		cancelled;
	int			error = 0;

	pthread_mutex_lock(&w->lock);
	while (!m->cancelled && error == 0)
		error = pthread_cond_timedwait(&w->changed, &w->lock, &until);
	cancelled = m->cancelled;
	pthread_mutex_unlock(&w->lock);
	return cancelled;
}
