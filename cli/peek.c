/*
 * peek.c
 *		outbox peek: messages, without touching them
 *
 * A monitor sees no payloads; then there is no column for them.
 */
#include "postgres_fe.h"

#include "pqexpbuffer.h"

#include "commands.h"
#include "database.h"
#include "table.h"

static int	row_limit = 10;
static char *only_state = "ready";
static char *only_namespace = NULL;
static char *only_subscription = NULL;

static const Option peek_options[] = {
	{"limit", 'n', OPTION_NUMBER, &row_limit, "N", "at most so many messages (10)", 1, 100000},
	{"state", 's', OPTION_TEXT, &only_state, "STATE", "ready (the default), delayed, leased or dead"},
	{"namespace", 0, OPTION_TEXT, &only_namespace, "NAME", "of this namespace only"},
	{"subscription", 0, OPTION_TEXT, &only_subscription, "NAME", "deliveries of this subscription"},
	{NULL}
};

/*
 * The ids of the next messages: each topic's lanes are read in the order of delivery, as
 * the views do.
 */
static const char *const next_ids_sql =
"WITH RECURSIVE lanes(lane, namespace, topic, subscriber) AS ("
"    (SELECT q.lane, q.namespace, q.topic, q.subscriber FROM outbox.queue q ORDER BY q.lane LIMIT 1)"
"    UNION ALL"
"    SELECT n.* FROM lanes l,"
"           LATERAL (SELECT q.lane, q.namespace, q.topic, q.subscriber FROM outbox.queue q"
"                     WHERE q.lane > l.lane ORDER BY q.lane LIMIT 1) n"
")"
" SELECT array_agg(f.id) FROM ("
"    SELECT w.id"
"      FROM lanes l"
"      LEFT JOIN outbox.subscribers s ON s.id = l.subscriber"
"     CROSS JOIN LATERAL (SELECT q.id, q.next_attempt_at FROM outbox.queue q"
"                          WHERE q.lane = l.lane AND q.status = 0"
"                            AND q.next_attempt_at > CASE WHEN $5::boolean THEN now() ELSE '-infinity' END"
"                            AND q.next_attempt_at <= CASE WHEN $5::boolean THEN 'infinity' ELSE now() END"
"                          ORDER BY q.next_attempt_at, q.id LIMIT $2::bigint) w"
"     WHERE ($1::text IS NULL OR l.topic = $1::text)"
"       AND ($3::text IS NULL OR l.namespace = $3::text)"
"       AND ($4::text IS NULL OR s.subscription = $4::text)"
"     ORDER BY w.next_attempt_at, w.id LIMIT $2::bigint) f";

/* These messages; %s is the payload, or null where it must not be read, and the view. */
static const char *const by_ids_sql =
"SELECT m.id, m.topic, m.namespace, m.subscription, m.state, m.attempts,"
"       extract(epoch FROM now() - m.created_at)::float8 AS age_seconds,"
"       m.next_attempt_at AS at, m.message_id, m.stream_id, m.correlation_id, %s AS payload"
"  FROM outbox.%s m WHERE m.id = ANY ($1::bigint[])"
" ORDER BY m.next_attempt_at, m.id";

static const char *const leased_sql =
"SELECT l.id, l.topic, l.namespace, l.subscription, 'in progress' AS state, l.attempts,"
"       extract(epoch FROM now() - l.leased_at)::float8 AS age_seconds,"
"       l.locked_until AS at, l.message_id, l.stream_id,"
"       concat_ws(' ', l.application, l.pid, l.host) AS worker, NULL::text AS payload"
"  FROM outbox.oldest_leases($2::integer, $1::text, $3::text, $4::text) l"
" WHERE $5::text IS NOT NULL";

static const char *const dead_sql =
"SELECT d.id, d.topic, d.namespace, d.subscription, 'failed' AS state, d.attempts,"
"       extract(epoch FROM now() - d.failed_at)::float8 AS age_seconds,"
"       d.failed_at AS at, d.message_id, d.stream_id, outbox.reason_name(d.failure_reason) AS reason, %s AS payload"
"  FROM outbox.dead_letters d"
" WHERE $5::text IS NOT NULL AND ($1::text IS NULL OR d.topic = $1::text)"
"   AND ($3::text IS NULL OR d.namespace = $3::text)"
"   AND ($4::text IS NULL OR d.subscription = $4::text)"
" ORDER BY d.id DESC LIMIT $2::bigint";

/* outbox peek */
static int
run_peek(int count, char **arguments)
{
	Column		columns[] = {
		{"ID", COLUMN_NAME},
		{"TOPIC", COLUMN_TEXT},
		{"NAMESPACE", COLUMN_TEXT, true, "default"},
		{"SUBSCRIPTION", COLUMN_TEXT, true},
		{"STATE", COLUMN_STATE},
		{"ATTEMPTS", COLUMN_COUNT},
		{"AGE", COLUMN_AGE},
		{NULL, COLUMN_TIME},
		{NULL}, {NULL},
		{"CORRELATION", COLUMN_TEXT, true},
		{"PAYLOAD", COLUMN_TEXT, true}
	};
	bool		delayed = strcmp(only_state, "delayed") == 0;
	bool		waits = delayed || strcmp(only_state, "ready") == 0;
	PQExpBufferData sql;
	PGresult   *result;

	initPQExpBuffer(&sql);
	if (waits)
		appendPQExpBufferStr(&sql, next_ids_sql);
	else if (strcmp(only_state, "leased") == 0)
		appendPQExpBufferStr(&sql, leased_sql);
	else if (strcmp(only_state, "dead") == 0)
		appendPQExpBuffer(&sql, dead_sql, may_read("dead_letters", "payload") ? "d.payload" : "NULL::text");
	else
		wrong_call("invalid value \"%s\" for option --state: must be ready, delayed, leased or dead", only_state);
	if (delayed)
		columns[7].title = "DUE AT";
	if (strcmp(only_state, "leased") == 0)
	{
		columns[6].title = "LEASED FOR";
		columns[7].title = "LEASED UNTIL";
		columns[10].title = "WORKER";
	}
	if (strcmp(only_state, "dead") == 0)
	{
		columns[6].title = "DEAD FOR";
		columns[10].title = "REASON";
	}
	result = query(sql.data, count > 0 ? arguments[0] : NULL, number_text(row_limit), only_namespace,
				   only_subscription, delayed ? "true" : "false", NO_MORE);
	if (waits)
	{
		char	   *ids = pg_strdup(PQgetvalue(result, 0, 0));
		bool		may = may_read("messages", "payload");

		PQclear(result);
		resetPQExpBuffer(&sql);
		appendPQExpBuffer(&sql, by_ids_sql, may ? "m.payload" : "NULL::text", may ? "messages" : "messages_info");
		result = query(sql.data, *ids ? ids : "{}", NO_MORE);
		pg_free(ids);
	}
	print_rows(result, columns, "There are no such messages.");
	PQclear(result);
	termPQExpBuffer(&sql);
	return 0;
}

const Command peek_command = {
	.name = "peek",
	.arguments = "[TOPIC]",
	.summary = "The next messages, without claiming them",
	.details = "In the order of delivery: streams and priorities may change it. Payloads are shown to those who\n"
	"may read them. With --json, one document: an array of objects.",
	.example = "outbox peek order.placed --state dead -n 3",
	.needs = "monitor",
	.options = peek_options,
	.most = 1,
	.run = run_peek
};
