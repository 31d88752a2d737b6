/*
 * drive.c
 *	  Load for the benchmark: clients that do nothing but call the queue.
 *
 * One process, a thread per connection, prepared statements, binary of its
 * own so that the client costs the same whatever is measured.  The figures
 * are printed as name=value pairs on one line; run.sh makes a table of them.
 *
 *	drive drain SYSTEM CONNS BATCH [KEY=VALUE...]	take and finish until empty
 *	drive pump SYSTEM SECONDS RATE					produce and consume at a rate
 *	drive calls CONNS COUNT SQL [SETUP]				repeat a statement
 *
 * SYSTEM names the statements in systems[] below.
 */
#include <errno.h>
#include <dirent.h>
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

#define MAX_CONNS 64
#define MAX_SAMPLES 20000000
#define WINDOW_SECONDS 10
#define MAX_WINDOWS 64

typedef struct System
{
	const char *name;
	const char *claim;			/* $1 owner, $2 batch; first column: the id */
	const char *settle;			/* $1 owner, $2 ids */
	const char *produce;		/* $1 payloads */
} System;

static const System systems[] = {
	{
		"outbox",
		"SELECT id, payload FROM outbox.claim($1::uuid, 300, $2::int, 'default', ARRAY['bench'])",
		"SELECT outbox.ack($1::uuid, $2::bigint[])",
		"SELECT outbox.enqueue_many('bench', $1::text[])"
	},
	{
		"outbox-all",
		"SELECT id, payload FROM outbox.claim($1::uuid, 300, $2::int)",
		"SELECT outbox.ack($1::uuid, $2::bigint[])",
		"SELECT outbox.enqueue_many('bench', $1::text[])"
	},
	{
		"sql-keep",
		"WITH c AS (SELECT id FROM sqlq.queue WHERE status = 0 AND available_at <= now()"
		" AND namespace = 'default' AND topic = 'bench'"
		" ORDER BY available_at, id LIMIT $2::int FOR UPDATE SKIP LOCKED)"
		" UPDATE sqlq.queue q SET status = 1, owner = $1::uuid,"
		" locked_until = now() + interval '300 s', attempts = attempts + 1, updated_at = now()"
		" FROM c WHERE q.id = c.id RETURNING q.id, q.payload",
		"UPDATE sqlq.queue SET status = 2, processed_at = now(), processed_by = $1::uuid,"
		" updated_at = now()"
		" WHERE id = ANY($2::bigint[]) AND owner = $1::uuid AND status = 1",
		"INSERT INTO sqlq.queue (topic, payload) SELECT 'bench', p FROM unnest($1::text[]) p"
	},
	{
		"sql-delete",
		"WITH c AS (SELECT id FROM sqlq.queue WHERE status = 0 AND available_at <= now()"
		" AND namespace = 'default' AND topic = 'bench'"
		" ORDER BY available_at, id LIMIT $2::int FOR UPDATE SKIP LOCKED)"
		" UPDATE sqlq.queue q SET status = 1, owner = $1::uuid,"
		" locked_until = now() + interval '300 s', attempts = attempts + 1, updated_at = now()"
		" FROM c WHERE q.id = c.id RETURNING q.id, q.payload",
		"DELETE FROM sqlq.queue WHERE id = ANY($2::bigint[]) AND owner = $1::uuid AND status = 1",
		"INSERT INTO sqlq.queue (topic, payload) SELECT 'bench', p FROM unnest($1::text[]) p"
	},
};

typedef struct Worker
{
	pthread_t	thread;
	PGconn	   *conn;
	char		owner[37];
	long		messages;
	long		calls;
	uint32_t   *samples;		/* microseconds of each claim that found any */
	long		nsamples;
	uint32_t   *window[MAX_WINDOWS];
	long		nwindow[MAX_WINDOWS];
} Worker;

static const System *sys;
static int	nconns;
static int	batch;
static long rate;
static int	seconds;
static long count;
static const char *call_sql;
static Worker workers[MAX_CONNS];
static Worker producers[4];
static volatile bool stop;
static double started;
static volatile long produced;

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

static PGresult *
check(PGconn *conn, PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
		die("%s", PQerrorMessage(conn));
	return result;
}

static PGconn *
open_connection(void)
{
	PGconn	   *conn = PQconnectdb("");

	if (PQstatus(conn) != CONNECTION_OK)
		die("%s", PQerrorMessage(conn));
	PQclear(check(conn, PQexec(conn, "SET client_min_messages = warning")));
	return conn;
}

static void
prepare(PGconn *conn, const char *name, const char *sql)
{
	PQclear(check(conn, PQprepare(conn, name, sql, 0, NULL)));
}

static long
query_long(const char *sql)
{
	PGconn	   *conn = open_connection();
	PGresult   *result = check(conn, PQexec(conn, sql));
	long		value = atol(PQgetvalue(result, 0, 0));

	PQclear(result);
	PQfinish(conn);
	return value;
}

/* ---------------------------------------------------------------------- */
/* What the server has spent                                              */
/* ---------------------------------------------------------------------- */

static double
read_schedstat(int pid)
{
	char		path[64];
	FILE	   *file;
	double		ns = 0;

	snprintf(path, sizeof(path), "/proc/%d/schedstat", pid);
	file = fopen(path, "r");
	if (file != NULL)
	{
		if (fscanf(file, "%lf", &ns) != 1)
			ns = 0;
		fclose(file);
	}
	return ns / 1e9;
}

/* Parent, and the CPU time of children that have ended. */
static bool
read_stat(int pid, int *parent, double *children)
{
	char		path[64];
	char		line[1024];
	FILE	   *file;
	char	   *p;
	long		cutime;
	long		cstime;
	bool		ok;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file = fopen(path, "r");
	if (file == NULL)
		return false;
	ok = fgets(line, sizeof(line), file) != NULL &&
		(p = strrchr(line, ')')) != NULL &&
		sscanf(p + 2, "%*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %ld %ld",
			   parent, &cutime, &cstime) == 3;
	fclose(file);
	if (ok)
		*children = (double) (cutime + cstime) / sysconf(_SC_CLK_TCK);
	return ok;
}

/* CPU seconds of the whole server so far. */
static double
server_cpu(int postmaster)
{
	DIR		   *proc = opendir("/proc");
	struct dirent *entry;
	double		total = 0;
	double		children;
	int			parent;

	if (read_stat(postmaster, &parent, &children))
		total += children + read_schedstat(postmaster);
	while ((entry = readdir(proc)) != NULL)
	{
		int			pid = atoi(entry->d_name);

		if (pid > 0 && read_stat(pid, &parent, &children) &&
			parent == postmaster)
			total += read_schedstat(pid);
	}
	closedir(proc);
	return total;
}

static int
postmaster_pid(void)
{
	return (int) query_long("SELECT (regexp_split_to_array(pg_read_file('postmaster.pid'), '\\n'))[1]");
}

static double
wal_position(void)
{
	PGconn	   *conn = open_connection();
	PGresult   *result = check(conn, PQexec(conn, "SELECT pg_current_wal_insert_lsn() - '0/0'"));
	double		value = atof(PQgetvalue(result, 0, 0));

	PQclear(result);
	PQfinish(conn);
	return value;
}

/* ---------------------------------------------------------------------- */
/* Clients                                                                */
/* ---------------------------------------------------------------------- */

static int
cmp_sample(const void *a, const void *b)
{
	uint32_t	x = *(const uint32_t *) a;
	uint32_t	y = *(const uint32_t *) b;

	return x < y ? -1 : x > y;
}

static double
percentile(uint32_t *samples, long n, double p)
{
	if (n == 0)
		return 0;
	qsort(samples, n, sizeof(uint32_t), cmp_sample);
	return samples[(long) (p * (n - 1))] / 1000.0;
}

/* Take a batch and finish it; how many there were. */
static int
take_and_finish(Worker *worker)
{
	char		size[16];
	const char *params[2] = {worker->owner, size};
	PGresult   *result;
	double		from = now();
	int			n;
	char	   *ids;
	char	   *p;

	snprintf(size, sizeof(size), "%d", batch);
	result = check(worker->conn, PQexecPrepared(worker->conn, "claim", 2, params,
												NULL, NULL, 0));
	n = PQntuples(result);
	if (worker->nsamples < MAX_SAMPLES / nconns)
		worker->samples[worker->nsamples++] = (uint32_t) ((now() - from) * 1e6);
	if (seconds > 0)
	{
		int			w = (int) ((now() - started) / WINDOW_SECONDS);

		if (w < MAX_WINDOWS && worker->nwindow[w] < 1000000)
			worker->window[w][worker->nwindow[w]++] = (uint32_t) ((now() - from) * 1e6);
	}
	if (n > 0)
	{
		ids = malloc(n * 21 + 3);
		p = ids;
		*p++ = '{';
		for (int i = 0; i < n; i++)
			p += sprintf(p, "%s%s", i > 0 ? "," : "", PQgetvalue(result, i, 0));
		strcpy(p, "}");
		params[1] = ids;
		PQclear(check(worker->conn, PQexecPrepared(worker->conn, "settle", 2,
												   params, NULL, NULL, 0)));
		free(ids);
	}
	PQclear(result);
	worker->messages += n;
	worker->calls++;
	return n;
}

static void *
drain(void *arg)
{
	while (take_and_finish(arg) > 0)
		;
	return NULL;
}

static void *
consume(void *arg)
{
	while (!stop)
	{
		if (take_and_finish(arg) < batch)
			usleep(2000);
	}
	return NULL;
}

/* Insert at the rate, ten at a time. */
static void *
produce(void *arg)
{
	Worker	   *worker = arg;
	char		payloads[10 * 210 + 3];
	const char *params[1] = {payloads};
	char	   *p = payloads;
	long		mine = 0;
	double		per_second = rate / 2.0;

	*p++ = '{';
	for (int i = 0; i < 10; i++)
		p += sprintf(p, "%s%0200d", i > 0 ? "," : "", i);
	strcpy(p, "}");
	while (!stop)
	{
		double		due = mine / per_second;
		double		ahead = due - (now() - started);

		if (ahead > 0)
			usleep((useconds_t) (ahead * 1e6));
		PQclear(check(worker->conn, PQexecPrepared(worker->conn, "produce", 1,
												   params, NULL, NULL, 0)));
		mine += 10;
		__sync_fetch_and_add(&produced, 10);
	}
	return NULL;
}

static void *
call(void *arg)
{
	Worker	   *worker = arg;

	for (long i = 0; i < count; i++)
	{
		double		from = now();

		PQclear(check(worker->conn, PQexecPrepared(worker->conn, "call", 0, NULL,
												   NULL, NULL, 0)));
		worker->samples[worker->nsamples++] = (uint32_t) ((now() - from) * 1e8);
	}
	return NULL;
}

static void
start_worker(Worker *worker, int i, void *(*run) (void *))
{
	worker->conn = open_connection();
	snprintf(worker->owner, sizeof(worker->owner),
			 "00000000-0000-4000-8000-%012d", i + 1);
	worker->samples = malloc(sizeof(uint32_t) * (MAX_SAMPLES / nconns + 1));
	for (int w = 0; w < MAX_WINDOWS && seconds > 0; w++)
		worker->window[w] = malloc(sizeof(uint32_t) * 1000000);
	if (sys != NULL)
	{
		prepare(worker->conn, "claim", sys->claim);
		prepare(worker->conn, "settle", sys->settle);
		prepare(worker->conn, "produce", sys->produce);
	}
	else
		prepare(worker->conn, "call", call_sql);
	(void) run;
}

/* ---------------------------------------------------------------------- */
/* Commands                                                               */
/* ---------------------------------------------------------------------- */

static void
find_system(const char *name)
{
	for (size_t i = 0; i < sizeof(systems) / sizeof(systems[0]); i++)
	{
		if (strcmp(systems[i].name, name) == 0)
			sys = &systems[i];
	}
	if (sys == NULL)
		die("unknown system \"%s\"", name);
}

static void
run_drain(void)
{
	int			postmaster = postmaster_pid();
	double		wal;
	double		cpu;
	double		elapsed;
	long		messages = 0;
	long		nsamples = 0;
	uint32_t   *samples = malloc(sizeof(uint32_t) * MAX_SAMPLES);

	for (int i = 0; i < nconns; i++)
		start_worker(&workers[i], i, drain);
	wal = wal_position();
	cpu = server_cpu(postmaster);
	started = now();
	for (int i = 0; i < nconns; i++)
		pthread_create(&workers[i].thread, NULL, drain, &workers[i]);
	for (int i = 0; i < nconns; i++)
		pthread_join(workers[i].thread, NULL);
	elapsed = now() - started;
	cpu = server_cpu(postmaster) - cpu;
	wal = wal_position() - wal;
	for (int i = 0; i < nconns; i++)
	{
		messages += workers[i].messages;
		memcpy(samples + nsamples, workers[i].samples,
			   workers[i].nsamples * sizeof(uint32_t));
		nsamples += workers[i].nsamples;
	}
	printf("messages=%ld per_second=%.0f cpu_us=%.2f wal_bytes=%.0f claim_p50_ms=%.3f claim_p99_ms=%.3f\n",
		   messages, messages / elapsed, cpu * 1e6 / messages, wal / messages,
		   percentile(samples, nsamples, 0.5), percentile(samples, nsamples, 0.99));
}

static void
run_pump(void)
{
	int			postmaster = postmaster_pid();
	double		cpu;
	double		wal;
	long		messages = 0;
	int			nwindows = seconds / WINDOW_SECONDS;

	nconns = 2;
	batch = 100;
	for (int i = 0; i < 2; i++)
	{
		start_worker(&workers[i], i, consume);
		start_worker(&producers[i], i, produce);
	}
	wal = wal_position();
	cpu = server_cpu(postmaster);
	started = now();
	for (int i = 0; i < 2; i++)
	{
		pthread_create(&workers[i].thread, NULL, consume, &workers[i]);
		pthread_create(&producers[i].thread, NULL, produce, &producers[i]);
	}
	sleep(seconds);
	stop = true;
	for (int i = 0; i < 2; i++)
	{
		pthread_join(producers[i].thread, NULL);
		pthread_join(workers[i].thread, NULL);
		messages += workers[i].messages;
	}
	cpu = server_cpu(postmaster) - cpu;
	wal = wal_position() - wal;
	printf("messages=%ld per_second=%.0f cpu_us=%.2f wal_bytes=%.0f backlog=%ld p50_ms=",
		   messages, (double) messages / seconds, cpu * 1e6 / messages,
		   wal / messages, produced - messages);
	for (int w = 0; w < nwindows; w++)
	{
		memcpy(workers[0].window[w] + workers[0].nwindow[w], workers[1].window[w],
			   0);
		printf("%s%.3f", w > 0 ? "," : "",
			   percentile(workers[0].window[w], workers[0].nwindow[w], 0.5));
	}
	putchar('\n');
}

static void
run_calls(void)
{
	int			postmaster = postmaster_pid();
	double		cpu;
	double		elapsed;
	long		calls = 0;

	for (int i = 0; i < nconns; i++)
		start_worker(&workers[i], i, call);
	cpu = server_cpu(postmaster);
	started = now();
	for (int i = 0; i < nconns; i++)
		pthread_create(&workers[i].thread, NULL, call, &workers[i]);
	for (int i = 0; i < nconns; i++)
		pthread_join(workers[i].thread, NULL);
	elapsed = now() - started;
	cpu = server_cpu(postmaster) - cpu;
	for (int i = 0; i < nconns; i++)
		calls += workers[i].nsamples;
	printf("calls=%ld per_second=%.0f cpu_us=%.2f p50_us=%.2f p99_us=%.2f\n",
		   calls, calls / elapsed, cpu * 1e6 / calls,
		   percentile(workers[0].samples, workers[0].nsamples, 0.5) * 10,
		   percentile(workers[0].samples, workers[0].nsamples, 0.99) * 10);
}

int
main(int argc, char **argv)
{
	if (argc == 5 && strcmp(argv[1], "drain") == 0)
	{
		find_system(argv[2]);
		nconns = atoi(argv[3]);
		batch = atoi(argv[4]);
		run_drain();
	}
	else if (argc == 5 && strcmp(argv[1], "pump") == 0)
	{
		find_system(argv[2]);
		seconds = atoi(argv[3]);
		rate = atol(argv[4]);
		run_pump();
	}
	else if (argc == 5 && strcmp(argv[1], "calls") == 0)
	{
		nconns = atoi(argv[2]);
		count = atol(argv[3]);
		call_sql = argv[4];
		run_calls();
	}
	else
		die("usage: drive drain SYSTEM CONNS BATCH | pump SYSTEM SECONDS RATE | calls CONNS COUNT SQL");
	return 0;
}
