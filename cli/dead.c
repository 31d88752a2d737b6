/*
 * dead.c
 *		outbox dead: messages that have failed
 *
 * Redriving and purging go in batches with a commit each, so that they can be
 * interrupted at any time, and nothing is held up by one long transaction.
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

static int	row_limit = 20;
static int	batch_size = 1000;
static char *only_namespace = NULL;
static char *only_subscription = NULL;
static char *only_reason = NULL;
static bool summary;
static bool all_topics;
static TextList ids;

static const Option list_options[] = {
	{"limit", 'n', OPTION_NUMBER, &row_limit, "N", "at most so many messages (20)", 1, 100000},
	{"namespace", 0, OPTION_TEXT, &only_namespace, "NAME", "of this namespace only"},
	{"subscription", 0, OPTION_TEXT, &only_subscription, "NAME", "deliveries of this subscription"},
	{"reason", 0, OPTION_TEXT, &only_reason, "TEXT", "with this reason, as in 'validation'"},
	{"summary", 's', OPTION_FLAG, &summary, NULL, "how many for each topic and reason"},
	{NULL}
};

/* Those of a topic, a subscription, or one reason; the newest first. */
static const char *const list_sql =
"SELECT d.id, d.topic, d.namespace, d.subscription, outbox.reason_name(d.failure_reason) AS reason, d.attempts,"
"       extract(epoch FROM now() - d.failed_at)::float8 AS dead_seconds, d.failed_at,"
"       d.message_id, d.correlation_id, d.stream_id, %s AS last_error"
"  FROM outbox.dead_letters d"
" WHERE ($1::text IS NULL OR d.topic = $1::text)"
"   AND ($2::text IS NULL OR d.namespace = $2::text)"
"   AND ($3::text IS NULL OR d.subscription = $3::text)"
"   AND ($4::text IS NULL OR outbox.reason_name(d.failure_reason) = $4::text)"
" ORDER BY d.id DESC LIMIT $5::bigint";

static const char *const summary_sql =
"SELECT f.topic, f.namespace, f.subscription, f.reason, f.count,"
"       extract(epoch FROM now() - f.first_at)::float8 AS first_seconds,"
"       extract(epoch FROM now() - f.last_at)::float8 AS last_seconds, f.last_id, %s AS last_error"
"  FROM (SELECT d.topic, d.namespace, d.subscription, outbox.reason_name(d.failure_reason) AS reason,"
"               count(*) AS count, min(d.failed_at) AS first_at, max(d.failed_at) AS last_at, max(d.id) AS last_id"
"          FROM outbox.dead_letters d"
"         WHERE ($1::text IS NULL OR d.topic = $1::text)"
"           AND ($2::text IS NULL OR d.namespace = $2::text)"
"           AND ($3::text IS NULL OR d.subscription = $3::text)"
"           AND ($4::text IS NULL OR outbox.reason_name(d.failure_reason) = $4::text)"
"         GROUP BY 1, 2, 3, 4) f"
" ORDER BY f.count DESC, f.topic LIMIT $5::bigint";

/* outbox dead list */
static int
run_list(int count, char **arguments)
{
	static const Column columns[] = {
		{"ID", COLUMN_NAME},
		{"TOPIC", COLUMN_TEXT},
		{"NAMESPACE", COLUMN_TEXT, true, "default"},
		{"SUBSCRIPTION", COLUMN_TEXT, true},
		{"REASON", COLUMN_TEXT,.style = STYLE_BAD},
		{"ATTEMPTS", COLUMN_COUNT},
		{"DEAD FOR", COLUMN_AGE},
		{NULL}, {NULL}, {NULL}, {NULL},
		{"ERROR", COLUMN_TEXT, true}
	};
	static const Column of_summary[] = {
		{"TOPIC", COLUMN_NAME},
		{"NAMESPACE", COLUMN_TEXT, true, "default"},
		{"SUBSCRIPTION", COLUMN_TEXT, true},
		{"REASON", COLUMN_TEXT,.style = STYLE_BAD},
		{"DEAD", COLUMN_COUNT},
		{"FIRST", COLUMN_AGE},
		{"LAST", COLUMN_AGE},
		{"LAST ID", COLUMN_COUNT},
		{"LAST ERROR", COLUMN_TEXT, true}
	};
	PQExpBufferData sql;
	PGresult   *result;
	bool		may = may_read("dead_letters", "last_error");

	initPQExpBuffer(&sql);
	if (summary)
		appendPQExpBuffer(&sql, summary_sql, may ? "(SELECT e.last_error FROM outbox.dead_letters e WHERE e.id = f.last_id)" : "NULL::text");
	else
		appendPQExpBuffer(&sql, list_sql, may ? "d.last_error" : "NULL::text");
	result = query(sql.data, count > 0 ? arguments[0] : NULL, only_namespace, only_subscription, only_reason,
				   number_text(row_limit), NO_MORE);
	print_rows(result, summary ? of_summary : columns, "No message is dead.");
	PQclear(result);
	termPQExpBuffer(&sql);
	return 0;
}

const Command dead_list_command = {
	.name = "dead list",
	.arguments = "[TOPIC]",
	.summary = "Messages that have failed, the newest first",
	.details = "The --summary reads all dead messages. With --json, one document: an array of objects.",
	.example = "outbox dead list --summary",
	.needs = "monitor",
	.options = list_options,
	.most = 1,
	.run = run_list
};

static int
run_dead_show(int count, char **arguments)
{
	return show_message(arguments[0]);
}

const Command dead_show_command = {
	.name = "dead show",
	.arguments = "ID",
	.summary = "One of them, with the errors of its attempts",
	.details = "The same as \"outbox show\". With --json, one document.",
	.example = "outbox dead show 17",
	.needs = "monitor",
	.least = 1,
	.most = 1,
	.run = run_dead_show
};

static const Option change_options[] = {
	{"namespace", 0, OPTION_TEXT, &only_namespace, "NAME", "namespace (default)"},
	{"subscription", 0, OPTION_TEXT, &only_subscription, "NAME", "deliveries of this subscription"},
	{"batch", 0, OPTION_NUMBER, &batch_size, "N", "so many in a transaction (1000)", 1, 100000},
	CHANGE_OPTIONS,
	{NULL}
};

static const Option redrive_options[] = {
	{"id", 0, OPTION_LIST, &ids, "ID", "only this one; can be repeated"},
	{"all", 0, OPTION_FLAG, &all_topics, NULL, "those of all topics and namespaces"},
	{"namespace", 0, OPTION_TEXT, &only_namespace, "NAME", "namespace (default)"},
	{"subscription", 0, OPTION_TEXT, &only_subscription, "NAME", "deliveries of this subscription"},
	{"batch", 0, OPTION_NUMBER, &batch_size, "N", "so many in a transaction (1000)", 1, 100000},
	CHANGE_OPTIONS,
	{NULL}
};

/*
 * How many are dead. Those of enqueued messages and those of subscriptions are apart,
 * unless all are meant.
 */
static long long
count_dead(const char *topic, const char *namespace)
{
	PGresult   *result = query("SELECT count(*) FROM outbox.dead_letters d"
							   " WHERE ($1::text IS NULL OR d.topic = $1::text)"
							   "   AND ($2::text IS NULL OR d.namespace = $2::text)"
							   "   AND ($4::boolean OR d.subscription IS NOT DISTINCT FROM $3::text)",
							   topic, namespace, only_subscription, all_topics ? "true" : "false", NO_MORE);
	long long	number = strtoll(PQgetvalue(result, 0, 0), NULL, 10);

	PQclear(result);
	return number;
}

/* Print how many it were, or would be. */
static void
print_count(const char *verb, long long count)
{
	PQExpBufferData out;

	initPQExpBuffer(&out);
	if (common.json)
		appendPQExpBuffer(&out, "{\"%s\": %lld, \"dry_run\": %s}", verb, count, dry_run ? "true" : "false");
	else
	{
		if (dry_run)
			appendPQExpBuffer(&out, "would have %s ", verb);
		else
			appendPQExpBuffer(&out, "%s ", verb);
		append_count(&out, count);
		appendPQExpBufferStr(&out, count == 1 ? " message" : " messages");
	}
	appendPQExpBufferChar(&out, '\n');
	put_out(&out);
	termPQExpBuffer(&out);
}

/*
 * Repeat a call that changes up to so many messages and returns how many, until it
 * finds no more or has changed as many as there were: those that fail again while
 * this runs are left alone.
 */
static long long
repeat(const char *sql, const char *verb, const char *topic, const char *namespace, long long total)
{
	long long	done = 0;

	while (done < total)
	{
		PGresult   *result = query(sql, topic, namespace, number_text(Min(batch_size, total - done)),
								   only_subscription, NO_MORE);
		long long	changed = strtoll(PQgetvalue(result, 0, 0), NULL, 10);

		PQclear(result);
		if (changed == 0)
			break;
		done += changed;
		progress(verb, done, total);
	}
	progress_end();
	return done;
}

/* Redrive these. */
static int
redrive_ids(void)
{
	char	   *array = array_of(ids.count, ids.items);
	PGresult   *result;

	if (dry_run)
		result = query("SELECT count(*) FROM outbox.dead_letters d WHERE d.id = ANY ($1::bigint[])", array, NO_MORE);
	else if (!confirm(CHANGES, assume_yes, "Redrive %d messages", ids.count))
		return EXIT_TROUBLE;
	else
		result = query("SELECT outbox.requeue($1::bigint[])", array, NO_MORE);
	print_count("redriven", strtoll(PQgetvalue(result, 0, 0), NULL, 10));
	PQclear(result);
	return 0;
}

/* outbox dead redrive */
static int
run_redrive(int count, char **arguments)
{
	const char *topic = count > 0 ? arguments[0] : NULL;
	const char *namespace = only_namespace ? only_namespace : all_topics ? NULL : "default";
	long long	total;

	if ((topic != NULL) + (ids.count > 0) + all_topics != 1 && !(topic == NULL && only_subscription))
		wrong_call("say what to redrive: a topic, --id, --subscription or --all");
	if (ids.count > 0)
		return redrive_ids();
	total = count_dead(topic, namespace);
	if (dry_run || total == 0)
	{
		print_count("redriven", total);
		return 0;
	}
	if (!confirm(CHANGES, assume_yes, "Redrive %lld dead messages of %s", total,
				 topic ? topic : only_subscription ? only_subscription : "all topics"))
		return EXIT_TROUBLE;
	print_count("redriven", repeat("SELECT outbox.redrive($1::text, $2::text, $3::integer, $4::text)",
								   "redriven", topic, namespace, total));
	return 0;
}

const Command dead_redrive_command = {
	.name = "dead redrive",
	.arguments = "[TOPIC]",
	.summary = "Put dead messages back, to be delivered again",
	.details = "Their attempts begin from zero; the message_id stays. With --json, one document.",
	.example = "outbox dead redrive order.placed --dry-run",
	.needs = "admin",
	.options = redrive_options,
	.most = 1,
	.run = run_redrive
};

/* outbox dead purge */
static int
run_purge(int count, char **arguments)
{
	const char *topic = count > 0 ? arguments[0] : NULL;
	const char *namespace = only_namespace ? only_namespace : "default";
	long long	total;

	if (topic == NULL && only_subscription == NULL)
		wrong_call("say what to purge: a topic, or --subscription");
	total = count_dead(topic, namespace);
	if (dry_run || total == 0)
	{
		print_count("purged", total);
		return 0;
	}
	if (!confirm(DESTROYS, assume_yes, "Destroy %lld dead messages of %s for good", total,
				 topic ? topic : only_subscription))
		return EXIT_TROUBLE;
	print_count("purged", repeat("SELECT outbox.purge_topic($1::text, $2::text, 'dead', $3::integer, $4::text)",
								 "purged", topic, namespace, total));
	return 0;
}

const Command dead_purge_command = {
	.name = "dead purge",
	.arguments = "[TOPIC]",
	.summary = "Remove dead messages for good",
	.details = "Without a terminal it wants --yes. With --json, one document.",
	.example = "outbox dead purge order.placed --yes",
	.needs = "admin",
	.options = change_options,
	.most = 1,
	.run = run_purge
};
