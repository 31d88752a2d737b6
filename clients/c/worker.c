/*
 * worker.c
 *	  The loop of outbox's workers: claim, settle, renew, stop.  See worker.h.
 *
 * A pipe wakes it, also from signal handlers.
 */
#define _GNU_SOURCE
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
#define MOST_UNSETTLED 1000
#define COLUMNS 20
#define FOREVER 1e18

static const char *const claim_sql =
	"SELECT id, message_id, namespace, topic, payload, headers, correlation_id, tenant_id,"
	" dedupe_key, stream_id, attempts, retry_count, created_at, due_time, locked_until,"
	" owner_token, subscription, published_id, priority, headers ->> 'traceparent'"
	" FROM outbox.claim($1::uuid, $2::int, $3::int, $4::text, $5::text[], $6::uuid, $7::int,"
	" $8::int, $9::text)";

static outbox_worker *volatile signalled;	/* the worker that SIGTERM stops */

double
outbox_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* How long to wait before another try; the next pause is longer. */
double
outbox_pause(double *delay, bool stopping)
{
	double		now = outbox_now() * 1e6,
				half = *delay / 2;

	*delay = stopping ? 0.5 : *delay < 2.5 ? 2 * *delay : 5;
	return half + half * (now - (long long) now);
}

void
outbox_emit(outbox_worker *w, outbox_event event)
{
	if (w->options.hook)
		w->options.hook(&event, w->options.data);
}

/* An error for good: the first one is reported by outbox_worker_error. */
void
outbox_fatal(outbox_worker *w, const char *error)
{
	if (!w->error[0])
		snprintf(w->error, sizeof(w->error), "%s", error[0] ? error : "unknown error");
	if (!w->stops)
		outbox_stop(w);
}

void
outbox_wake(outbox_worker *w)
{
	int			saved = errno;

	if (write(w->pipe[1], "x", 1) < 0)
		errno = saved;			/* it is full: the main thread will wake up */
}

static void
sooner(double *due, double at)
{
	if (at < *due)
		*due = at;
}

/* Claim */

static void
claim_failed(outbox_worker *w, const PGresult *result)
{
	const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;

	if (w->stops || (state && strcmp(state, "57014") == 0))
		return;
	if (!outbox_repeatable(result, w->claimer))
	{
		outbox_fatal(w, PQerrorMessage(w->claimer));
		return;
	}
	outbox_emit(w, (outbox_event) {.name = "reconnect", .error = state ? state : "connection"});
	w->claim_after = outbox_now() + outbox_pause(&w->claim_delay, false);
}

static void
new_owner(outbox_worker *w)
{
	unsigned char bytes[16] = {0};
	int			file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);

	if (file < 0 || read(file, bytes, sizeof(bytes)) != sizeof(bytes))
		outbox_fatal(w, "no random numbers");
	if (file >= 0)
		close(file);
	for (int i = 0; i < 16; i++)
		sprintf(w->owner + 2 * i, "%02x", bytes[i]);
}

/*
 * Connect again.  What a claim without an answer may have taken must not count as
 * held by this worker, which knows nothing of it: from now on it is another owner.
 */
static bool
reconnect(outbox_worker *w)
{
	PQreset(w->claimer);
	if (PQstatus(w->claimer) != CONNECTION_OK)
		return false;
	outbox_push(&w->strays, strdup(w->owner));
	new_owner(w);
	return true;
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
	int			unsettled = w->acks.count + w->statements.count,
				count = outbox_how_many(w);

	if (outbox_now() >= w->claim_after)
		w->claim_after = 0;
	if (w->asked || w->stops || w->claim_after > 0 || unsettled >= MOST_UNSETTLED || count <= 0)
		return;
	if (PQstatus(w->claimer) != CONNECTION_OK && !reconnect(w))
	{
		claim_failed(w, NULL);
		return;
	}
	snprintf(lease, sizeof(lease), "%d", o->lease_seconds);
	snprintf(asked, sizeof(asked), "%d", count);
	snprintf(most, sizeof(most), "%d", o->max_attempts);
	snprintf(wait, sizeof(wait), "%d", w->draining ? 0 : o->wait_ms);
	w->idle = outbox_running(w) == 0 && unsettled == 0;
	w->claim_sent = outbox_now();
	if (PQsendQueryParams(w->claimer, claim_sql, 9, NULL, values, NULL, NULL, 0))
		w->asked = count;
	else
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
	/* surely not sooner: what came late, or to a stopped process, is renewed first */
	m->until = w->claim_sent + w->options.lease_seconds;
	m->row = PQcopyResult(rows, PG_COPYRES_ATTRS);
	for (int i = 0; i < COLUMNS; i++)
	{
		if (!PQsetvalue(m->row, 0, i, (char *) column(rows, row, i), PQgetisnull(rows, row, i) ? -1 : PQgetlength(rows, row, i)))
			abort();
		columns[i] = column(m->row, 0, i);
	}
	return m;
}

static void
take(outbox_worker *w, const PGresult *rows)
{
	int			count = PQntuples(rows);

	sooner(&w->renew_at, w->claim_sent + w->options.lease_seconds / 3.0);
	for (int i = 0; i < count; i++)
	{
		message    *m = new_message(w, rows, i);
		bool		again = false;

		for (int n = 0; n < w->retried.count; n++)
			again |= strcmp(w->retried.at[n], outbox_key(&m->public)) == 0;
		if (again)
			outbox_forget(m);
		else
			outbox_push(&w->waiting, m);
	}
	w->full = count == w->asked;
	w->claimed_at = outbox_now();
	w->claim_delay = 0.1;
	outbox_emit(w, (outbox_event) {.name = "claimed", .count = count, .asked = w->asked});
	if (w->draining && count == 0)
	{
		if (w->idle)
			outbox_stop(w);
		w->claim_after = outbox_now() + 0.01;
	}
}

/* The claim's connection has something to read: perhaps not all of the answer. */
static void
read_claim(outbox_worker *w)
{
	bool		alive = PQconsumeInput(w->claimer) == 1;
	PGresult   *result;

	while (alive && !PQisBusy(w->claimer))
	{
		if ((result = PQgetResult(w->claimer)) == NULL)
		{
			w->asked = 0;
			return;
		}
		if (PQresultStatus(result) == PGRES_TUPLES_OK)
			take(w, result);
		else
			claim_failed(w, result);
		PQclear(result);
		alive = PQstatus(w->claimer) == CONNECTION_OK;
	}
	if (alive)
		return;
	w->asked = 0;
	if (outbox_now() >= w->claim_after)
		claim_failed(w, NULL);
}

/* The loop */

/* End the waiting claim, release what no handler has begun, and cancel what takes too long. */
static void
shut_down(outbox_worker *w)
{
	char		error[256];
	PGcancel   *request;

	if (w->deadline == FOREVER)
		w->deadline = outbox_now() + w->options.shutdown_seconds;
	if (w->stops > 1 && w->deadline > outbox_now())
		w->deadline = outbox_now();
	outbox_release(w);
	if (w->asked)
	{
		request = PQgetCancel(w->claimer);
		if (request == NULL || !PQcancel(request, error, sizeof(error)) || outbox_now() > w->deadline)
			w->asked = 0;
		PQfreeCancel(request);
	}
	for (int i = 0; i < w->options.concurrency && outbox_now() >= w->deadline; i++)
	{
		message    *m = w->slots[i].message;

		if (m && outbox_judge(w, m, OUTBOX_LOST, NULL, NULL))
			outbox_cancel(w, m);
	}
}

/* Has all ended?  Then what may be left is released, and that must be answered, too. */
static bool
has_ended(outbox_worker *w)
{
	if (!w->stops)
		return false;
	if (outbox_now() > w->deadline + 2)
	{
		if (w->acks.count + w->statements.count)
			outbox_fatal(w, "the server did not answer in time");
		return true;
	}
	if (w->asked || w->acks.count || w->statements.count ||
		(outbox_running(w) && outbox_now() < w->deadline + 1))
		return false;
	if (w->releasing)
		return true;
	w->releasing = true;
	outbox_push(&w->strays, strdup(w->owner));
	for (int i = 0; i < w->strays.count; i++)
		outbox_release_owner(w, w->strays.at[i]);
	outbox_free_list(&w->strays, free);
	return false;
}

/* Sleep until something happens or is due. */
static void
await(outbox_worker *w)
{
	struct pollfd fds[] = {{w->pipe[0], POLLIN, 0}, {w->asked ? PQsocket(w->claimer) : -1, POLLIN, 0}};
	double		now = outbox_now(),
				due = w->renew_at;
	char		bytes[64];

	if (w->acks.count)
		sooner(&due, w->acks_since + ACK_SECONDS);
	if (w->statements.count)
		due = 0;
	/* what is due cannot be sent before this */
	if (due < w->settle_after)
		due = w->settle_after;
	for (int i = 0; i < w->options.concurrency; i++)
	{
		message    *m = w->slots[i].message;
		double		timeout = m ? outbox_handler_of(w, m->public.topic)->timeout : 0;

		if (timeout > 0 && !m->cancelled)
			sooner(&due, m->began + timeout);
	}
	if (w->claim_after > 0)
		sooner(&due, w->claim_after);
	if (w->stops)
		sooner(&due, now + 0.1);
	poll(fds, 2, due > now ? (int) ((due - now) * 1000) + 1 : 0);
	while (read(w->pipe[0], bytes, sizeof(bytes)) > 0)
		;
	if (w->asked && fds[1].revents)
		read_claim(w);
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

/* Connect, and make what the loop needs; false if that cannot be done. */
static bool
set_up(outbox_worker *w, bool draining)
{
	w->error[0] = '\0';
	w->stops = 0;
	w->asked = w->handled = 0;
	w->full = w->acks_repeated = w->releasing = w->ending = false;
	w->draining = draining;
	w->deadline = FOREVER;
	w->claim_after = w->claimed_at = w->settle_after = 0;
	w->claim_delay = w->settle_delay = 0.1;
	w->target = w->options.concurrency;
	w->renew_at = outbox_now() + w->options.lease_seconds / 3.0;
	w->topics = topics_of(w);
	w->claimer = PQconnectdb(w->conninfo);
	w->settler = PQconnectdb(w->conninfo);
	if (w->handlers == NULL)
		outbox_fatal(w, "no topic has a handler");
	else if (PQstatus(w->claimer) != CONNECTION_OK)
		outbox_fatal(w, PQerrorMessage(w->claimer));
	else if (PQstatus(w->settler) != CONNECTION_OK)
		outbox_fatal(w, PQerrorMessage(w->settler));
	new_owner(w);
	w->slots = outbox_allocate(NULL, w->options.concurrency * sizeof(slot));
	for (int i = 0; i < w->options.concurrency; i++)
	{
		w->slots[i].worker = w;
		if (pthread_create(&w->slots[i].thread, NULL, outbox_run_slot, &w->slots[i]) != 0)
			abort();
	}
	return w->error[0] == '\0';
}

/* A handler that does not end keeps its slot and its message, and with them the worker. */
static void
tear_down(outbox_worker *w)
{
	bool		all = outbox_running(w) == 0;

	pthread_mutex_lock(&w->lock);
	w->ending = true;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	for (int i = 0; i < w->options.concurrency; i++)
	{
		if (all)
			pthread_join(w->slots[i].thread, NULL);
		else
			pthread_detach(w->slots[i].thread);
	}
	if (all)
	{
		free(w->slots);
		w->slots = NULL;
	}
	PQfinish(w->claimer);
	PQfinish(w->settler);
	free(w->topics);
	outbox_free_list(&w->acks, outbox_forget);
	outbox_free_list(&w->waiting, outbox_forget);
	outbox_free_list(&w->dropped, outbox_forget);
	outbox_free_list(&w->strays, free);
	outbox_free_list(&w->retried, free);
	outbox_forget_statements(w);
}

static bool
work(outbox_worker *w, bool draining)
{
	struct sigaction action = {.sa_handler = on_signal},
				old_term,
				old_int;

	if (w->slots != NULL)
	{
		outbox_fatal(w, "handlers of the last run have not ended");
		return false;
	}
	if (set_up(w, draining))
	{
		signalled = w;
		sigaction(SIGTERM, &action, &old_term);
		sigaction(SIGINT, &action, &old_int);
		do
		{
			outbox_start(w);
			begin_claim(w);
			outbox_settle(w);
			outbox_free_list(&w->dropped, outbox_forget);
			await(w);
			outbox_collect(w);
			if (w->stops)
				shut_down(w);
		} while (!has_ended(w));
		sigaction(SIGTERM, &old_term, NULL);
		sigaction(SIGINT, &old_int, NULL);
		signalled = NULL;
	}
	tear_down(w);
	return w->error[0] == '\0';
}

/* What users call */

outbox_worker *
outbox_worker_new(const char *conninfo, const outbox_worker_options *options)
{
	outbox_worker *w = outbox_allocate(NULL, sizeof(outbox_worker));
	outbox_worker_options *o = &w->options;
	pthread_condattr_t monotonic;

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
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&w->changed, &monotonic);
	if (pipe2(w->pipe, O_NONBLOCK | O_CLOEXEC) != 0)
		abort();
	return w;
}

void
outbox_worker_free(outbox_worker *w)
{
	if (w->slots != NULL)
		return;
	while (w->handlers)
	{
		handler    *next = w->handlers->next;

		free(w->handlers);
		w->handlers = next;
	}
	close(w->pipe[0]);
	close(w->pipe[1]);
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->changed);
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
