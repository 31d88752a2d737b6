/*
 * show.c
 *		outbox show: all that is known of a message
 */
#include "postgres_fe.h"

#include "common/logging.h"
#include "pqexpbuffer.h"

#include "commands.h"
#include "database.h"
#include "json.h"
#include "show.h"
#include "table.h"
#include "text.h"

static bool only_payload;

static const Option show_options[] = {
	{"payload", 0, OPTION_FLAG, &only_payload, NULL, "write the payload and nothing else, as it is"},
	{NULL}
};

/* What a monitor sees, and the rest. */
static const char *const info_sql =
"SELECT m.id, m.message_id, m.topic, m.namespace, m.subscription, m.published_id, m.state, m.attempts,"
"       m.retry_count, m.created_at, m.due_time, m.next_attempt_at, m.locked_until, m.owner_token, m.expires_at,"
"       m.processed_at, m.processed_by, CASE WHEN m.failure_reason <> 0 THEN outbox.reason_name(m.failure_reason) END AS reason,"
"       m.priority, m.correlation_id, m.tenant_id, m.dedupe_key, m.stream_id, m.partition_number%s"
"  FROM outbox.%s m";

static const char *const attempts_sql =
"SELECT a.attempt, a.at, %s AS error FROM outbox.attempts_log a WHERE a.id = $1::bigint AND a.kind = 'message' ORDER BY a.at";

static const char *const joins_sql =
"SELECT j.join_id, j.grouping_key, outbox.join_status_name(j.status) AS status FROM outbox.join_members n"
"  JOIN outbox.joins j ON j.join_id = n.join_id WHERE n.message_id = $1::uuid";

static const char *const gates_sql =
"SELECT e.gate, e.passed, e.detail FROM outbox.explain_message($1::text) e";

/* outbox.trace is not in every version, so its columns are not named. */
static const char *const trace_sql = "SELECT t.* FROM outbox.trace($1::uuid) t";

/* Is it the id of a work item, rather than a UUID? */
static bool
is_number(const char *text)
{
	return *text && strlen(text) < 19 && strspn(text, "0123456789") == strlen(text);
}

/* Is it written as UUIDs are? */
static bool
is_uuid(const char *text)
{
	int			digits = 0;

	for (const char *at = text; *at; at++)
	{
		if (isxdigit((unsigned char) *at))
			digits++;
		else if (strchr("-{}", *at) == NULL)
			return false;
	}
	return digits == 32;
}

/* Append the name of a field, and spaces. */
static void
append_label(PQExpBuffer out, const char *label)
{
	appendPQExpBufferStr(out, style_on(STYLE_DIM));
	append_fitted(out, label, 16, false);
	appendPQExpBuffer(out, "%s ", style_off(STYLE_DIM));
}

/* Append the fields of a message that are not null, one a line. */
static void
append_fields(PQExpBuffer out, PGresult *message)
{
	for (int i = 0; i < PQnfields(message); i++)
	{
		const char *name = PQfname(message, i);
		const char *value = PQgetvalue(message, 0, i);
		Style		style = STYLE_PLAIN;
		char		label[64];

		if (PQgetisnull(message, 0, i) || strcmp(name, "payload") == 0)
			continue;
		if ((strcmp(name, "namespace") == 0 && strcmp(value, "default") == 0) ||
			((strcmp(name, "retry_count") == 0 || strcmp(name, "priority") == 0) && strcmp(value, "0") == 0))
			continue;
		if (strcmp(name, "state") == 0)
			style = state_style(value);
		else if (strcmp(name, "id") == 0 || strcmp(name, "message_id") == 0)
			style = STYLE_NAME;
		else if (strcmp(name, "last_error") == 0)
			style = STYLE_BAD;
		strlcpy(label, name, sizeof(label));
		for (char *at = label; *at; at++)
			if (*at == '_')
				*at = ' ';
		append_label(out, label);
		appendPQExpBufferStr(out, style_on(style));
		append_safe(out, value, false);
		appendPQExpBuffer(out, "%s\n", style_off(style));
	}
}

/* Append a heading, and the result below it as a table does. */
static void
append_heading(PQExpBuffer out, const char *heading)
{
	appendPQExpBuffer(out, "\n%s%s%s\n", style_on(STYLE_HEADER), heading, style_off(STYLE_HEADER));
}

/* Append why it is delivered or not. */
static void
append_gates(PQExpBuffer out, PGresult *gates)
{
	append_heading(out, "Delivery");
	for (int i = 0; i < PQntuples(gates); i++)
	{
		bool		unknown = PQgetisnull(gates, i, 1);
		bool		passed = *PQgetvalue(gates, i, 1) == 't';
		const char *mark = sign(passed ? SIGN_GOOD : SIGN_BAD);

		appendPQExpBuffer(out, "%s%s%s ", style_on(passed ? STYLE_GOOD : STYLE_BAD), unknown ? " " : mark,
						  style_off(STYLE_GOOD));
		append_fitted(out, PQgetvalue(gates, i, 0), 17, false);
		appendPQExpBufferChar(out, ' ');
		append_safe(out, PQgetvalue(gates, i, 2), false);
		while (out->data[out->len - 1] == ' ')
			out->data[--out->len] = '\0';
		appendPQExpBufferChar(out, '\n');
	}
}

/* Append the payload, as text for people: a terminal gets no control characters. */
static void
append_payload(PQExpBuffer out, const char *payload)
{
	append_heading(out, "Payload");
	append_safe(out, payload, true);
	if (*payload && payload[strlen(payload) - 1] != '\n')
		appendPQExpBufferChar(out, '\n');
}

/* Append any result, each row in a line with its columns side by side. */
static void
append_lines(PQExpBuffer out, PGresult *result)
{
	for (int i = 0; i < PQntuples(result); i++)
	{
		bool		first = true;

		for (int j = 0; j < PQnfields(result); j++)
		{
			const char *name = PQfname(result, j);

			/* what a line of a trace has beside the rest, and JSON has */
			if (PQgetisnull(result, i, j) || *PQgetvalue(result, i, j) == '\0' ||
				strcmp(name, "item_id") == 0 || strcmp(name, "caused_by") == 0 ||
				(strcmp(name, "namespace") == 0 && strcmp(PQgetvalue(result, i, j), "default") == 0))
				continue;
			appendPQExpBufferStr(out, first ? "" : "  ");
			first = false;
			if (PQftype(result, j) == 1184) /* timestamptz */
				append_time(out, PQgetvalue(result, i, j));
			else
				append_safe(out, PQgetvalue(result, i, j), false);
		}
		appendPQExpBufferChar(out, '\n');
	}
}

/* Write the payload as it is, but not control characters to a terminal. */
static int
put_payload(PGresult *message)
{
	PQExpBufferData out;
	int			column = PQfnumber(message, "payload");

	if (column < 0)
	{
		pg_log_error("this role may not read payloads");
		return EXIT_TROUBLE;
	}
	initPQExpBuffer(&out);
	if (terminal_is_out())
	{
		append_safe(&out, PQgetvalue(message, 0, column), true);
		appendPQExpBufferChar(&out, '\n');
	}
	else
		appendPQExpBufferStr(&out, PQgetvalue(message, 0, column));
	put_out(&out);
	return 0;
}

/*
 * Find a message by its id or message_id in one of the views, all of which have the
 * columns named above. Returns a result without rows if there is none.
 */
static PGresult *
find_message(const char *id)
{
	bool		may = may_read("messages", "payload");
	PQExpBufferData sql;
	PGresult   *result;

	initPQExpBuffer(&sql);
	appendPQExpBuffer(&sql, info_sql, may ? ", m.last_error, m.headers, m.payload" : "",
					  may ? "messages" : "messages_info");
	appendPQExpBufferStr(&sql, is_number(id) ? " WHERE m.id = $1::bigint" : " WHERE m.message_id = $1::uuid");
	result = query(sql.data, id, NO_MORE);
	termPQExpBuffer(&sql);
	return result;
}

/* outbox show, and outbox dead show */
int
show_message(const char *id)
{
	PGresult   *message;
	PGresult   *gates;
	PGresult   *attempts = NULL;
	PGresult   *joins = NULL;
	PGresult   *trace = NULL;
	PQExpBufferData out;
	bool		found;

	if (!is_number(id) && !is_uuid(id))
		wrong_call("invalid id \"%s\": must be a number or a UUID", id);
	message = find_message(id);
	found = PQntuples(message) > 0;
	if (only_payload && found)
		return put_payload(message);
	gates = query(gates_sql, id, NO_MORE);
	if (!found && (PQntuples(gates) == 0 || only_payload ||
				   (PQntuples(gates) == 1 && strncmp(PQgetvalue(gates, 0, 2), "there is no such message", 24) == 0)))
	{
		pg_log_error("there is no message %s, or it is kept no longer", id);
		return EXIT_NOTHING;
	}
	initPQExpBuffer(&out);
	if (found)
	{
		appendPQExpBuffer(&out, attempts_sql, may_read("attempts_log", "error") ? "a.error" : "NULL::text");
		attempts = query(out.data, PQgetvalue(message, 0, 0), NO_MORE);
		joins = query(joins_sql, PQgetvalue(message, 0, 1), NO_MORE);
		if (may_call("trace"))
			trace = query(trace_sql, PQgetvalue(message, 0, 1), NO_MORE);
		resetPQExpBuffer(&out);
	}
	if (common.json)
	{
		appendPQExpBufferStr(&out, "{\"message\": ");
		if (found)
			append_json_row(&out, message, 0);
		else
			appendPQExpBufferStr(&out, "null");
		appendPQExpBufferStr(&out, ",\n \"delivery\": ");
		append_json_rows(&out, gates);
		if (found)
		{
			appendPQExpBufferStr(&out, ",\n \"failed_attempts\": ");
			append_json_rows(&out, attempts);
			appendPQExpBufferStr(&out, ",\n \"joins\": ");
			append_json_rows(&out, joins);
		}
		if (trace)
		{
			appendPQExpBufferStr(&out, ",\n \"trace\": ");
			append_json_rows(&out, trace);
		}
		appendPQExpBufferStr(&out, "}\n");
		put_out(&out);
		return 0;
	}
	if (found)
		append_fields(&out, message);
	append_gates(&out, gates);
	if (found)
	{
		if (PQntuples(attempts) > 0)
		{
			append_heading(&out, "Failed attempts");
			append_lines(&out, attempts);
		}
		if (PQntuples(joins) > 0)
		{
			append_heading(&out, "Step of");
			append_lines(&out, joins);
		}
		if (trace && PQntuples(trace) > 0)
		{
			append_heading(&out, "Trace");
			append_lines(&out, trace);
		}
		if (PQfnumber(message, "payload") >= 0)
			append_payload(&out, PQgetvalue(message, 0, PQfnumber(message, "payload")));
	}
	put_out(&out);
	return 0;
}

static int
run_show(int count, char **arguments)
{
	return show_message(arguments[0]);
}

const Command show_command = {
	.name = "show",
	.arguments = "ID",
	.summary = "A message: what it is, why it is delivered or not, and its life",
	.details = "ID is its id or its message_id, or that of a publication. Exits with 4 if there is none.\n"
	"With --json, one document: an object with message, delivery, failed_attempts, joins, trace.",
	.example = "outbox show 17 --payload | jq .",
	.needs = "monitor",
	.options = show_options,
	.least = 1,
	.most = 1,
	.run = run_show
};
