/*
 * worker.c
 *	  The loop of outbox's workers: claim, settle, renew, stop.  See worker.h.
 *
 * A pipe wakes it, also from signal handlers.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "worker.h"

#define ACK_SECONDS 0.005
#define ACK_IDS 100
#define COLUMNS 19
#define FOREVER 1e18

static const char *const claim_sql =
	"SELECT id, message_id, namespace, topic, payload, headers, correlation_id, tenant_id,"
	" dedupe_key, stream_id, attempts, retry_count, created_at, due_time, locked_until,"
	" subscription, published_id, priority, headers ->> 'traceparent'"
	" FROM outbox.claim($1::uuid, $2::int, $3::int, $4::text, $5::text[], $6::uuid, $7::int,"
	" $8::int, $9::text)";
static const char *const ack_sql = "SELECT outbox.ack($1::uuid, $2::bigint[], $3::int[])";
static const char *const renew_sql =
	"SELECT outbox.renew($1::uuid, $2::bigint[], $3::int, $4::int[])";
static const char *const lost_sql =
	"SELECT id, attempt FROM unnest($2::bigint[], $4::int[]) AS held(id, attempt)"
	" WHERE outbox.renew_one($1::uuid, id, $3::int, attempt) = 0";
static const char *const release_sql = "SELECT outbox.release($1::uuid, $2::bigint[])";
static const char *const release_all_sql = "SELECT outbox.release($1::uuid)";

static outbox_worker *volatile signalled;	/* the worker that SIGTERM stops */

double
outbox_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

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
outbox_emit(outbox_worker *w, outbox_event event)
{
	if (w->options.hook)
		w->options.hook(&event, w->options.data);
}

void
outbox_wake(outbox_worker *w)
{
	int			saved = errno;

	if (write(w->pipe[1], "x", 1) < 0)
		errno = saved;			/* it is full: the main thread will wake up */
}

static bool
repeatable(const PGresult *result, PGconn *conn)
{
	const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;

	if (state == NULL || PQstatus(conn) != CONNECTION_OK)
		return true;
	return strncmp(state, "08", 2) == 0 || strstr("40001 40P01 57P01 57P02 57P03", state) != NULL;
}

static void
pause_for(double seconds)
{
	struct timespec t = {(time_t) seconds, (long) ((seconds - (time_t) seconds) * 1e9)};

	nanosleep(&t, NULL);
}

static double
jittered(double delay)
{
	return delay * (0.5 + 0.5 * (random() % 1000) / 1000);
}

/* Run a statement of settling until it is answered; null if it cannot be. */
PGresult *
outbox_call(outbox_worker *w, bool *repeated, const char *sql, int count, const char *const *values)
{
	for (double delay = 0.1;; delay = delay < 2.5 ? 2 * delay : 5)
	{
		PGresult   *result = NULL;

		if (PQstatus(w->settler) != CONNECTION_OK)
			PQreset(w->settler);
		if (PQstatus(w->settler) == CONNECTION_OK)
			result = PQexecParams(w->settler, sql, count, NULL, values, NULL, NULL, 0);
		if (PQresultStatus(result) == PGRES_TUPLES_OK)
			return result;
		if (!repeatable(result, w->settler) || outbox_now() > w->deadline + 2)
		{
			if (!w->error[0])
				snprintf(w->error, sizeof(w->error), "%s", PQerrorMessage(w->settler));
			PQclear(result);
			outbox_stop(w);
			return NULL;
		}
		PQclear(result);
		outbox_emit(w, (outbox_event) {.name = "reconnect", .error = "connection"});
		if (repeated)
			*repeated = true;
		pause_for(jittered(delay));
	}
}


/* Claim */

static void
claim_failed(outbox_worker *w, const PGresult *result)
{
	const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;

	w->asked = 0;
	if (w->stops || (state && strcmp(state, "57014") == 0))
		return;
	if (!repeatable(result, w->claimer))
	{
		snprintf(w->error, sizeof(w->error), "%s", PQerrorMessage(w->claimer));
		outbox_stop(w);
		return;
	}
	outbox_emit(w, (outbox_event) {.name = "reconnect", .error = state ? state : "connection"});
	w->claim_after = outbox_now() + jittered(w->claim_delay);
	w->claim_delay = w->claim_delay < 2.5 ? 2 * w->claim_delay : 5;
}

static void
begin_claim(outbox_worker *w)
{
	const outbox_worker_options *o = &w->options;
	char		lease[12],
				asked[12],
				most[12],
				wait[12];
	const char *values[] = {w->owner, lease, asked, o->namespace, w->topics, o->tenant_id,
	o->max_attempts ? most : NULL, wait, o->subscription};

	if (w->asked || w->stops || outbox_now() < w->claim_after || (w->asked = outbox_how_many(w)) <= 0)
		return;
	snprintf(lease, sizeof(lease), "%d", o->lease_seconds);
	snprintf(asked, sizeof(asked), "%d", w->asked);
	snprintf(most, sizeof(most), "%d", o->max_attempts);
	snprintf(wait, sizeof(wait), "%d", w->draining ? 0 : o->wait_ms);
	w->idle = outbox_running(w) == 0 && w->acks.count == 0;
	if (PQstatus(w->claimer) != CONNECTION_OK)
		PQreset(w->claimer);
	if (!PQsendQueryParams(w->claimer, claim_sql, 9, NULL, values, NULL, NULL, 0))
		claim_failed(w, NULL);
}

static const char *
column(const PGresult *rows, int row, int number)
{
	return PQgetisnull(rows, row, number) ? NULL : PQgetvalue(rows, row, number);
}

/* A message with a copy of its row, since each is freed by itself. */
static message *
new_message(outbox_worker *w, const PGresult *rows, int row)
{
	message    *m = outbox_allocate(NULL, sizeof(message));
	const char **columns = (const char **) &m->public;

	m->worker = w;
	m->row = PQcopyResult(rows, PG_COPYRES_ATTRS);
	for (int i = 0; i < COLUMNS; i++)
	{
		if (!PQsetvalue(m->row, 0, i, (char *) column(rows, row, i), PQgetisnull(rows, row, i) ? -1 : PQgetlength(rows, row, i)))
			abort();
		columns[i] = column(m->row, 0, i);
	}
	return m;
}

/* The claim's connection has something to read. */
static void
end_claim(outbox_worker *w)
{
	PGresult   *result;

	if (!PQconsumeInput(w->claimer))
	{
		claim_failed(w, NULL);
		return;
	}
	while (!PQisBusy(w->claimer) && (result = PQgetResult(w->claimer)) != NULL)
	{
		int			count = PQntuples(result);

		if (PQresultStatus(result) != PGRES_TUPLES_OK)
			claim_failed(w, result);
		else
		{
			for (int i = 0; i < count; i++)
				outbox_push(&w->waiting, new_message(w, result, i));
			w->full = count == w->asked;
			w->claimed_at = outbox_now();
			w->claim_delay = 0.1;
			outbox_emit(w, (outbox_event) {.name = "claimed", .count = count, .asked = w->asked});
			w->asked = 0;
			if (w->draining && count == 0)
			{
				if (w->idle)
					outbox_stop(w);
				w->claim_after = outbox_now() + 0.01;
			}
		}
		PQclear(result);
	}
}

/* Settle and renew */

static void
send_acks(outbox_worker *w, bool all)
{
	while (w->acks.count && (all || w->acks.count >= ACK_IDS || outbox_now() > w->acks_since + ACK_SECONDS))
	{
		int			count = w->acks.count < ACK_IDS ? w->acks.count : ACK_IDS;
		char	   *ids = outbox_array(w->acks.at, count, false),
				   *attempts = outbox_array(w->acks.at, count, true);
		const char *values[] = {w->owner, ids, attempts};
		bool		repeated = false;
		PGresult   *result = outbox_call(w, &repeated, ack_sql, 3, values);

		if (result)
			outbox_emit(w, (outbox_event) {.name = "settled", .count = count,
				.lost = repeated ? 0 : count - atoi(PQgetvalue(result, 0, 0))});
		PQclear(result);
		free(ids);
		free(attempts);
		for (int i = 0; i < count; i++)
			outbox_forget(outbox_take(&w->acks, 0));
	}
}

static void
lose(outbox_worker *w, const char *id, const char *attempt)
{
	for (int i = w->waiting.count - 1; i >= 0; i--)
	{
		message    *m = w->waiting.at[i];

		if (strcmp(m->public.id, id) == 0 && strcmp(m->public.attempts, attempt) == 0)
		{
			outbox_take(&w->waiting, i);
			outbox_emit(w, (outbox_event) {.name = "lost", .message = &m->public});
			outbox_forget(m);
			return;
		}
	}
	for (int i = 0; i < w->options.concurrency; i++)
	{
		message    *m = w->slots[i].message;

		if (m && !m->outcome && strcmp(m->public.id, id) == 0 && strcmp(m->public.attempts, attempt) == 0)
		{
			outbox_judge(w, m, OUTBOX_LOST, NULL);
			outbox_cancel(w, m);
			outbox_emit(w, (outbox_event) {.name = "lost", .message = &m->public});
		}
	}
}

static void
renew(outbox_worker *w)
{
	list		held = {0};
	char		lease[12],
			   *ids,
			   *attempts;
	PGresult   *result;

	w->renew_at = outbox_now() + w->options.lease_seconds / 3.0;
	for (int i = 0; i < w->waiting.count; i++)
		outbox_push(&held, w->waiting.at[i]);
	pthread_mutex_lock(&w->lock);
	for (int i = 0; i < w->options.concurrency; i++)
		if (w->slots[i].message && !w->slots[i].message->outcome)
			outbox_push(&held, w->slots[i].message);
	pthread_mutex_unlock(&w->lock);
	if (held.count == 0)
		return;
	ids = outbox_array(held.at, held.count, false);
	attempts = outbox_array(held.at, held.count, true);
	snprintf(lease, sizeof(lease), "%d", w->options.lease_seconds);
	{
		const char *values[] = {w->owner, ids, lease, attempts};

		result = outbox_call(w, NULL, renew_sql, 4, values);
		if (result && atoi(PQgetvalue(result, 0, 0)) < held.count)
		{
			PQclear(result);
			result = outbox_call(w, NULL, lost_sql, 4, values);
			for (int i = 0; result && i < PQntuples(result); i++)
				lose(w, PQgetvalue(result, i, 0), PQgetvalue(result, i, 1));
		}
	}
	PQclear(result);
	free(ids);
	free(attempts);
	free(held.at);
}

/* The loop */

/* End the waiting claim, release what no handler has begun, and cancel what takes too long. */
static void
shut_down(outbox_worker *w)
{
	char	   *ids = outbox_array(w->waiting.at, w->waiting.count, false);
	const char *values[] = {w->owner, ids};
	char		error[256];

	if (w->deadline == FOREVER)
		w->deadline = outbox_now() + w->options.shutdown_seconds;
	if (w->stops > 1 && w->deadline > outbox_now())
		w->deadline = outbox_now();
	if (w->waiting.count)
		PQclear(outbox_call(w, NULL, release_sql, 2, values));
	while (w->waiting.count)
		outbox_forget(outbox_take(&w->waiting, 0));
	free(ids);
	if (w->asked)
	{
		PGcancel   *request = PQgetCancel(w->claimer);

		if (request == NULL || !PQcancel(request, error, sizeof(error)))
			w->asked = 0;
		PQfreeCancel(request);
	}
	if (outbox_now() < w->deadline)
		return;
	for (int i = 0; i < w->options.concurrency; i++)
	{
		if (w->slots[i].message == NULL)
			continue;
		outbox_judge(w, w->slots[i].message, OUTBOX_LOST, NULL);
		outbox_cancel(w, w->slots[i].message);
	}
}

/* Sleep until something happens or is due. */
static void
await(outbox_worker *w)
{
	struct pollfd fds[] = {{w->pipe[0], POLLIN, 0}, {w->asked ? PQsocket(w->claimer) : -1, POLLIN, 0}};
	double		due = w->renew_at;
	char		bytes[64];

	for (int i = 0; i < w->options.concurrency; i++)
	{
		message    *m = w->slots[i].message;
		double		timeout = m ? outbox_handler_of(w, m->public.topic)->timeout : 0;

		if (timeout > 0 && !m->cancelled && m->began + timeout < due)
			due = m->began + timeout;
	}
	if (w->acks.count && w->acks_since + ACK_SECONDS < due)
		due = w->acks_since + ACK_SECONDS;
	if (w->claim_after > outbox_now() && w->claim_after < due)
		due = w->claim_after;
	if (w->stops && outbox_now() + 0.1 < due)
		due = outbox_now() + 0.1;
	due -= outbox_now();
	poll(fds, 2, due > 0 ? (int) (due * 1000) + 1 : 0);
	while (read(w->pipe[0], bytes, sizeof(bytes)) > 0)
		;
	if (w->asked && fds[1].revents)
		end_claim(w);
}

static void
on_signal(int number)
{
	if (signalled)
		outbox_stop(signalled);
}

/* The topics that have handlers, as an array; null if one is for all others. */
static char *
topics_of(outbox_worker *w)
{
	size_t		length = 3;
	char	   *topics,
			   *end;

	for (const handler *h = w->handlers; h; h = h->next)
	{
		if (strcmp(h->topic, "*") == 0)
			return NULL;
		length += 2 * strlen(h->topic) + 3;
	}
	end = topics = outbox_allocate(NULL, length);
	for (const handler *h = w->handlers; h; h = h->next)
	{
		end += sprintf(end, "%s\"", end == topics ? "{" : ",");
		for (const char *c = h->topic; *c; c++)
			end += sprintf(end, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
		end += sprintf(end, "\"");
	}
	sprintf(end, "}");
	return topics;
}

static bool
work(outbox_worker *w, bool draining)
{
	struct sigaction action = {.sa_handler = on_signal},
				old_term,
				old_int;
	unsigned char bytes[16];
	int			file = open("/dev/urandom", O_RDONLY);
	bool		ended;
	const char *values[] = {w->owner};

	w->error[0] = '\0';
	if (w->handlers == NULL || file < 0 || read(file, bytes, sizeof(bytes)) != sizeof(bytes) || pipe(w->pipe) != 0)
	{
		snprintf(w->error, sizeof(w->error), w->handlers ? "%s" : "no topic has a handler", strerror(errno));
		return false;
	}
	close(file);
	for (int i = 0; i < 16; i++)
		sprintf(w->owner + 2 * i, "%02x", bytes[i]);
	fcntl(w->pipe[0], F_SETFL, O_NONBLOCK);
	fcntl(w->pipe[1], F_SETFL, O_NONBLOCK);
	w->stops = w->asked = w->handled = w->full = 0;
	w->draining = draining;
	w->ending = false;
	w->deadline = FOREVER;
	w->claim_after = w->claimed_at = 0;
	w->claim_delay = 0.1;
	w->target = w->options.concurrency;
	w->topics = topics_of(w);
	w->renew_at = outbox_now() + w->options.lease_seconds / 3.0;
	w->claimer = PQconnectdb(w->conninfo);
	w->settler = PQconnectdb(w->conninfo);
	if (PQstatus(w->claimer) != CONNECTION_OK || PQstatus(w->settler) != CONNECTION_OK)
	{
		snprintf(w->error, sizeof(w->error), "%s", PQerrorMessage(w->claimer));
		PQfinish(w->claimer);
		PQfinish(w->settler);
		return false;
	}
	w->slots = outbox_allocate(NULL, w->options.concurrency * sizeof(slot));
	for (int i = 0; i < w->options.concurrency; i++)
	{
		w->slots[i].worker = w;
		if (pthread_create(&w->slots[i].thread, NULL, outbox_run_slot, &w->slots[i]) != 0)
			abort();
	}
	signalled = w;
	sigaction(SIGTERM, &action, &old_term);
	sigaction(SIGINT, &action, &old_int);
	do
	{
		outbox_start(w);
		begin_claim(w);
		await(w);
		outbox_collect(w);
		send_acks(w, false);
		if (outbox_now() > w->renew_at)
			renew(w);
		if (w->stops)
			shut_down(w);
		ended = w->stops && !w->asked && (outbox_running(w) == 0 || outbox_now() > w->deadline + 1);
	} while (!ended);
	send_acks(w, true);
	PQclear(outbox_call(w, NULL, release_all_sql, 1, values));
	sigaction(SIGTERM, &old_term, NULL);
	sigaction(SIGINT, &old_int, NULL);
	signalled = NULL;
	pthread_mutex_lock(&w->lock);
	w->ending = true;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	/* a handler that does not end keeps its slot */
	ended = outbox_running(w) == 0;
	for (int i = 0; i < w->options.concurrency; i++)
	{
		if (ended)
			pthread_join(w->slots[i].thread, NULL);
		else
			pthread_detach(w->slots[i].thread);
	}
	PQfinish(w->claimer);
	PQfinish(w->settler);
	free(w->topics);
	if (ended)
	{
		free(w->slots);
		close(w->pipe[0]);
		close(w->pipe[1]);
	}
	return w->error[0] == '\0';
}

/* What users call */

outbox_worker *
outbox_worker_new(const char *conninfo, const outbox_worker_options *options)
{
	outbox_worker *w = outbox_allocate(NULL, sizeof(outbox_worker));
	outbox_worker_options *o = &w->options;

	w->conninfo = conninfo;
	if (options)
		*o = *options;
	o->concurrency = o->concurrency ? o->concurrency : 10;
	o->lease_seconds = o->lease_seconds ? o->lease_seconds : 30;
	o->wait_ms = o->wait_ms ? o->wait_ms : 20000;
	o->max_batch = o->max_batch ? o->max_batch : 100;
	o->max_batch = o->max_batch > o->concurrency ? o->max_batch : o->concurrency;
	o->shutdown_seconds = o->shutdown_seconds > 0 ? o->shutdown_seconds : 25;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->changed, NULL);
	return w;
}

void
outbox_worker_free(outbox_worker *w)
{
	while (w->handlers)
	{
		handler    *next = w->handlers->next;

		free(w->handlers);
		w->handlers = next;
	}
	free(w->waiting.at);
	free(w->acks.at);
	free(w);
}

void
outbox_handle(outbox_worker *w, const char *topic, outbox_handler call, void *data,
			  bool transaction, double timeout_seconds)
{
	handler    *h = outbox_allocate(NULL, sizeof(handler));

	*h = (handler) {topic, call, data, transaction, timeout_seconds, w->handlers};
	w->handlers = h;
}

bool
outbox_run(outbox_worker *w)
{
	return work(w, false);
}

int
outbox_drain(outbox_worker *w)
{
	return work(w, true) ? w->handled : -1;
}

void
outbox_stop(outbox_worker *w)
{
	w->stops++;
	outbox_wake(w);
}

const char *
outbox_worker_error(const outbox_worker *w)
{
	return w->error;
}
