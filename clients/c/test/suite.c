/*
 * suite.c
 *	  The suite of the C client: suite produce | send | drain | worker; see ../../test/run.py.
 */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "outbox.h"

#define TENANT "00000000-0000-4000-8000-0000000000aa"
#define GIVEN "01234567-0000-4000-8000-000000000042"

static atomic_bool repeated;

static void __attribute__((format(printf, 1, 2)))
say(const char *format, ...)
{
	char		line[2000];
	va_list		arguments;

	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	puts(line);
}

static void
check(const char *name, const char *got, const char *expected)
{
	say("%s - %s", strcmp(got, expected) == 0 ? "ok" : "not ok", name);
	if (strcmp(got, expected) != 0)
		say("# got %s, not %s", got, expected);
}

static void
check_number(const char *name, int got, int expected)
{
	char		a[12],
				b[12];

	snprintf(a, sizeof(a), "%d", got);
	snprintf(b, sizeof(b), "%d", expected);
	check(name, a, b);
}

static void
run(PGconn *conn, const char *sql)
{
	PGresult   *result = PQexec(conn, sql);

	if (PQresultStatus(result) == PGRES_FATAL_ERROR)
		say("not ok - %s: %s", sql, PQerrorMessage(conn));
	PQclear(result);
}

static void
enqueue(PGconn *conn, const char *topic, const char *payload, const outbox_options *options, char *id)
{
	if (!outbox_enqueue(conn, topic, payload, options, id))
		say("not ok - enqueue: %s", PQerrorMessage(conn));
}

static void
produce(void)
{
	PGconn	   *conn = PQconnectdb("");
	char		id[37];
	outbox_result results[3];
	outbox_options given = {
		.correlation_id = "c-1", .due_time = "2030-01-02T03:04:05Z", .namespace = "shop",
		.tenant_id = TENANT, .dedupe_key = "000000000000400080000000000000aa/k",
		.stream_id = "00000000-0000-4000-8000-000000000007", .headers = "{\"region\": \"eu\"}",
		.expires_at = "2031-01-02T03:04:05Z", .message_id = GIVEN, .dedupe_for = "1 hour",
		.on_duplicate = "keep", .priority = "1", .traceparent = "00-argument"
	};
	outbox_options own = {.headers = "{\"traceparent\": \"own\"}"};
	outbox_new	batch[] = {{"p.batch", "one", {0}}, {"p.batch", "{\"n\": 2}", {.dedupe_key = "twin"}},
	{"p.batch", "three", {.dedupe_key = "twin"}}};
	outbox_new	news[] = {{"p.news", "2", {0}}, {"p.news", "3", {.headers = "{}"}}};

	run(conn, "BEGIN");
	enqueue(conn, "p.rolled-back", "x", NULL, NULL);
	run(conn, "ROLLBACK");
	run(conn, "BEGIN");
	run(conn, "INSERT INTO orders VALUES ('c')");
	enqueue(conn, "p.committed", "{\"order\": 7}", NULL, NULL);
	enqueue(conn, "p.text", "plain \"text\" \303\251", NULL, NULL);
	enqueue(conn, "p.options", "x", &given, id);
	enqueue(conn, "p.trace", "x", NULL, NULL);
	enqueue(conn, "p.own", "x", &own, NULL);
	run(conn, "COMMIT");
	check("enqueue answers the message_id", id, GIVEN);
	given.priority = "7";
	check("a bad option is an error", outbox_enqueue(conn, "p.unknown", "x", &given, id) ? "none" : "error", "error");
	outbox_enqueue_batch(conn, batch, 3, results);
	check("a batch says what is new", results[1].outcome, "enqueued");
	check("and what is not", results[2].outcome, "kept");
	check("and whose a key is", results[1].message_id, results[2].message_id);
	outbox_publish(conn, "p.news", "first", NULL, NULL);
	outbox_publish_batch(conn, news, 2, results);
	check_number("publish_batch counts deliveries", results[0].deliveries + results[1].deliveries, 2);
	PQfinish(conn);
}

/* Lines of run.py: how a transaction ends, and its messages, as topic,payload,stream. */
static void
send_lines(void)
{
	PGconn	   *conn = PQconnectdb("");
	char		line[20000];
	outbox_new	messages[20];
	outbox_result results[20];

	while (fgets(line, sizeof(line), stdin))
	{
		char	   *rest,
				   *how = strtok_r(line, " \n", &rest),
				   *word;
		int			count = 0;
		bool		published;

		while ((word = strtok_r(NULL, " \n", &rest)))
		{
			char	   *at;
			outbox_new	*m = &messages[count++];

			*m = (outbox_new) {.topic = strtok_r(word, ",", &at), .payload = strtok_r(NULL, ",", &at)};
			m->options.stream_id = at[0] == '-' ? NULL : at;
		}
		if (PQstatus(conn) != CONNECTION_OK)
			PQreset(conn);
		PQclear(PQexec(conn, "BEGIN"));
		published = strncmp(messages[0].topic, "pub.", 4) == 0;
		if ((published ? outbox_publish : outbox_enqueue) (conn, messages[0].topic, messages[0].payload,
															&messages[0].options, NULL) &&
			(published ? outbox_publish_batch : outbox_enqueue_batch) (conn, messages + 1, count - 1, results))
			PQclear(PQexec(conn, how));
		else
		{
			say("failed %s", PQerrorMessage(conn));
			PQclear(PQexec(conn, "ROLLBACK"));
		}
	}
	PQfinish(conn);
}

static atomic_int seen;

static outbox_outcome
ok(outbox_message *m, PGconn *conn, void *data)
{
	seen++;
	return OUTBOX_ACK;
}

static outbox_outcome
permanent(outbox_message *m, PGconn *conn, void *data)
{
	return outbox_permanent(m, "no such order", 4);
}

static outbox_outcome
hour(outbox_message *m, PGconn *conn, void *data)
{
	return atoi(m->attempts) == 1 ? outbox_retry(m, "later", 3600) : OUTBOX_ACK;
}

static char order[10];

static outbox_outcome
ordered(outbox_message *m, PGconn *conn, void *data)
{
	strcat(order, m->payload);
	return strlen(order) == 1 ? outbox_retry(m, "again", 0) : OUTBOX_ACK;
}

static void
drain(void)
{
	PGconn	   *conn = PQconnectdb("");
	outbox_worker_options options = {.concurrency = 2};
	outbox_worker *worker = outbox_worker_new("", &options);
	time_t		later = time(NULL) + 3600;
	char		due[30];
	outbox_options put_off = {.due_time = due},
				streamed = {.stream_id = "00000000-0000-4000-8000-000000000007"};
	PGresult   *result;

	strftime(due, sizeof(due), "%FT%TZ", gmtime(&later));
	outbox_handle(worker, "d.ok", ok, NULL, false, 0);
	outbox_handle(worker, "d.fail", permanent, NULL, false, 0);
	outbox_handle(worker, "d.retry", hour, NULL, false, 0);
	outbox_handle(worker, "d.stream", ordered, NULL, false, 0);
	for (int i = 0; i < 3; i++)
		enqueue(conn, "d.ok", "x", NULL, NULL);
	enqueue(conn, "d.ok", "in an hour", &put_off, NULL);
	enqueue(conn, "d.fail", "x", NULL, NULL);
	enqueue(conn, "d.retry", "x", NULL, NULL);
	enqueue(conn, "d.stream", "1", &streamed, NULL);
	enqueue(conn, "d.stream", "2", &streamed, NULL);
	check_number("drain handles what is due", outbox_drain(worker), 6);
	check_number("and nothing else", seen, 3);
	result = PQexec(conn, "SELECT last_error FROM outbox.messages WHERE topic = 'd.fail' AND failure_reason = 4");
	check("what is dead says why", PQgetvalue(result, 0, 0), "no such order");
	PQclear(result);
	check("a message once, and none of its stream after one that goes back", order, "1");
	check_number("the next drain goes on", outbox_drain(worker), 2);
	check("in order", order, "112");
	check_number("time does not pass by itself", outbox_drain(worker), 0);
	check_number("advance moves it", outbox_advance(conn, 3660), 2);
	check_number("and drain follows", outbox_drain(worker), 2);
	check_number("to the end", seen, 4);
	outbox_worker_free(worker);
	PQfinish(conn);
}

static outbox_outcome
slow(outbox_message *m, double seconds)
{
	if (outbox_sleep(m, seconds))
	{
		say("cancelled %s", m->id);
		return OUTBOX_LOST;
	}
	say("handled %s %s %s", m->message_id, m->topic, m->attempts);
	return OUTBOX_ACK;
}

static outbox_outcome
handled(outbox_message *m, PGconn *conn, void *data)
{
	return slow(m, 0);
}

static outbox_outcome
trace(outbox_message *m, PGconn *conn, void *data)
{
	say("trace %s", m->traceparent);
	return OUTBOX_ACK;
}

static outbox_outcome
do_sql(outbox_message *m, PGconn *conn, const char *sql)
{
	PGresult   *result = PQexec(conn, sql);
	outbox_outcome outcome = PQresultStatus(result) == PGRES_COMMAND_OK ? OUTBOX_ACK : outbox_failed(m, result);

	PQclear(result);
	return outcome;
}

static outbox_outcome
effect(outbox_message *m, PGconn *conn, void *data)
{
	char		sql[200];

	snprintf(sql, sizeof(sql), "INSERT INTO effects VALUES ('%s', %s)", m->message_id, m->attempts);
	return do_sql(m, conn, sql);
}

static outbox_outcome
serial(outbox_message *m, PGconn *conn, void *data)
{
	outbox_outcome outcome = effect(m, conn, data);

	if (outcome != OUTBOX_ACK || atomic_exchange(&repeated, true))
		return outcome;
	return do_sql(m, conn, "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$");
}

static outbox_outcome
failing(outbox_message *m, PGconn *conn, void *data)
{
	outbox_outcome outcome = effect(m, conn, data);

	return atoi(m->attempts) == 1 ? OUTBOX_RETRY : outcome;
}

static outbox_outcome
text(outbox_message *m, PGconn *conn, void *data)
{
	char		said[4000] = "";

	for (int i = 0; i < 1500; i++)
		strcat(said, i == 499 ? "\377" : "\303\251");
	return outbox_permanent(m, said, 4);
}

static outbox_outcome
reason(outbox_message *m, PGconn *conn, void *data)
{
	return outbox_permanent(m, "no such reason", 1000000000);
}

static outbox_outcome
odd(outbox_message *m, PGconn *conn, void *data)
{
	return atoi(m->attempts) == 1 ? (outbox_outcome) 99 : slow(m, 0);
}

static outbox_outcome
retry(outbox_message *m, PGconn *conn, void *data)
{
	return atoi(m->attempts) == 1 ? outbox_retry(m, "later", 0.2) : slow(m, 0);
}

static outbox_outcome
error(outbox_message *m, PGconn *conn, void *data)
{
	return atoi(m->attempts) == 1 ? OUTBOX_RETRY : slow(m, 0);
}

static outbox_outcome
slowly(outbox_message *m, PGconn *conn, void *data)
{
	return slow(m, atof(strpbrk(m->payload, "0123456789")));
}

static outbox_outcome
late(outbox_message *m, PGconn *conn, void *data)
{
	return slow(m, atoi(m->attempts) == 1 ? 5 : 0);
}

static outbox_outcome
stream(outbox_message *m, PGconn *conn, void *data)
{
	say("stream %s", m->payload);
	outbox_sleep(m, 0.02);
	if (strcmp(m->payload, "3") == 0 && atoi(m->attempts) == 1)
		return outbox_retry(m, "again", 0);
	say("passed %s", m->payload);
	return OUTBOX_ACK;
}

static outbox_outcome
delivered(outbox_message *m, PGconn *conn, void *data)
{
	say("delivered %s %s %s", m->subscription, m->published_id, m->payload);
	return OUTBOX_ACK;
}

static void
hook(const outbox_event *e, void *data)
{
	if (strcmp(e->name, "claimed") == 0)
		say("event claimed %d %d", e->count, e->asked);
	else if (strcmp(e->name, "settled") == 0)
		say("event settled %d %d", e->count, e->lost);
	else if (strcmp(e->name, "finished") == 0)
		say("event finished %s %s", e->message->id, e->outcome);
	else
		say("event %s %s", e->name, e->message ? e->message->id : e->error);
}

static outbox_outcome
wrap(outbox_message *m, PGconn *conn, outbox_handler call, void *handler_data, void *data)
{
	say("begin %s %s", m->id, m->topic);
	return call(m, conn, handler_data);
}

static double
number(const char *name, double value)
{
	return getenv(name) ? atof(getenv(name)) : value;
}

static void
work(void)
{
	outbox_worker_options options = {
		.concurrency = number("CONCURRENCY", 4), .lease_seconds = number("LEASE_SECONDS", 30),
		.shutdown_seconds = number("SHUTDOWN_SECONDS", 10), .subscription = getenv("SUBSCRIPTION"),
		.hook = hook, .wrap = wrap
	};
	outbox_worker *worker = outbox_worker_new("", &options);

	if (options.subscription)
		outbox_handle(worker, "*", delivered, NULL, false, 0);
	else
	{
		outbox_handle(worker, "w.ok", handled, NULL, false, 0);
		outbox_handle(worker, "w.trace", trace, NULL, false, 0);
		outbox_handle(worker, "w.tx", effect, NULL, true, 0);
		outbox_handle(worker, "w.serial", serial, NULL, true, 0);
		outbox_handle(worker, "w.txfail", failing, NULL, true, 0);
		outbox_handle(worker, "w.permanent", permanent, NULL, false, 0);
		outbox_handle(worker, "w.retry", retry, NULL, false, 0);
		outbox_handle(worker, "w.error", error, NULL, false, 0);
		outbox_handle(worker, "w.slow", slowly, NULL, false, 0);
		outbox_handle(worker, "w.timeout", late, NULL, false, number("TIMEOUT_SECONDS", 0.3));
		outbox_handle(worker, "w.text", text, NULL, false, 0);
		outbox_handle(worker, "w.reason", reason, NULL, false, 0);
		outbox_handle(worker, "w.odd", odd, NULL, false, 0);
		outbox_handle(worker, "w.stream", stream, NULL, false, 0);
	}
	if (!outbox_run(worker))
	{
		say("error %s", outbox_worker_error(worker));
		exit(1);
	}
	say("ended");
	outbox_worker_free(worker);
}

int
main(int count, char **arguments)
{
	const char *command = count > 1 ? arguments[1] : "";

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (strcmp(command, "produce") == 0)
		produce();
	else if (strcmp(command, "send") == 0)
		send_lines();
	else if (strcmp(command, "drain") == 0)
		drain();
	else
		work();
	return 0;
}
