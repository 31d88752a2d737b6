/*
 * send.c
 *		outbox enqueue and outbox publish
 *
 * The payload is an argument, or comes from a file or standard input: all of it, or a
 * message for each line. Lines are sent a thousand in a transaction.
 */
#include "postgres_fe.h"

#include <unistd.h>

#include "common/logging.h"
#include "pqexpbuffer.h"

#include "commands.h"
#include "database.h"
#include "json.h"
#include "terminal.h"
#include "text.h"

#define LINES_AT_ONCE 1000
#define BYTES_AT_ONCE (16 * 1024 * 1024)

static char *correlation;
static char *due;
static char *namespace = "default";
static char *tenant;
static char *dedupe_key;
static char *stream;
static char *headers;
static char *expires;
static char *message_id;
static char *dedupe_for;
static char *on_duplicate;
static char *file;
static TextList header_list;
static int	priority = -9;
static bool lines;

static const Option send_options[] = {
	{"namespace", 0, OPTION_TEXT, &namespace, "NAME", "namespace (default)"},
	{"file", 'f', OPTION_TEXT, &file, "FILE", "the payload is in this file; - is standard input"},
	{"lines", 'l', OPTION_FLAG, &lines, NULL, "a message for each line of it"},
	{"header", 'H', OPTION_LIST, &header_list, "NAME=VALUE", "a header; can be repeated"},
	{"headers", 0, OPTION_TEXT, &headers, "JSON", "headers, as a JSON object"},
	{"correlation-id", 0, OPTION_TEXT, &correlation, "TEXT", "correlation id"},
	{"due", 0, OPTION_TEXT, &due, "TIME", "not before: a timestamp, or '+10 minutes'"},
	{"expires", 0, OPTION_TEXT, &expires, "TIME", "not from then on: a timestamp, or '+1 day'"},
	{"stream", 0, OPTION_TEXT, &stream, "UUID", "in order with the others of this stream"},
	{"priority", 0, OPTION_NUMBER, &priority, "N", "from -2 (can wait) to 2 (urgent)", -2, 2},
	{"tenant", 0, OPTION_TEXT, &tenant, "UUID", "tenant"},
	{"dedupe-key", 0, OPTION_TEXT, &dedupe_key, "TEXT", "at most one message has it"},
	{"dedupe-for", 0, OPTION_TEXT, &dedupe_for, "INTERVAL", "for so long, as in '1 hour'"},
	{"on-duplicate", 0, OPTION_TEXT, &on_duplicate, "WORD", "keep, replace or debounce"},
	{"message-id", 0, OPTION_TEXT, &message_id, "UUID", "message_id, in place of a new one"},
	CHANGE_OPTIONS,
	{NULL}
};

/*
 * The parameters of every call but topic and payload, from $3 on. A time may be given
 * as an interval from now, with a plus before it.
 */
#define TIME_OF(n) "CASE WHEN " n "::text LIKE '+%' THEN clock_timestamp() + substr(" n "::text, 2)::interval ELSE " n "::timestamptz END"
#define SEND_ARGUMENTS \
	"correlation_id => $3::text, due_time => " TIME_OF("$4") ", namespace => $5::text, tenant_id => $6::uuid," \
	" dedupe_key => $7::text, stream_id => $8::uuid, headers => $9::jsonb, expires_at => " TIME_OF("$10") "," \
	" message_id => $11::uuid, dedupe_for => $12::interval, on_duplicate => coalesce($13::text, 'keep')," \
	" priority => $14::integer"

static const char *const enqueue_sql =
"SELECT r.message_id, r.enqueued, r.outcome FROM outbox.try_enqueue($1::text, $2::text, " SEND_ARGUMENTS ") r";

static const char *const enqueue_lines_sql =
"SELECT r.message_id, r.enqueued, r.outcome"
"  FROM unnest($2::text[]) WITH ORDINALITY p(payload, place)"
" CROSS JOIN LATERAL outbox.try_enqueue($1::text, p.payload, " SEND_ARGUMENTS ") r";

static const char *const publish_sql =
"SELECT outbox.publish($1::text, $2::text, " SEND_ARGUMENTS ") AS message_id";

static const char *const publish_lines_sql =
"SELECT outbox.publish($1::text, p.payload, " SEND_ARGUMENTS ") AS message_id"
"  FROM unnest($2::text[]) WITH ORDINALITY p(payload, place)";

/* Append what can be read, to its end. */
static void
read_all(FILE *from, PQExpBuffer out)
{
	char		part[65536];
	size_t		length;

	while ((length = fread(part, 1, sizeof(part), from)) > 0)
		appendBinaryPQExpBuffer(out, part, length);
	if (ferror(from))
		pg_fatal("could not read \"%s\": %m", file);
	if (PQExpBufferBroken(out))
		pg_fatal("out of memory");
	if (memchr(out->data, '\0', out->len) != NULL)
		wrong_call("the payload has a byte 0, which a text cannot have: encode it, as with base64");
}

/* The headers of --headers and --header, as an object; null if there are none. */
static char *
all_headers(void)
{
	PQExpBufferData out;
	PGresult   *result;
	char	   *merged;

	if (header_list.count == 0)
		return headers;
	initPQExpBuffer(&out);
	appendPQExpBufferChar(&out, '{');
	for (int i = 0; i < header_list.count; i++)
	{
		char	   *value = strchr(header_list.items[i], '=');

		if (value == NULL)
			wrong_call("invalid value \"%s\" for option --header: must be NAME=VALUE", header_list.items[i]);
		*value = '\0';
		appendPQExpBufferStr(&out, i > 0 ? ", " : "");
		append_json_string(&out, header_list.items[i]);
		appendPQExpBufferStr(&out, ": ");
		append_json_string(&out, value + 1);
	}
	appendPQExpBufferChar(&out, '}');
	if (headers == NULL)
		return out.data;
	result = query("SELECT $1::jsonb || $2::jsonb", headers, out.data, NO_MORE);
	merged = pg_strdup(PQgetvalue(result, 0, 0));
	PQclear(result);
	termPQExpBuffer(&out);
	return merged;
}

/* Print the answer: a document, or an id a line with the outcome if it is not new. */
static void
print_sent(PGresult *result)
{
	PQExpBufferData out;
	int			outcome = PQfnumber(result, "outcome");

	initPQExpBuffer(&out);
	for (int i = 0; i < PQntuples(result); i++)
	{
		if (common.json)
			append_json_row(&out, result, i);
		else
		{
			appendPQExpBufferStr(&out, PQgetvalue(result, i, 0));
			if (outcome >= 0 && strcmp(PQgetvalue(result, i, outcome), "enqueued") != 0)
				appendPQExpBuffer(&out, "  %s", PQgetvalue(result, i, outcome));
		}
		appendPQExpBufferChar(&out, '\n');
	}
	put_out(&out);
	termPQExpBuffer(&out);
}

/* Send one payload, or an array of them, with the statement for it. */
static void
send_payload(const char *sql, const char *topic, const char *payload, const char *with)
{
	const char *values[] = {topic, payload, correlation, due, namespace, tenant, dedupe_key, stream, with,
		expires, message_id, dedupe_for, on_duplicate, priority == -9 ? NULL : number_text(priority)
	};
	PGresult   *result = run_query(sql, lengthof(values), values);

	print_sent(result);
	PQclear(result);
}

/* Send a message for each line of a file, many at once. */
static void
send_lines(const char *sql, const char *topic, FILE *from, const char *with)
{
	char	   *batch[LINES_AT_ONCE];
	char	   *line = NULL;
	size_t		room = 0;
	size_t		bytes = 0;
	int			count = 0;
	long long	done = 0;
	ssize_t		length;

	do
	{
		length = getline(&line, &room, from);
		if (length > 0)
		{
			if (memchr(line, '\0', length) != NULL)
				wrong_call("line %lld has a byte 0, which a text cannot have", done + count + 1);
			if (line[length - 1] == '\n')
				line[--length] = '\0';
			batch[count++] = pg_strdup(line);
			bytes += length;
		}
		if (count > 0 && (length < 0 || count == LINES_AT_ONCE || bytes > BYTES_AT_ONCE))
		{
			char	   *array = array_of(count, batch);

			send_payload(sql, topic, array, with);
			free(array);
			done += count;
			while (count > 0)
				pg_free(batch[--count]);
			bytes = 0;
			if (!terminal_is_out())
				progress("sent", done, 0);
		}
	} while (length >= 0);
	progress_end();
	if (ferror(from))
		pg_fatal("could not read \"%s\": %m", file);
	free(line);
}

/* Say what would be sent, and to whom. */
static int
tell_plan(bool is_publish, const char *topic, const char *payload, const char *with)
{
	PQExpBufferData out;
	PGresult   *result = NULL;

	if (is_publish)
		result = query("SELECT r AS subscription FROM outbox.route($1::text, $2::jsonb, $3::text) r ORDER BY r",
					   topic, with, namespace, NO_MORE);
	initPQExpBuffer(&out);
	if (common.json)
	{
		appendPQExpBufferStr(&out, "{\"dry_run\": true, \"topic\": ");
		append_json_string(&out, topic);
		appendPQExpBufferStr(&out, ", \"namespace\": ");
		append_json_string(&out, namespace);
		if (payload)
			appendPQExpBuffer(&out, ", \"payload_bytes\": %zu", strlen(payload));
		if (result)
		{
			appendPQExpBufferStr(&out, ", \"subscriptions\": ");
			append_json_rows(&out, result);
		}
		appendPQExpBufferChar(&out, '}');
	}
	else
	{
		appendPQExpBufferStr(&out, is_publish ? "would publish" : "would enqueue");
		if (payload)
			appendPQExpBuffer(&out, " %zu bytes", strlen(payload));
		appendPQExpBufferStr(&out, " in topic ");
		append_safe(&out, topic, false);
		for (int i = 0; result && i < PQntuples(result); i++)
		{
			appendPQExpBufferStr(&out, i == 0 ? ", for " : ", ");
			append_safe(&out, PQgetvalue(result, i, 0), false);
		}
		if (result && PQntuples(result) == 0)
			appendPQExpBufferStr(&out, ", which has no subscriptions");
	}
	appendPQExpBufferChar(&out, '\n');
	put_out(&out);
	PQclear(result);
	return 0;
}

/* What enqueue and publish have in common. */
static int
send_messages(bool is_publish, int count, char **arguments)
{
	PQExpBufferData payload;
	FILE	   *from = NULL;
	char	   *with = all_headers();

	if (count == 2 && (file || lines))
		wrong_call("there is a payload already: \"%s\"", arguments[1]);
	if (count == 1 && file == NULL)
		file = "-";
	if (lines && message_id)
		wrong_call("many messages cannot have one message_id");
	initPQExpBuffer(&payload);
	if (file)
	{
		from = strcmp(file, "-") == 0 ? stdin : fopen(file, "r");
		if (from == NULL)
			pg_fatal("could not open file \"%s\": %m", file);
		if (from == stdin && isatty(STDIN_FILENO))
			fprintf(stderr, "The payload, up to Ctrl-D:\n");
		if (!lines)
			read_all(from, &payload);
	}
	else
		appendPQExpBufferStr(&payload, arguments[1]);
	if (dry_run)
		return tell_plan(is_publish, arguments[0], lines ? NULL : payload.data, with);
	if (lines)
		send_lines(is_publish ? publish_lines_sql : enqueue_lines_sql, arguments[0], from, with);
	else
		send_payload(is_publish ? publish_sql : enqueue_sql, arguments[0], payload.data, with);
	return 0;
}

static int
run_enqueue(int count, char **arguments)
{
	return send_messages(false, count, arguments);
}

static int
run_publish(int count, char **arguments)
{
	return send_messages(true, count, arguments);
}

const Command enqueue_command = {
	.name = "enqueue",
	.arguments = "TOPIC [PAYLOAD]",
	.summary = "Enqueue a message, or one for each line of a file",
	.details = "Without PAYLOAD it is read from standard input. Prints the message_id of each message, and the\n"
	"outcome if it was a duplicate. Lines are sent 1,000 in a transaction.\n"
	"With --json, JSON lines: an object for each message.",
	.example = "outbox enqueue order.placed '{\"order\": 7}' --header region=eu",
	.needs = "producer",
	.options = send_options,
	.least = 1,
	.most = 2,
	.run = run_enqueue
};

const Command publish_command = {
	.name = "publish",
	.arguments = "TOPIC [PAYLOAD]",
	.summary = "Publish a message, or one for each line of a file",
	.details = "The same for all who have subscribed; --dry-run says who that is. Prints the published ids.\n"
	"With --json, JSON lines: an object for each message.",
	.example = "outbox publish invoice.paid --lines --file invoices.ndjson",
	.needs = "producer",
	.options = send_options,
	.least = 1,
	.most = 2,
	.run = run_publish
};
