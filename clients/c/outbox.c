/*
 * outbox.c
 *	  The functions of outbox.h that enqueue and publish.
 *
 * One message is sent as a batch of one.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "outbox.h"

static const char *const advance_sql =
	"SELECT coalesce(sum(outbox.reschedule(ARRAY[id], next_attempt_at - $1::interval)), 0)"
	" FROM outbox.messages WHERE state = 'ready' AND next_attempt_at > clock_timestamp()";

/* A string that grows.  Without memory, the process ends. */
typedef struct text
{
	char	   *s;
	size_t		length,
				size;
} text;

static void
append_bytes(text *t, const char *bytes, size_t count)
{
	if (t->length + count + 1 > t->size)
	{
		t->size = 2 * (t->length + count + 1);
		if ((t->s = realloc(t->s, t->size)) == NULL)
			abort();
	}
	memcpy(t->s + t->length, bytes, count);
	t->length += count;
	t->s[t->length] = '\0';
}

static void __attribute__((format(printf, 2, 3)))
append(text *t, const char *format, ...)
{
	char		small[256];
	va_list		arguments;

	va_start(arguments, format);
	vsnprintf(small, sizeof(small), format, arguments);
	va_end(arguments);
	append_bytes(t, small, strlen(small));
}

static void
append_json(text *t, const char *s)
{
	append_bytes(t, "\"", 1);
	for (; *s; s++)
	{
		if (*s == '"' || *s == '\\')
			append(t, "\\%c", *s);
		else if ((unsigned char) *s < ' ')
			append(t, "\\u%04x", *s);
		else
			append_bytes(t, s, 1);
	}
	append_bytes(t, "\"", 1);
}

/* The messages as JSON, as the batch forms take them */
static char *
batch_json(const outbox_new *messages, size_t count)
{
	text		t = {0};

	append(&t, "[");
	for (const outbox_new *m = messages; m < messages + count; m++)
	{
		const outbox_options *o = &m->options;
		const char *trace = o->traceparent ? o->traceparent : getenv("TRACEPARENT");
		const char *const named[][2] = {
			{"topic", m->topic}, {"payload", m->payload}, {"correlation_id", o->correlation_id},
			{"due_time", o->due_time}, {"namespace", o->namespace}, {"tenant_id", o->tenant_id},
			{"dedupe_key", o->dedupe_key}, {"stream_id", o->stream_id},
			{"expires_at", o->expires_at}, {"message_id", o->message_id},
			{"dedupe_for", o->dedupe_for}, {"on_duplicate", o->on_duplicate}
		};

		append(&t, m > messages ? ",{" : "{");
		for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++)
		{
			if (named[i][1] == NULL)
				continue;
			append(&t, "%s\"%s\":", i ? "," : "", named[i][0]);
			append_json(&t, named[i][1]);
		}
		if (o->priority)
			append(&t, ",\"priority\":%s", o->priority);
		if (trace || o->headers)
			append(&t, ",\"headers\":{");
		if (trace)
		{
			append(&t, "\"traceparent\":");
			append_json(&t, trace);
		}
		if (o->headers)
		{
			/* of two keys the last counts, so theirs goes before ours */
			const char *inner = strchr(o->headers, '{');

			inner = inner ? inner + 1 + strspn(inner + 1, " \t\r\n") : o->headers;
			append(&t, trace && *inner != '}' ? "," : "");
			append_bytes(&t, inner, strlen(inner));
		}
		else if (trace)
			append(&t, "}");
		append(&t, "}");
	}
	append(&t, "]");
	return t.s;
}

static PGresult *
query(PGconn *conn, const char *sql, int count, const char *const *values)
{
	return PQexecParams(conn, sql, count, NULL, values, NULL, NULL, 0);
}

static bool
send_batch(PGconn *conn, const char *sql, const outbox_new *messages, size_t count,
		   outbox_result *results)
{
	char	   *json = batch_json(messages, count);
	PGresult   *result = query(conn, sql, 1, (const char *const *) &json);
	bool		done = PQresultStatus(result) == PGRES_TUPLES_OK;

	for (int i = 0; done && results && i < PQntuples(result); i++)
	{
		outbox_result *r = &results[i];

		memset(r, 0, sizeof(*r));
		snprintf(r->message_id, sizeof(r->message_id), "%s", PQgetvalue(result, i, 0));
		r->enqueued = *PQgetvalue(result, i, 1) == 't';
		snprintf(r->outcome, sizeof(r->outcome), "%s", PQgetvalue(result, i, 2));
		r->deliveries = atoi(PQgetvalue(result, i, 3));
	}
	PQclear(result);
	free(json);
	return done;
}

bool
outbox_enqueue_batch(PGconn *conn, const outbox_new *messages, size_t count,
					 outbox_result *results)
{
	return send_batch(conn, "SELECT message_id, enqueued, outcome, 0"
					  " FROM outbox.enqueue_batch($1::jsonb) ORDER BY ordinal", messages, count, results);
}

bool
outbox_publish_batch(PGconn *conn, const outbox_new *messages, size_t count,
					 outbox_result *results)
{
	return send_batch(conn, "SELECT message_id, true, '', deliveries"
					  " FROM outbox.publish_batch($1::jsonb) ORDER BY ordinal", messages, count, results);
}

static bool
send_one(PGconn *conn, const char *topic, const char *payload, const outbox_options *options,
		 char *id, bool (*send) (PGconn *, const outbox_new *, size_t, outbox_result *))
{
	outbox_new	message = {.topic = topic, .payload = payload};
	outbox_result result;

	if (options)
		message.options = *options;
	if (!send(conn, &message, 1, &result))
		return false;
	if (id)
		memcpy(id, result.message_id, sizeof(result.message_id));
	return true;
}

bool
outbox_enqueue(PGconn *conn, const char *topic, const char *payload,
			   const outbox_options *options, char id[37])
{
	return send_one(conn, topic, payload, options, id, outbox_enqueue_batch);
}

bool
outbox_publish(PGconn *conn, const char *topic, const char *payload,
			   const outbox_options *options, char id[37])
{
	return send_one(conn, topic, payload, options, id, outbox_publish_batch);
}

int
outbox_advance(PGconn *conn, double seconds)
{
	char		interval[40];
	const char *values[] = {interval};
	PGresult   *result;
	int			count = -1;

	snprintf(interval, sizeof(interval), "%f s", seconds);
	result = query(conn, advance_sql, 1, values);
	if (PQresultStatus(result) == PGRES_TUPLES_OK)
		count = atoi(PQgetvalue(result, 0, 0));
	PQclear(result);
	return count;
}
