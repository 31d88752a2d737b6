/*
 * lists.c
 *		Commands that show the rows of a view
 *
 * Each is a statement whose parameters are the first argument, or null, and how many
 * rows are wanted, and a column for each of its own.
 */
#include "postgres_fe.h"

#include "commands.h"
#include "database.h"
#include "table.h"

static int	row_limit = 100;
static char *only_namespace = NULL;

static const Option list_options[] = {
	{"limit", 'n', OPTION_NUMBER, &row_limit, "N", "at most so many rows (100)", 1, 1000000},
	{"namespace", 0, OPTION_TEXT, &only_namespace, "NAME", "of this namespace only"},
	{NULL}
};

static const Option limit_options[] = {
	{"limit", 'n', OPTION_NUMBER, &row_limit, "N", "at most so many rows (100)", 1, 1000000},
	{NULL}
};

/* Run a statement with the argument, the limit and the namespace, and print its rows. */
static int
list(const char *sql, const Column *columns, const char *nothing, int count, char **arguments)
{
	PGresult   *result = query(sql, count > 0 ? arguments[0] : NULL, number_text(row_limit), only_namespace,
							   NO_MORE);

	print_rows(result, columns, nothing);
	PQclear(result);
	return 0;
}

/* outbox topics */
static int
run_topics(int count, char **arguments)
{
	static const Column columns[] = {
		{"TOPIC", COLUMN_NAME},
		{"NAMESPACE", COLUMN_TEXT, true, "default"},
		{"SUBSCRIPTION", COLUMN_TEXT, true},
		{"READY", COLUMN_COUNT,.style = STYLE_HEADER},
		{"OLDEST", COLUMN_AGE, true},
		{"LEASED", COLUMN_COUNT},
		{"EXPIRED", COLUMN_COUNT, true,.style = STYLE_WARN},
		{"DELAYED", COLUMN_COUNT},
		{"IN STREAMS", COLUMN_COUNT, true},
		{"FAILING", COLUMN_COUNT, true,.style = STYLE_WARN},
		{"DEAD", COLUMN_COUNT,.style = STYLE_BAD},
		{"paused", COLUMN_FLAG, true,.style = STYLE_WARN},
		{"HANDLER", COLUMN_TEXT, true},
		{"more", COLUMN_FLAG, true,.style = STYLE_DIM}
	};

	return list("SELECT s.topic, s.namespace, s.subscription, s.ready,"
				"       extract(epoch FROM now() - s.oldest_ready_at)::float8 AS oldest_seconds,"
				"       s.leased, s.expired, s.delayed, s.waiting_in_stream, s.failing, s.dead, s.paused,"
				"       s.handler, s.more"
				"  FROM outbox.topic_stats s"
				" WHERE ($1::text IS NULL OR s.topic LIKE replace(replace(replace($1::text, '%', '\\%'), '_', '\\_'), '*', '%'))"
				"   AND ($3::text IS NULL OR s.namespace = $3::text)"
				" ORDER BY s.ready + s.leased DESC, s.dead DESC, s.topic, s.namespace, s.subscription"
				" LIMIT $2::bigint",
				columns, "There are no messages that are not done.", count, arguments);
}

const Command topics_command = {
	.name = "topics",
	.arguments = "[PATTERN]",
	.summary = "Topics with what waits in them, the fullest first",
	.details = "Topics and subscriptions that have messages which are not done; PATTERN may have stars.\n"
	"Counting ends at 10,000 in a topic. With --json, one document: an array of objects.",
	.example = "outbox topics 'order.*'",
	.needs = "monitor",
	.options = list_options,
	.most = 1,
	.run = run_topics
};

/* outbox streams */
static int
run_streams(int count, char **arguments)
{
	static const Column columns[] = {
		{"STREAM", COLUMN_NAME},
		{"TOPIC", COLUMN_TEXT},
		{"NAMESPACE", COLUMN_TEXT, true, "default"},
		{"SUBSCRIPTION", COLUMN_TEXT, true},
		{"FIRST", COLUMN_COUNT},
		{"STATE", COLUMN_STATE},
		{"BEHIND", COLUMN_COUNT,.style = STYLE_WARN},
		{"ATTEMPTS", COLUMN_COUNT},
		{"DUE IN", COLUMN_AGE, true},
		{"AGE", COLUMN_AGE},
		{NULL}, {NULL}
	};

	return list("SELECT h.stream_id, h.topic, h.namespace, h.subscription, h.id, h.state, h.behind, h.attempts,"
				"       CASE WHEN h.next_attempt_at > now() AND h.status = 0"
				"            THEN extract(epoch FROM h.next_attempt_at - now())::float8 END AS due_in_seconds,"
				"       extract(epoch FROM now() - h.created_at)::float8 AS age_seconds,"
				"       h.message_id, h.owner_token"
				"  FROM outbox.stream_heads h"
				" WHERE ($1::text IS NULL OR h.stream_id = $1::uuid)"
				"   AND ($3::text IS NULL OR h.namespace = $3::text)"
				" ORDER BY h.behind DESC, h.created_at LIMIT $2::bigint",
				columns, "No stream has messages that are not done.", count, arguments);
}

const Command streams_command = {
	.name = "streams",
	.arguments = "[STREAM]",
	.summary = "Streams, the longest first, and the message that each waits for",
	.details = "FIRST is the id of the first message that is not done, for which those behind wait; at most\n"
	"1,000 of them are counted. With --json, one document: an array of objects.",
	.example = "outbox streams -n 10",
	.needs = "monitor",
	.options = list_options,
	.most = 1,
	.run = run_streams
};

static bool all_joins;

static const Option join_options[] = {
	{"limit", 'n', OPTION_NUMBER, &row_limit, "N", "at most so many rows (100)", 1, 1000000},
	{"all", 'a', OPTION_FLAG, &all_joins, NULL, "also joins that have ended"},
	{NULL}
};

/* outbox joins */
static int
run_joins(int count, char **arguments)
{
	static const Column columns[] = {
		{"JOIN", COLUMN_NAME},
		{"KEY", COLUMN_TEXT, true},
		{"STATUS", COLUMN_STATE},
		{"EXPECTED", COLUMN_COUNT},
		{"COMPLETED", COLUMN_COUNT,.style = STYLE_GOOD},
		{"FAILED", COLUMN_COUNT,.style = STYLE_BAD},
		{"MISSING", COLUMN_COUNT,.style = STYLE_WARN},
		{"MEMBERS", COLUMN_COUNT},
		{"WAITS", COLUMN_COUNT},
		{"AGE", COLUMN_AGE},
		{"CHANGED", COLUMN_AGE}
	};

	/* all of one key, or of one id */
	if (count > 0)
		all_joins = true;
	only_namespace = all_joins ? "all" : "pending";
	return list("SELECT j.join_id, j.grouping_key, outbox.join_status_name(s.status) AS status, j.expected_steps, j.completed_steps, j.failed_steps,"
				"       j.missing_steps, j.members, j.waits,"
				"       extract(epoch FROM now() - j.created_at)::float8 AS age_seconds,"
				"       extract(epoch FROM now() - j.last_updated_at)::float8 AS changed_seconds"
				"  FROM outbox.join_progress j JOIN outbox.joins s ON s.join_id = j.join_id"
				" WHERE ($1::text IS NULL OR j.grouping_key = $1::text OR j.join_id::text = lower($1::text))"
				"   AND ($3::text = 'all' OR s.status = 0)"
				" ORDER BY s.status = 0 DESC, j.created_at LIMIT $2::bigint",
				columns, all_joins ? "There are no such joins." : "No join is pending.", count, arguments);
}

const Command joins_command = {
	.name = "joins",
	.arguments = "[KEY|JOIN]",
	.summary = "Joins that are pending, and how far they are",
	.details = "MISSING steps have not ended; where there are fewer MEMBERS than EXPECTED, some have not even\n"
	"been attached. With --json, one document: an array of objects.",
	.example = "outbox joins 'order 7'",
	.needs = "monitor",
	.options = join_options,
	.most = 1,
	.run = run_joins
};

/* outbox instances */
static int
run_instances(int count, char **arguments)
{
	static const Column columns[] = {
		{"INSTANCE", COLUMN_NAME},
		{"SERVICE", COLUMN_TEXT},
		{"HOST", COLUMN_TEXT},
		{"PROCESS", COLUMN_TEXT},
		{"SILENT FOR", COLUMN_AGE},
		{"UP FOR", COLUMN_AGE}
	};

	return list("SELECT i.instance_id, i.service_name, i.host_name, i.process_id,"
				"       extract(epoch FROM now() - i.last_heartbeat_at)::float8 AS silent_seconds,"
				"       extract(epoch FROM now() - i.started_at)::float8 AS up_seconds"
				"  FROM outbox.instances i"
				" WHERE ($1::text IS NULL OR i.service_name = $1::text)"
				"   AND ($3::text IS NULL OR true)"
				" ORDER BY i.last_heartbeat_at DESC LIMIT $2::bigint",
				columns, "No instances have registered.", count, arguments);
}

const Command instances_command = {
	.name = "instances",
	.arguments = "[SERVICE]",
	.summary = "Instances of process_work_batch, and when each was last heard of",
	.details = "With --json, one document: an array of objects.",
	.example = "outbox instances shop",
	.needs = "monitor",
	.options = limit_options,
	.most = 1,
	.run = run_instances
};

/* outbox workers */
static int
run_workers(int count, char **arguments)
{
	static const Column columns[] = {
		{"WORKER", COLUMN_NAME},
		{"HOST", COLUMN_TEXT, true},
		{"PROCESS", COLUMN_TEXT},
		{NULL},
		{"gone", COLUMN_FLAG, true,.style = STYLE_WARN},
		{"OPEN", COLUMN_COUNT,.style = STYLE_HEADER},
		{"CLAIMED", COLUMN_COUNT},
		{"ENDED", COLUMN_COUNT},
		{"MEAN", COLUMN_AGE},
		{"A SECOND", COLUMN_RATE},
		{"CLAIMED AGO", COLUMN_AGE},
		{"ENDED AGO", COLUMN_AGE}
	};

	return list("SELECT coalesce(nullif(w.application, ''), 'no name') AS application, w.host, w.pid, w.owner_token,"
				"       NOT w.connected AS gone, w.open, w.claimed, w.ended, w.mean_ms / 1000 AS mean_seconds, w.per_second,"
				"       extract(epoch FROM now() - w.claimed_at)::float8 AS claimed_ago_seconds,"
				"       extract(epoch FROM now() - w.ended_at)::float8 AS ended_ago_seconds"
				"  FROM outbox.workers w"
				" WHERE ($1::text IS NULL OR w.application = $1::text)"
				"   AND ($3::text IS NULL OR true)"
				" ORDER BY w.open > 0 DESC, w.mean_ms DESC NULLS FIRST, w.claimed_at LIMIT $2::bigint",
				columns, "No worker has claimed messages since the server was started.", count, arguments);
}

const Command workers_command = {
	.name = "workers",
	.arguments = "[APPLICATION]",
	.summary = "Workers, those that have something first, then the slowest",
	.details = "OPEN messages were claimed and neither ended nor released. MEAN is the time from claim to end.\n"
	"A worker is known by its owner token, or, if it has a new one for each claim, by its session.\n"
	"With --json, one document: an array of objects.",
	.example = "outbox workers mailer",
	.needs = "monitor",
	.options = limit_options,
	.most = 1,
	.run = run_workers
};

/* outbox handlers */
static int
run_handlers(int count, char **arguments)
{
	static const Column columns[] = {
		{"TOPIC", COLUMN_NAME},
		{"NAMESPACE", COLUMN_TEXT, true, "default"},
		{"SUBSCRIPTION", COLUMN_TEXT, true},
		{"HANDLER", COLUMN_TEXT},
		{"ROLE", COLUMN_TEXT},
		{"CALLS", COLUMN_COUNT},
		{"MEAN", COLUMN_AGE},
		{"TOTAL", COLUMN_AGE},
		{"DONE", COLUMN_COUNT},
		{"RETRIED", COLUMN_COUNT,.style = STYLE_WARN},
		{"DEAD", COLUMN_COUNT,.style = STYLE_BAD}
	};

	return list("SELECT h.topic, h.namespace, h.subscription, h.handler, h.role, h.calls,"
				"       h.mean_ms / 1000 AS mean_seconds, h.call_ms::float8 / 1000 AS total_seconds, h.acked AS done,"
				"       h.nacked AS retried, h.dead"
				"  FROM outbox.handler_stats h"
				" WHERE ($1::text IS NULL OR h.topic = $1::text)"
				"   AND ($3::text IS NULL OR h.namespace = $3::text)"
				" ORDER BY h.mean_ms DESC NULLS LAST, h.namespace, h.topic LIMIT $2::bigint",
				columns, "There are no handlers.", count, arguments);
}

const Command handlers_command = {
	.name = "handlers",
	.arguments = "[TOPIC]",
	.summary = "Handlers in the database, the slowest first",
	.details = "Numbers are since outbox.stat_reset() was last called, or the server has lost its counters.\n"
	"With --json, one document: an array of objects.",
	.example = "outbox handlers",
	.needs = "monitor",
	.options = list_options,
	.most = 1,
	.run = run_handlers
};

/* outbox subscriptions */
static int
run_subscriptions(int count, char **arguments)
{
	static const Column columns[] = {
		{"SUBSCRIPTION", COLUMN_NAME},
		{"NAMESPACE", COLUMN_TEXT, true, "default"},
		{"TOPICS", COLUMN_TEXT},
		{NULL},
		{"READY", COLUMN_COUNT,.style = STYLE_HEADER},
		{"OLDEST", COLUMN_AGE, true},
		{"LEASED", COLUMN_COUNT},
		{"DEAD", COLUMN_COUNT,.style = STYLE_BAD},
		{"paused", COLUMN_FLAG, true,.style = STYLE_WARN},
		{"starting", COLUMN_FLAG, true},
		{NULL}
	};

	return list("SELECT s.subscription, s.namespace, array_to_string(s.topics, ', ') AS patterns,"
				"       to_json(s.topics) AS topics, s.ready,"
				"       extract(epoch FROM s.oldest_ready_age)::float8 AS oldest_seconds,"
				"       s.leased, s.dead, s.paused, s.starting, s.created_at"
				"  FROM outbox.subscriptions s"
				" WHERE ($1::text IS NULL OR s.subscription = $1::text)"
				"   AND ($3::text IS NULL OR s.namespace = $3::text)"
				" ORDER BY s.namespace, s.subscription LIMIT $2::bigint",
				columns, "There are no subscriptions.", count, arguments);
}

const Command subscriptions_command = {
	.name = "subscriptions",
	.arguments = "[SUBSCRIPTION]",
	.summary = "Subscriptions, and what waits for each",
	.details = "With --json, one document: an array of objects.",
	.example = "outbox subscriptions",
	.needs = "monitor",
	.options = list_options,
	.most = 1,
	.run = run_subscriptions
};

/* outbox timers */
static int
run_timers(int count, char **arguments)
{
	static const Column columns[] = {
		{"TIMER", COLUMN_NAME},
		{"TOPIC", COLUMN_TEXT},
		{"STATE", COLUMN_STATE},
		{"DUE IN", COLUMN_AGE},
		{"DUE AT", COLUMN_TIME},
		{"ATTEMPTS", COLUMN_COUNT, true},
		{"CORRELATION", COLUMN_TEXT, true}
	};

	return list("SELECT t.timer_id, t.topic, t.state,"
				"       extract(epoch FROM t.due_time - now())::float8 AS due_in_seconds,"
				"       t.due_time, t.attempts, t.correlation_id"
				"  FROM outbox.timers t"
				" WHERE t.status IN (0, 1, 3) AND ($1::text IS NULL OR t.topic = $1::text)"
				"   AND ($3::text IS NULL OR true)"
				" ORDER BY t.status = 3 DESC, t.due_time LIMIT $2::bigint",
				columns, "No timers wait.", count, arguments);
}

const Command timers_command = {
	.name = "timers",
	.arguments = "[TOPIC]",
	.summary = "Timers that wait, the next first, after those that have failed",
	.details = "With --json, one document: an array of objects.",
	.example = "outbox timers",
	.needs = "monitor",
	.options = limit_options,
	.most = 1,
	.run = run_timers
};

/* outbox jobs */
static int
run_jobs(int count, char **arguments)
{
	static const Column columns[] = {
		{"JOB", COLUMN_NAME},
		{"TOPIC", COLUMN_TEXT},
		{"SCHEDULE", COLUMN_TEXT},
		{"disabled", COLUMN_FLAG, true,.style = STYLE_WARN},
		{"LAST", COLUMN_AGE},
		{"WAITING", COLUMN_COUNT},
		{"DEAD", COLUMN_COUNT,.style = STYLE_BAD},
		{NULL}
	};

	return list("SELECT j.job_name, j.topic, j.cron_schedule, NOT j.enabled AS disabled,"
				"       extract(epoch FROM now() - j.last_fired_at)::float8 AS last_seconds,"
				"       (SELECT count(*) FROM outbox.job_runs r WHERE r.job_name = j.job_name AND r.status IN (0, 1)) AS waiting,"
				"       (SELECT count(*) FROM outbox.dead_job_runs d WHERE d.job_name = j.job_name) AS dead,"
				"       j.last_fired_at"
				"  FROM outbox.jobs j"
				" WHERE ($1::text IS NULL OR j.job_name = $1::text)"
				"   AND ($3::text IS NULL OR true)"
				" ORDER BY j.job_name LIMIT $2::bigint",
				columns, "There are no jobs.", count, arguments);
}

const Command jobs_command = {
	.name = "jobs",
	.arguments = "[JOB]",
	.summary = "Jobs, when each last ran, and its runs",
	.details = "With --json, one document: an array of objects.",
	.example = "outbox jobs",
	.needs = "monitor",
	.options = limit_options,
	.most = 1,
	.run = run_jobs
};
