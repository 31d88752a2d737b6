/*
 * drive.c
 *	  Load for the benchmark: clients that do nothing but call the queue.
 *
 * One process, a thread per connection, prepared statements, so that the
 * client costs the same whatever is measured.
 *
 *	drive fill SYSTEM COUNT BATCH				enqueue, BATCH in a transaction
 *	drive drain SYSTEM CONNS BATCH [LIMIT]		take and finish until none is left,
 *												or LIMIT were had by each
 *	drive pump SYSTEM RATE SECONDS WINDOWS		enqueue at a rate, and drain
 *	drive wait SYSTEM CONNS TOPICS RATE SECONDS	enqueue at a rate, for claims
 *												that wait
 *	drive call CONNS COUNT PER_XACT STATEMENT	repeat a statement
 *
 * SYSTEM is one of systems[] below; $1 in STATEMENT stands for a payload. In the
 * environment,
 *
 *	DRIVE_SECONDS	ends drain and call after that time, done or not
 *	DRIVE_PAYLOAD	is the length of payloads: random text instead of 200 bytes of
 *					JSON that say nothing
 *	DRIVE_PRODUCE, DRIVE_CLAIM, DRIVE_SETTLE
 *					are statements in place of the system's own
 *
 * When the connections are there it says "ready", and waits for a line; then
 * it does its work, and prints the results, as name=value on one line; then
 * it waits for the end of its input. So its caller can read the server's
 * meters at both ends with all backends alive, and no other work between.
 */
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <libpq-fe.h>

#define MAX_CONNS 1024
#define MAX_WINDOWS 16			/* of the pump, in which it has percentiles */
#define PUMP_CONNS 2			/* producers, and as many consumers */
#define PUMP_PRODUCE 10			/* messages a transaction */
#define PUMP_CLAIM 100
#define IDLE_US 2000			/* a consumer's rest when it found little */
#define WARMUP_CLAIMS 5			/* not timed */
#define WAIT_MS "60000"			/* of a claim that waits */
#define WARMUP_WAITS 8			/* then plans are generic ones */
#define GRACE_SECONDS 10		/* for what is on its way at the end */
#define PAYLOAD_LENGTH 200		/* without DRIVE_PAYLOAD */
#define MIN_PAYLOAD 50
#define MAX_PAYLOAD 1000000

typedef struct System
{
	const char *name;
	const char *open;			/* names the batch, if that is a call by
								 * itself; no row or NULL: there is none */
	const char *claim;			/* $1 owner, $2 batch size; or $1 batch. First
								 * column: the id */
	const char *settle;			/* $1 owner, $2 ids; or $1 batch */
	const char *produce;		/* $1 payloads */
	const char *produced;		/* called after it, or NULL */
	const char *wait;			/* $1 owner, $2 topic, $3 ms. Columns: the id
								 * and the payload of one message, or NULL */
	const char *produce_one;	/* $1 topic, $2 payload, or NULL */
} System;

#define SQLQ_CLAIM \
	"WITH c AS (SELECT id FROM sqlq.queue" \
	" WHERE status = 0 AND available_at <= now()" \
	" AND namespace = 'default' AND topic = 'bench'" \
	" ORDER BY available_at, id LIMIT $2::int FOR UPDATE SKIP LOCKED)" \
	" UPDATE sqlq.queue q SET status = 1, owner = $1::uuid," \
	" locked_until = now() + interval '300 s', attempts = attempts + 1," \
	" updated_at = now()" \
	" FROM c WHERE q.id = c.id RETURNING q.id, q.payload"
#define SQLQ_MINE "id = ANY($2::bigint[]) AND owner = $1::uuid AND status = 1"
#define SQLQ_PRODUCE \
	"INSERT INTO sqlq.queue (topic, payload)" \
	" SELECT 'bench', p FROM unnest($1::text[]) p"

#define OUTBOX_CLAIM(topics) \
	"SELECT id, payload FROM outbox.claim($1::uuid, 300, $2::int," \
	" 'default', " topics ")"
#define OUTBOX_SETTLE "SELECT outbox.ack($1::uuid, $2::bigint[])"
#define OUTBOX_PRODUCE "SELECT outbox.enqueue_many('bench', $1::text[])"

static const System systems[] = {
	{
		.name = "outbox",
		.claim = OUTBOX_CLAIM("ARRAY['bench']"),
		.settle = OUTBOX_SETTLE,
		.produce = OUTBOX_PRODUCE,
		.wait = "SELECT id, payload FROM outbox.claim($1::uuid, 300, 1,"
		" 'default', ARRAY[$2::text], wait_ms => $3::int)",
		.produce_one = "SELECT outbox.enqueue($1::text, $2::text)"
	},
	{
		/* over all topics */
		.name = "outbox-all",
		.claim = OUTBOX_CLAIM("NULL"),
		.settle = OUTBOX_SETTLE,
		.produce = OUTBOX_PRODUCE
	},
	{
		/* over a hundred topics */
		.name = "outbox-hundred",
		.claim = OUTBOX_CLAIM("ARRAY(SELECT 'h' || i"
							  " FROM generate_series(0, 99) i)"),
		.settle = OUTBOX_SETTLE,
		.produce = OUTBOX_PRODUCE
	},
	{
		/* each transaction enqueues to one of 200 streams */
		.name = "outbox-streams",
		.claim = OUTBOX_CLAIM("ARRAY['bench']"),
		.settle = OUTBOX_SETTLE,
		.produce = "SELECT outbox.enqueue_many('bench', $1::text[],"
		" stream_id => ('20000000-0000-4000-8000-'"
		" || lpad(floor(random() * 200)::text, 12, '0'))::uuid)"
	},
	{
		/* one call for each message; of five priorities, or of none */
		.name = "outbox-classes",
		.claim = OUTBOX_CLAIM("ARRAY['bench']"),
		.settle = OUTBOX_SETTLE,
		.produce = "SELECT count(outbox.enqueue('bench', p,"
		" priority => floor(random() * 5)::int - 2))"
		" FROM unnest($1::text[]) p"
	},
	{
		.name = "outbox-no-classes",
		.claim = OUTBOX_CLAIM("ARRAY['bench']"),
		.settle = OUTBOX_SETTLE,
		.produce = "SELECT count(outbox.enqueue('bench', p))"
		" FROM unnest($1::text[]) p WHERE floor(random() * 5)::int < 5"
	},
	{
		.name = "sql-keep",
		.claim = SQLQ_CLAIM,
		.settle = "UPDATE sqlq.queue SET status = 2, processed_at = now(),"
		" processed_by = $1::uuid, updated_at = now() WHERE " SQLQ_MINE,
		.produce = SQLQ_PRODUCE
	},
	{
		.name = "sql-delete",
		.claim = SQLQ_CLAIM,
		.settle = "DELETE FROM sqlq.queue WHERE " SQLQ_MINE,
		.produce = SQLQ_PRODUCE
	},
	{
		.name = "pgq",
		.open = "SELECT pgq.next_batch('bench', 'drive')",
		.claim = "SELECT ev_id, ev_data FROM pgq.get_batch_events($1::bigint)",
		.settle = "SELECT pgq.finish_batch($1::bigint)",
		.produce = "SELECT pgq.insert_event('bench', 'bench', p)"
		" FROM unnest($1::text[]) p",
		.produced = "SELECT pgq.ticker('bench')"
	},
};

/* Durations, in milliseconds. */
typedef struct Samples
{
	double	   *ms;
	long		n;
	long		room;
} Samples;

typedef struct Worker
{
	pthread_t	thread;
	PGconn	   *conn;
	char		owner[37];
	long		messages;
	long		calls;
	Samples		window[MAX_WINDOWS];	/* the pump uses more than one */
	long		finished[MAX_WINDOWS];	/* messages in them */
} Worker;

static const System *sys;
static int	nconns = 1;
static int	batch;				/* messages a transaction */
static long count;				/* of messages or calls, each worker */
static long rate;				/* messages a second, all producers */
static int	seconds;			/* 0: as long as it takes */
static double window_seconds;	/* how long the pump's percentiles span */
static double limit_seconds;	/* 0: none */
static int	ntopics;
static bool call_has_payload;
static int	payload_length = PAYLOAD_LENGTH;
static bool random_payload;
static volatile bool stop;
static volatile long delivered; /* to claims that wait */
static double started;
static Worker workers[MAX_CONNS];
static Worker producers[PUMP_CONNS];

/* ---------------------------------------------------------------------- */
/* Helpers                                                                */
/* ---------------------------------------------------------------------- */

static void
die(const char *format,...)
{
	va_list		args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void *
allocate(void *old, size_t size)
{
	void	   *p = realloc(old, size);

	if (p == NULL)
		die("out of memory");
	return p;
}

static void
add_sample(Samples *samples, double ms)
{
	if (samples->n == samples->room)
	{
		samples->room = samples->room > 0 ? samples->room * 2 : 1024;
		samples->ms = allocate(samples->ms, samples->room * sizeof(double));
	}
	samples->ms[samples->n++] = ms;
}

static int
compare_doubles(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

/* All workers' samples of a window, in order. */
static Samples
collect_window(int window)
{
	Samples		all = {0};

	for (int i = 0; i < nconns; i++)
	{
		Samples    *one = &workers[i].window[window];

		for (long k = 0; k < one->n; k++)
			add_sample(&all, one->ms[k]);
	}
	if (all.n > 0)
		qsort(all.ms, all.n, sizeof(double), compare_doubles);
	return all;
}

static double
percentile(const Samples *sorted, double p)
{
	return sorted->n > 0 ? sorted->ms[(long) (p * (sorted->n - 1))] : 0;
}

/* ---------------------------------------------------------------------- */
/* The server                                                             */
/* ---------------------------------------------------------------------- */

static PGresult *
check(PGconn *conn, PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
		die("%s", PQerrorMessage(conn));
	return result;
}

static PGresult *
execute(PGconn *conn, const char *name, int nparams, const char *const *params)
{
	return check(conn, PQexecPrepared(conn, name, nparams, params, NULL, NULL,
									  0));
}

/* Has it lasted as long as it may? */
static bool
out_of_time(void)
{
	return limit_seconds > 0 && now() - started > limit_seconds;
}

static void
run_command(PGconn *conn, const char *command)
{
	PQclear(check(conn, PQexec(conn, command)));
}

/* Prepare a statement, unless there is none. */
static void
prepare(PGconn *conn, const char *name, const char *sql)
{
	if (sql != NULL)
		PQclear(check(conn, PQprepare(conn, name, sql, 0, NULL)));
}

static void
connect_worker(Worker *worker, int number)
{
	worker->conn = PQconnectdb("");
	if (PQstatus(worker->conn) != CONNECTION_OK)
		die("%s", PQerrorMessage(worker->conn));
	run_command(worker->conn, "SET client_min_messages = warning");
	snprintf(worker->owner, sizeof(worker->owner),
			 "00000000-0000-4000-8000-%012d", number + 1);
	if (sys != NULL)
	{
		prepare(worker->conn, "open", sys->open);
		prepare(worker->conn, "claim", sys->claim);
		prepare(worker->conn, "settle", sys->settle);
		prepare(worker->conn, "produce", sys->produce);
		prepare(worker->conn, "produced", sys->produced);
		prepare(worker->conn, "wait", sys->wait);
		prepare(worker->conn, "produce_one", sys->produce_one);
	}
}

/* ---------------------------------------------------------------------- */
/* Producing                                                              */
/* ---------------------------------------------------------------------- */

/* The next of a series of random numbers, xorshift64. */
static uint64_t
next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/*
 * A payload: JSON, all of them of one length, no two alike. Random text is as good
 * as incompressible for the server.
 */
static void
write_payload(char *to, long number)
{
	int			n = sprintf(to, "{\"order\": %ld, \"note\": \"",
							1000000000 + number);

	memset(to + n, 'x', payload_length - n - 2);
	if (random_payload)
	{
		uint64_t	state = 0x9E3779B97F4A7C15 ^ (uint64_t) (number + 1) << 20;

		for (char *c = to + n; c < to + payload_length - 2; c++)
			*c = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
				[next_random(&state) >> 58];
	}
	strcpy(to + payload_length - 2, "\"}");
}

/* Payloads as an array literal; the caller frees it. */
static char *
payload_array(long first, int n)
{
	char	   *payload = allocate(NULL, payload_length + 1);
	char	   *array = allocate(NULL, (size_t) n * (2 * payload_length + 3) + 3);
	char	   *to = array;

	*to++ = '{';
	for (int i = 0; i < n; i++)
	{
		if (i > 0)
			*to++ = ',';
		*to++ = '"';
		write_payload(payload, first + i);
		for (const char *from = payload; *from != '\0'; from++)
		{
			if (*from == '"')
				*to++ = '\\';
			*to++ = *from;
		}
		*to++ = '"';
	}
	strcpy(to, "}");
	free(payload);
	return array;
}

static void
produce_batch(Worker *worker, int n)
{
	char	   *payloads = payload_array(worker->messages, n);
	const char *params[1] = {payloads};

	PQclear(execute(worker->conn, "produce", 1, params));
	if (sys->produced != NULL)
		PQclear(execute(worker->conn, "produced", 0, NULL));
	worker->messages += n;
	free(payloads);
}

static void *
fill(void *arg)
{
	Worker	   *worker = arg;

	while (worker->messages < count)
		produce_batch(worker, batch);
	return NULL;
}

/* Produce at the rate. */
static void *
produce(void *arg)
{
	Worker	   *worker = arg;
	double		per_second = (double) rate / PUMP_CONNS;

	while (!stop)
	{
		double		ahead = worker->messages / per_second - (now() - started);

		if (ahead > 0)
			usleep((useconds_t) (ahead * 1e6));
		produce_batch(worker, PUMP_PRODUCE);
	}
	return NULL;
}

/* ---------------------------------------------------------------------- */
/* Consuming                                                              */
/* ---------------------------------------------------------------------- */

/* The first column as an array literal; the caller frees it. */
static char *
id_array(const PGresult *result)
{
	int			n = PQntuples(result);
	char	   *array = allocate(NULL, n * 21 + 3);
	char	   *to = array;

	*to++ = '{';
	for (int i = 0; i < n; i++)
		to += sprintf(to, "%s%s", i > 0 ? "," : "", PQgetvalue(result, i, 0));
	strcpy(to, "}");
	return array;
}

/* Claims that found something count, once the backend has its plans. */
static void
note_claim(Worker *worker, double from, int messages)
{
	int			window = window_seconds > 0 ? (int) ((from - started) / window_seconds) : 0;

	if (window >= MAX_WINDOWS)
		return;
	worker->finished[window] += messages;
	if (worker->calls++ >= WARMUP_CLAIMS)
		add_sample(&worker->window[window], (now() - from) * 1000);
}

/* Take messages one by one leased, and finish them; how many, or -1. */
static int
take_and_finish_leases(Worker *worker)
{
	char		size[16];
	const char *params[2] = {worker->owner, size};
	double		from = now();
	PGresult   *result;
	int			n;

	snprintf(size, sizeof(size), "%d", batch);
	result = execute(worker->conn, "claim", 2, params);
	n = PQntuples(result);
	if (n > 0)
	{
		char	   *ids = id_array(result);

		note_claim(worker, from, n);
		params[1] = ids;
		PQclear(execute(worker->conn, "settle", 2, params));
		free(ids);
	}
	PQclear(result);
	return n > 0 ? n : -1;
}

/* Take a batch that the queue has made up, and finish it; how many, or -1. */
static int
take_and_finish_batch(Worker *worker)
{
	double		from = now();
	PGresult   *opened = execute(worker->conn, "open", 0, NULL);
	int			n = -1;

	if (PQntuples(opened) > 0 && !PQgetisnull(opened, 0, 0))
	{
		const char *params[1] = {PQgetvalue(opened, 0, 0)};
		PGresult   *result = execute(worker->conn, "claim", 1, params);

		n = PQntuples(result);
		PQclear(result);
		note_claim(worker, from, n);
		PQclear(execute(worker->conn, "settle", 1, params));
	}
	PQclear(opened);
	return n;
}

static int
take_and_finish(Worker *worker)
{
	int			n = sys->open != NULL ? take_and_finish_batch(worker)
	: take_and_finish_leases(worker);

	if (n > 0)
		worker->messages += n;
	return n;
}

static void *
drain(void *arg)
{
	Worker	   *worker = arg;

	while ((count == 0 || worker->messages < count) && !out_of_time() &&
		   take_and_finish(worker) >= 0)
		;
	return NULL;
}

static void *
consume(void *arg)
{
	while (!stop)
	{
		if (take_and_finish(arg) < batch)
			usleep(IDLE_US);
	}
	return NULL;
}

/* ---------------------------------------------------------------------- */
/* Waiting                                                                */
/* ---------------------------------------------------------------------- */

/* Wait for one message, and finish it; false if none came. */
static bool
wait_and_finish(Worker *worker, const char *topic, const char *ms)
{
	const char *params[3] = {worker->owner, topic, ms};
	PGresult   *result = execute(worker->conn, "wait", 3, params);
	double		returned = now();
	bool		found = PQntuples(result) > 0;
	char	   *ids = id_array(result);

	if (found)
	{
		/* the payload says when its enqueue began */
		double		sent = atof(PQgetvalue(result, 0, 1));

		if (sent > 0)
			add_sample(&worker->window[0], (returned - sent) * 1000);
	}
	params[1] = ids;
	PQclear(execute(worker->conn, "settle", 2, params));
	free(ids);
	PQclear(result);
	return found;
}

static void
topic_name(char *to, int number)
{
	sprintf(to, "w%d", number % ntopics);
}

/* Enqueue a message that says when. */
static void
send_message(Worker *worker, int number)
{
	char		topic[16];
	char		payload[PAYLOAD_LENGTH + 1];
	const char *params[2] = {topic, payload};

	topic_name(topic, number);
	memset(payload, ' ', PAYLOAD_LENGTH);
	payload[PAYLOAD_LENGTH] = '\0';
	payload[sprintf(payload, "%.6f", now())] = ' ';
	PQclear(execute(worker->conn, "produce_one", 2, params));
}

/*
 * Do the same work before anything is measured, so that a backend has its plans
 * and caches.
 */
static void *
warm_up(void *arg)
{
	Worker	   *worker = arg;
	int			number = (int) (worker - workers);
	char		topic[16];

	topic_name(topic, number);
	for (int i = 0; i < WARMUP_WAITS; i++)
	{
		send_message(worker, number);
		/* a claim may return empty before its time */
		while (!wait_and_finish(worker, topic, WAIT_MS))
			;
	}
	worker->window[0].n = 0;
	return NULL;
}

static void *
wait_for_messages(void *arg)
{
	Worker	   *worker = arg;
	char		topic[16];

	topic_name(topic, (int) (worker - workers));
	for (;;)
	{
		if (wait_and_finish(worker, topic, WAIT_MS))
			__atomic_add_fetch(&delivered, 1, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

/* ---------------------------------------------------------------------- */
/* Calling                                                                */
/* ---------------------------------------------------------------------- */

static void *
call(void *arg)
{
	Worker	   *worker = arg;
	char	   *payload = allocate(NULL, payload_length + 1);
	const char *params[1] = {payload};

	write_payload(payload, 0);
	for (worker->calls = 0; worker->calls < count && !out_of_time();
		 worker->calls++)
	{
		double		from = now();

		if (batch > 1 && worker->calls % batch == 0)
			run_command(worker->conn, "BEGIN");
		PQclear(execute(worker->conn, "call", call_has_payload ? 1 : 0, params));
		if (batch > 1 && (worker->calls + 1) % batch == 0)
			run_command(worker->conn, "COMMIT");
		add_sample(&worker->window[0], (now() - from) * 1000);
	}
	free(payload);
	return NULL;
}

/* ---------------------------------------------------------------------- */
/* Commands                                                               */
/* ---------------------------------------------------------------------- */

static void
connect_workers(Worker *some, int n)
{
	for (int i = 0; i < n; i++)
		connect_worker(&some[i], i);
}

static void
await_start(void)
{
	puts("ready");
	fflush(stdout);
	if (getchar() == EOF)
		exit(1);
	started = now();
}

static void
start_workers(Worker *some, int n, void *(*run) (void *))
{
	for (int i = 0; i < n; i++)
	{
		if (pthread_create(&some[i].thread, NULL, run, &some[i]) != 0)
			die("could not start a thread");
	}
}

/* Wait for them; how many messages they had. */
static long
finish_workers(Worker *some, int n)
{
	long		messages = 0;

	for (int i = 0; i < n; i++)
	{
		pthread_join(some[i].thread, NULL);
		messages += some[i].messages;
	}
	return messages;
}

static void
report_end(void)
{
	putchar('\n');
	fflush(stdout);
	while (getchar() != EOF)
		;
}

/* All workers do the same, until they are done. */
static void
run_alike(void *(*run) (void *))
{
	const char *limit = getenv("DRIVE_SECONDS");
	double		elapsed;
	long		messages;
	Samples		all;

	limit_seconds = limit != NULL ? atof(limit) : 0;
	await_start();
	start_workers(workers, nconns, run);
	messages = finish_workers(workers, nconns);
	elapsed = now() - started;
	all = collect_window(0);
	printf("messages=%ld calls=%ld seconds=%.6f p50_ms=%.5f p99_ms=%.5f",
		   messages, all.n, elapsed, percentile(&all, 0.5),
		   percentile(&all, 0.99));
	report_end();
}

static void
run_pump(int windows)
{
	long		messages;
	long		produced;

	if (windows < 1 || windows > MAX_WINDOWS)
		die("windows must be 1 to %d", MAX_WINDOWS);
	window_seconds = (double) seconds / windows;
	nconns = PUMP_CONNS;
	batch = PUMP_CLAIM;
	connect_workers(workers, nconns);
	connect_workers(producers, PUMP_CONNS);
	await_start();
	start_workers(workers, nconns, consume);
	start_workers(producers, PUMP_CONNS, produce);
	sleep(seconds);
	stop = true;
	produced = finish_workers(producers, PUMP_CONNS);
	messages = finish_workers(workers, nconns);
	printf("messages=%ld produced=%ld seconds=%d p50_ms=", messages, produced,
		   seconds);
	for (int w = 0; w < windows; w++)
	{
		Samples		all = collect_window(w);

		printf("%s%.4f", w > 0 ? "," : "", percentile(&all, 0.5));
	}
	printf(" finished=");
	for (int w = 0; w < windows; w++)
	{
		long		finished = 0;

		for (int i = 0; i < nconns; i++)
			finished += workers[i].finished[w];
		printf("%s%ld", w > 0 ? "," : "", finished);
	}
	report_end();
}

/*
 * Claims wait, and one connection enqueues at the rate. Ends when all messages
 * are there, while the claims wait still: the server sees them gone when their
 * database is dropped. With no rate nothing is enqueued.
 */
static void
run_waiters(void)
{
	Worker	   *producer = &producers[0];
	double		elapsed;
	double		enough;
	Samples		all;

	connect_workers(workers, nconns);
	connect_workers(producers, 1);
	start_workers(workers, nconns, warm_up);
	finish_workers(workers, nconns);
	start_workers(workers, nconns, wait_for_messages);
	sleep(2);
	await_start();
	while ((elapsed = now() - started) < seconds)
	{
		double		ahead = rate > 0 ? (double) producer->messages / rate - elapsed
		: seconds - elapsed;

		if (ahead > 0)
			usleep((useconds_t) (ahead * 1e6));
		if (rate > 0)
		{
			/* not in the order in which the claims began */
			send_message(producer, (int) (producer->messages * 7919 % ntopics));
			producer->messages++;
		}
	}
	enough = now() + GRACE_SECONDS;
	while (delivered < producer->messages && now() < enough)
		usleep(1000);
	elapsed = now() - started;
	if (delivered != producer->messages)
		die("%ld of %ld messages were delivered", delivered, producer->messages);
	all = collect_window(0);
	printf("messages=%ld calls=%ld warmup=%d seconds=%.6f p50_ms=%.5f p99_ms=%.5f",
		   delivered, all.n, nconns * WARMUP_WAITS, elapsed,
		   percentile(&all, 0.5), percentile(&all, 0.99));
	report_end();
}

static void
replace(const char **statement, const char *variable)
{
	const char *value = getenv(variable);

	if (value != NULL)
		*statement = value;
}

static void
find_system(const char *name)
{
	static System own;

	for (size_t i = 0; i < sizeof(systems) / sizeof(systems[0]); i++)
	{
		if (strcmp(systems[i].name, name) == 0)
			sys = &systems[i];
	}
	if (sys == NULL)
		die("unknown system \"%s\"", name);
	own = *sys;
	replace(&own.produce, "DRIVE_PRODUCE");
	replace(&own.claim, "DRIVE_CLAIM");
	replace(&own.settle, "DRIVE_SETTLE");
	sys = &own;
}

static void
set_payload(void)
{
	const char *length = getenv("DRIVE_PAYLOAD");

	if (length == NULL)
		return;
	payload_length = atoi(length);
	if (payload_length < MIN_PAYLOAD || payload_length > MAX_PAYLOAD)
		die("DRIVE_PAYLOAD must be %d to %d", MIN_PAYLOAD, MAX_PAYLOAD);
	random_payload = true;
}

static void
set_connections(const char *arg)
{
	nconns = atoi(arg);
	if (nconns < 1 || nconns > MAX_CONNS)
		die("connections must be 1 to %d", MAX_CONNS);
}

int
main(int argc, char **argv)
{
	const char *command = argc > 1 ? argv[1] : "";

	set_payload();
	if (argc == 5 && strcmp(command, "fill") == 0)
	{
		find_system(argv[2]);
		count = atol(argv[3]);
		batch = atoi(argv[4]);
		connect_workers(workers, nconns);
		run_alike(fill);
	}
	else if ((argc == 5 || argc == 6) && strcmp(command, "drain") == 0)
	{
		find_system(argv[2]);
		set_connections(argv[3]);
		batch = atoi(argv[4]);
		count = argc == 6 ? atol(argv[5]) : 0;
		connect_workers(workers, nconns);
		run_alike(drain);
	}
	else if (argc == 6 && strcmp(command, "pump") == 0)
	{
		find_system(argv[2]);
		rate = atol(argv[3]);
		seconds = atoi(argv[4]);
		run_pump(atoi(argv[5]));
	}
	else if (argc == 7 && strcmp(command, "wait") == 0)
	{
		find_system(argv[2]);
		set_connections(argv[3]);
		ntopics = atoi(argv[4]);
		rate = atol(argv[5]);
		seconds = atoi(argv[6]);
		run_waiters();
	}
	else if (argc == 6 && strcmp(command, "call") == 0)
	{
		set_connections(argv[2]);
		count = atol(argv[3]);
		batch = atoi(argv[4]);
		call_has_payload = strstr(argv[5], "$1") != NULL;
		connect_workers(workers, nconns);
		for (int i = 0; i < nconns; i++)
			prepare(workers[i].conn, "call", argv[5]);
		run_alike(call);
	}
	else
		die("usage: drive fill SYSTEM COUNT BATCH\n"
			"       drive drain SYSTEM CONNS BATCH [LIMIT]\n"
			"       drive pump SYSTEM RATE SECONDS WINDOWS\n"
			"       drive wait SYSTEM CONNS TOPICS RATE SECONDS\n"
			"       drive call CONNS COUNT PER_XACT STATEMENT");
	return 0;
}
