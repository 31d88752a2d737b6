/*
 * bench.c
 *		outbox bench: how fast it is here
 *
 * Messages go through a topic of its own, in a namespace of its own, which are removed
 * at the end. Each client is a process with a connection; it does its share and says
 * how long each call took.
 */
#include "postgres_fe.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/logging.h"
#include "pqexpbuffer.h"

#include "child.h"
#include "commands.h"
#include "database.h"
#include "terminal.h"
#include "text.h"

#define MAX_CLIENTS 64
#define MAX_TIMES 20000

static int	messages = 10000;
static int	payload_bytes = 200;
static int	batch = 100;
static int	clients = 2;
static int	wakeups = 100;

static const Option bench_options[] = {
	{"messages", 'n', OPTION_NUMBER, &messages, "N", "how many messages (10000)", 1, 10000000},
	{"size", 0, OPTION_NUMBER, &payload_bytes, "BYTES", "of each payload (200)", 0, 1000000},
	{"batch", 'b', OPTION_NUMBER, &batch, "N", "messages of a call (100)", 1, 10000},
	{"clients", 'j', OPTION_NUMBER, &clients, "N", "connections at a time (2)", 1, MAX_CLIENTS},
	{"wakeups", 0, OPTION_NUMBER, &wakeups, "N", "how often a claim that waits is woken (100)", 0, 10000},
	CHANGE_OPTIONS,
	{NULL}
};

/* What a client reports: its messages, and how long its calls took, in seconds. */
typedef struct Report
{
	long long	messages;
	int			count;
	double		times[MAX_TIMES];
} Report;

/* What one of the measurements has come to. */
typedef struct Measured
{
	const char *name;
	const char *unit;			/* of a call: what its times are of */
	long long	messages;
	double		seconds;
	int			count;
	double	   *times;			/* in order */
} Measured;

static bool failed = false;
static char topic[] = "bench";
static char namespace[64];

/* The time of a call; only so many are kept. */
static void
note_time(Report *report, double seconds)
{
	if (report->count < MAX_TIMES)
		report->times[report->count++] = seconds;
}

/* Enqueue this many. */
static void
enqueue_share(Report *report, int share)
{
	while (share > 0)
	{
		int			now = Min(share, batch);
		double		began = now_seconds();

		PQclear(query("SELECT cardinality(outbox.enqueue_many($1::text, array_fill(repeat('x', $2::integer), ARRAY[$3::integer]), $4::text))",
					  topic, number_text(payload_bytes), number_text(now), namespace, NO_MORE));
		note_time(report, now_seconds() - began);
		report->messages += now;
		share -= now;
	}
}

/* Claim and acknowledge until there is nothing left. */
static void
drain_share(Report *report, int share)
{
	for (;;)
	{
		double		began = now_seconds();
		PGresult   *claimed = query("SELECT min(c.owner_token::text), array_agg(c.id) FROM outbox.claim(NULL, 60, $1::integer, $2::text, ARRAY[$3::text]) c",
									number_text(batch), namespace, topic, NO_MORE);
		PGresult   *acked;

		if (PQgetisnull(claimed, 0, 0))
		{
			PQclear(claimed);
			return;
		}
		acked = query("SELECT outbox.ack($1::uuid, $2::bigint[])", PQgetvalue(claimed, 0, 0), PQgetvalue(claimed, 0, 1), NO_MORE);
		note_time(report, now_seconds() - began);
		report->messages += strtoll(PQgetvalue(acked, 0, 0), NULL, 10);
		PQclear(acked);
		PQclear(claimed);
	}
}

/*
 * Wait for messages, one after the other; a time is that from the moment of the
 * enqueue, as the payload says, to the return of the claim.
 */
static void
wait_share(Report *report, int share)
{
	while (share > 0)
	{
		/* not by query: a claim that waits should not be in a transaction */
		const char *values[] = {namespace, topic};
		PGresult   *claimed = PQexecParams(connection, "SELECT c.owner_token, c.id, c.payload"
										   " FROM outbox.claim(NULL, 60, 1, $1::text, ARRAY[$2::text], wait_ms => 10000) c",
										   2, NULL, values, NULL, NULL, 0);

		if (PQresultStatus(claimed) != PGRES_TUPLES_OK)
			fail_query(connection, claimed);
		if (PQntuples(claimed) > 0)
		{
			note_time(report, now_seconds() - strtod(PQgetvalue(claimed, 0, 2), NULL));
			PQclear(query("SELECT outbox.ack_one($1::uuid, $2::bigint)", PQgetvalue(claimed, 0, 0), PQgetvalue(claimed, 0, 1), NO_MORE));
			report->messages++;
			share--;
		}
		PQclear(claimed);
	}
}

/* Enqueue one message after the other for a claim that waits. */
static void
wake_share(Report *report, int share)
{
	while (share-- > 0)
	{
		char		payload[64];

		usleep(5000);			/* until the claim waits again */
		snprintf(payload, sizeof(payload), "%.6f", now_seconds());
		PQclear(query("SELECT outbox.enqueue($1::text, $2::text, namespace => $3::text)", topic, payload, namespace, NO_MORE));
	}
}

/* Write or read all of it. */
static bool
transfer(bool out, int fd, void *data, size_t length)
{
	char	   *at = data;

	while (length > 0)
	{
		ssize_t		done = out ? write(fd, at, length) : read(fd, at, length);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return false;
		at += done;
		length -= done;
	}
	return true;
}

/*
 * Start a client, a process with a connection of its own that does this share of the
 * work. Its report can be read from what is returned.
 */
static int
start_client(void (*work) (Report *, int), int share)
{
	int			ends[2];
	pid_t		pid;

	fflush(NULL);
	if (pipe(ends) != 0 || (pid = fork()) < 0)
		pg_fatal("could not create a process: %m");
	if (pid == 0)
	{
		Report	   *report = pg_malloc0(sizeof(Report));

		close(ends[0]);
		signal(SIGINT, SIG_DFL);
		signal(SIGTERM, SIG_DFL);
		connection = open_connection(false);
		if (connection == NULL)
			_exit(EXIT_CONNECTION);
		work(report, share);
		PQfinish(connection);
		_exit(transfer(true, ends[1], report, sizeof(*report)) ? 0 : EXIT_TROUBLE);
	}
	close(ends[1]);
	return ends[0];
}

static int
compare_times(const void *left, const void *right)
{
	double		a = *(const double *) left;
	double		b = *(const double *) right;

	return a < b ? -1 : a > b;
}

/* Have clients share the work, and collect what they report. */
static Measured
measure(const char *name, const char *unit, void (*work) (Report *, int), int workers, int total)
{
	Measured	measured = {.name = name,.unit = unit};
	Report	   *report = pg_malloc(sizeof(Report));
	int			ends[MAX_CLIENTS];
	double		began = now_seconds();

	if (isatty(STDERR_FILENO) && !common.json)
		fprintf(stderr, "\r%s ...\033[K", name);
	for (int i = 0; i < workers; i++)
		ends[i] = start_client(work, total / workers + (i < total % workers));
	for (int i = 0; i < workers; i++)
	{
		bool		reported = transfer(false, ends[i], report, sizeof(*report));

		close(ends[i]);
		failed = failed || !reported;	/* the client has said why */
		if (!reported)
			continue;
		measured.messages += report->messages;
		measured.times = pg_realloc(measured.times, (measured.count + report->count + 1) * sizeof(double));
		memcpy(measured.times + measured.count, report->times, report->count * sizeof(double));
		measured.count += report->count;
	}
	measured.seconds = now_seconds() - began;
	while (wait(NULL) > 0)
		;
	qsort(measured.times, measured.count, sizeof(double), compare_times);
	pg_free(report);
	if (isatty(STDERR_FILENO) && !common.json)
		fputs("\r\033[K", stderr);
	return measured;
}

/* The time that this share of the calls did not exceed. */
static double
percentile(const Measured *measured, double share)
{
	return measured->count == 0 ? 0 : measured->times[(int) floor((measured->count - 1) * share)];
}

/* Append milliseconds. */
static void
append_milliseconds(PQExpBuffer out, double seconds)
{
	char		text[32];

	snprintf(text, sizeof(text), "%.2f", seconds * 1000);
	append_fitted(out, text, 10, true);
}

/* Print what was measured. */
static void
print_measured(const Measured *measured, int count)
{
	PQExpBufferData out;

	initPQExpBuffer(&out);
	if (!common.json)
		appendPQExpBuffer(&out, "%s%-28s%10s%10s%10s%10s%s\n", style_on(STYLE_HEADER), "", "PER SECOND",
						  "MEDIAN ms", "95 % ms", "99 % ms", style_off(STYLE_HEADER));
	for (int i = 0; i < count; i++)
	{
		const Measured *m = &measured[i];
		double		rate = m->messages / m->seconds;

		if (common.json)
		{
			appendPQExpBuffer(&out, "%s{\"name\": \"%s\", \"messages\": %lld, \"seconds\": %.3f, \"per_second\": %.1f,"
							  " \"median_ms\": %.3f, \"p95_ms\": %.3f, \"p99_ms\": %.3f, \"times_are_of\": \"%s\"}",
							  i > 0 ? ",\n " : "[", m->name, m->messages, m->seconds, rate, percentile(m, 0.5) * 1000,
							  percentile(m, 0.95) * 1000, percentile(m, 0.99) * 1000, m->unit);
			continue;
		}
		append_fitted(&out, m->name, 18, false);
		appendPQExpBufferStr(&out, style_on(STYLE_DIM));
		append_fitted(&out, m->unit, 10, false);
		appendPQExpBufferStr(&out, style_off(STYLE_DIM));
		if (strcmp(m->unit, "wake-up") == 0)
			append_fitted(&out, "", 10, true);
		else
		{
			PQExpBufferData text;

			initPQExpBuffer(&text);
			append_count(&text, llround(rate));
			append_fitted(&out, text.data, 10, true);
			termPQExpBuffer(&text);
		}
		append_milliseconds(&out, percentile(m, 0.5));
		append_milliseconds(&out, percentile(m, 0.95));
		append_milliseconds(&out, percentile(m, 0.99));
		appendPQExpBufferChar(&out, '\n');
	}
	if (common.json)
		appendPQExpBufferStr(&out, "]\n");
	put_out(&out);
	termPQExpBuffer(&out);
}

/*
 * Wake a claim that waits: the waiting client's times are what counts. Both clients
 * run at a time.
 */
static Measured
measure_wakeups(void)
{
	/* nothing is of interest in the other one's report */
	close(start_client(wake_share, wakeups));
	return measure("wake a claim", "wake-up", wait_share, 1, wakeups);
}

/* outbox bench */
static int
run_bench(int count, char **arguments)
{
	Measured	measured[4];
	int			done = 0;
	bool		is_admin = may_call("purge_topic");
	int			single = Min(messages, 1000);

	if (dry_run)
	{
		printf("would send %d messages of %d bytes through a topic of its own\n", messages, payload_bytes);
		return 0;
	}
	if (!confirm(CHANGES, assume_yes, "Send %d messages of %d bytes through %s", messages, payload_bytes, PQdb(connection)))
		return EXIT_TROUBLE;
	snprintf(namespace, sizeof(namespace), "outbox bench %d %ld", (int) getpid(), (long) time(NULL));
	/* what is done is not kept, if that can be asked for */
	show_notices = false;
	if (is_admin)
		PQclear(query("SELECT outbox.configure_topic($1::text, $2::text, retention => '0')", topic, namespace, NO_MORE));

	show_notices = true;

	/*
	 * from here on an interrupt ends the clients, and what they made is
	 * removed
	 */
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	measured[done++] = measure("enqueue", "batch", enqueue_share, clients, messages);
	measured[done++] = measure("claim and ack", "batch", drain_share, clients, messages);
	batch = 1;
	measured[done++] = measure("enqueue one", "call", enqueue_share, clients, single);
	measure("", "", drain_share, 1, 0);
	if (wakeups > 0 && !failed)
		measured[done++] = measure_wakeups();
	if (is_admin)
	{
		PQclear(query("SELECT outbox.purge_topic($1::text, $2::text, 'all')", topic, namespace, NO_MORE));
		PQclear(query("SELECT outbox.reset_topic($1::text, $2::text)", topic, namespace, NO_MORE));
	}
	if (failed)
		return EXIT_TROUBLE;
	print_measured(measured, done);
	return 0;
}

const Command bench_command = {
	.name = "bench",
	.arguments = "",
	.summary = "Measure how fast it is here",
	.details = "Sends messages through a namespace of its own, with their own policy, and removes both. What is\n"
	"measured is this server, this network and this program together. The role needs what\n"
	"outbox.grant_producer() and outbox.grant_worker() grant; without those of an admin, the messages\n"
	"are kept like others when they are done.\n"
	"With --json, one document: an array of objects.",
	.example = "outbox bench -n 50000 -j 4 --yes",
	.options = bench_options,
	.run = run_bench
};
