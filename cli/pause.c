/*
 * pause.c
 *		outbox pause, resume and replay: what becomes of a topic or a subscription
 */
#include "postgres_fe.h"

#include <time.h>

#include "pqexpbuffer.h"

#include "commands.h"
#include "database.h"
#include "json.h"
#include "terminal.h"
#include "text.h"

static char *namespace = "default";
static char *kind = "message";
static bool is_subscription;

static const Option pause_options[] = {
	{"namespace", 0, OPTION_TEXT, &namespace, "NAME", "namespace (default)"},
	{"subscription", 0, OPTION_FLAG, &is_subscription, NULL, "NAME is a subscription, not a topic"},
	{"kind", 0, OPTION_TEXT, &kind, "KIND", "message (the default), inbox, timer or job_run"},
	CHANGE_OPTIONS,
	{NULL}
};

/* Print what was done, or would be. */
static void
print_change(const char *verb, const char *name)
{
	PQExpBufferData out;

	initPQExpBuffer(&out);
	if (common.json)
	{
		appendPQExpBuffer(&out, "{\"%s\": ", verb);
		append_json_string(&out, name);
		appendPQExpBufferStr(&out, ", \"namespace\": ");
		append_json_string(&out, namespace);
		appendPQExpBuffer(&out, ", \"dry_run\": %s}", dry_run ? "true" : "false");
	}
	else
	{
		appendPQExpBuffer(&out, dry_run ? "would have %s " : "%s ", verb);
		append_safe(&out, name, false);
	}
	appendPQExpBufferChar(&out, '\n');
	put_out(&out);
	termPQExpBuffer(&out);
}

/* What pause and resume have in common. */
static int
set_paused(bool pause, const char *name)
{
	if (!dry_run)
	{
		/* what is resumed does no harm that was not there before */
		if (pause && !confirm(CHANGES, assume_yes, "Stop the delivery of %s", name))
			return EXIT_TROUBLE;
		if (is_subscription)
			PQclear(query(pause ? "SELECT outbox.pause_subscription($1::text, $2::text)"
						  : "SELECT outbox.resume_subscription($1::text, $2::text)", name, namespace, NO_MORE));
		else
			PQclear(query(pause ? "SELECT outbox.pause_topic($1::text, $2::text, $3::text)"
						  : "SELECT outbox.resume_topic($1::text, $2::text, $3::text)",
						  name, namespace, kind, NO_MORE));
	}
	print_change(pause ? "paused" : "resumed", name);
	return 0;
}

static int
run_pause(int count, char **arguments)
{
	return set_paused(true, arguments[0]);
}

static int
run_resume(int count, char **arguments)
{
	return set_paused(false, arguments[0]);
}

const Command pause_command = {
	.name = "pause",
	.arguments = "NAME",
	.summary = "Stop the delivery of a topic or a subscription",
	.details = "Leases are not affected. With --json, one document.",
	.example = "outbox pause order.placed",
	.needs = "admin",
	.options = pause_options,
	.least = 1,
	.most = 1,
	.run = run_pause
};

const Command resume_command = {
	.name = "resume",
	.arguments = "NAME",
	.summary = "Deliver it again",
	.details = "With --json, one document.",
	.example = "outbox resume billing --subscription",
	.needs = "admin",
	.options = pause_options,
	.least = 1,
	.most = 1,
	.run = run_resume
};

static char *from_time;
static char *until_time;
static TextList topics;
static bool no_wait;

static const Option replay_options[] = {
	{"from", 0, OPTION_TEXT, &from_time, "TIME", "from this time on: a timestamp, or '-2 hours'"},
	{"until", 0, OPTION_TEXT, &until_time, "TIME", "up to this time (now)"},
	{"topic", 0, OPTION_LIST, &topics, "PATTERN", "only topics that match; can be repeated"},
	{"namespace", 0, OPTION_TEXT, &namespace, "NAME", "namespace (default)"},
	{"no-wait", 0, OPTION_FLAG, &no_wait, NULL, "leave it to the background worker"},
	CHANGE_OPTIONS,
	{NULL}
};

/* A time, or an interval before now with a minus before it. */
#define PAST_OF(n) "CASE WHEN " n "::text LIKE '-%' AND " n "::text <> '-infinity'" \
	" THEN clock_timestamp() - substr(" n "::text, 2)::interval ELSE " n "::timestamptz END"

/*
 * Follow the newest replay of a subscription until it is done. The background worker
 * does it; where there is none, one bounded round after the other is done here.
 */
static void
follow_replay(const char *subscription, long long total)
{
	PGresult   *newest = query("SELECT max(r.id) FROM outbox.replays r JOIN outbox.subscribers s ON s.id = r.subscriber"
							   " WHERE s.subscription = $1::text AND s.namespace = $2::text", subscription, namespace, NO_MORE);
	long long	delivered = 0;
	int			idle = 0;

	while (!PQgetisnull(newest, 0, 0))
	{
		struct timespec pause = {0, 100 * 1000 * 1000};
		PGresult   *result = query("SELECT r.delivered FROM outbox.replays r WHERE r.id = $1::bigint",
								   PQgetvalue(newest, 0, 0), NO_MORE);
		bool		done = PQntuples(result) == 0;
		long long	now = done ? total : strtoll(PQgetvalue(result, 0, 0), NULL, 10);

		PQclear(result);
		if (done)
			break;
		idle = now > delivered ? 0 : idle + 1;
		delivered = now;
		progress("replayed", delivered, total);
		if (idle >= 5)
			PQclear(query("SELECT outbox.run_maintenance()", NO_MORE));
		else
			nanosleep(&pause, NULL);
	}
	PQclear(newest);
	progress_end();
}

/* outbox replay */
static int
run_replay(int count, char **arguments)
{
	char	   *patterns = topics.count > 0 ? array_of(topics.count, topics.items) : NULL;
	PGresult   *result;
	long long	total;
	PQExpBufferData out;

	if (from_time == NULL)
		wrong_call("say from when on: --from");
	if (!dry_run && !confirm(CHANGES, assume_yes, "Deliver again to %s what was published from %s on",
							 arguments[0], from_time))
		return EXIT_TROUBLE;
	/* how many it would be is known when it was asked for, and taken back */
	if (dry_run)
		PQclear(PQexec(connection, "BEGIN"));
	result = query("SELECT outbox.replay($1::text, " PAST_OF("$2") ", " PAST_OF("$3") ", $4::text[], $5::text)",
				   arguments[0], from_time, until_time, patterns, namespace, NO_MORE);
	if (dry_run)
		PQclear(PQexec(connection, "ROLLBACK"));
	total = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
	PQclear(result);
	if (!dry_run && !no_wait)
		follow_replay(arguments[0], total);
	initPQExpBuffer(&out);
	if (common.json)
		appendPQExpBuffer(&out, "{\"publications\": %lld, \"done\": %s, \"dry_run\": %s}\n", total,
						  dry_run || no_wait ? "false" : "true", dry_run ? "true" : "false");
	else
		appendPQExpBuffer(&out, "%s %lld %s\n",
						  dry_run ? "would have replayed" : no_wait ? "replaying" : "replayed",
						  total, total == 1 ? "publication" : "publications");
	put_out(&out);
	termPQExpBuffer(&out);
	free(patterns);
	return 0;
}

const Command replay_command = {
	.name = "replay",
	.arguments = "SUBSCRIPTION",
	.summary = "Deliver again what was published",
	.details = "Only what is kept: see outbox.publish_retention. With --json, one document.",
	.example = "outbox replay billing --from '-2 hours'",
	.needs = "admin",
	.options = replay_options,
	.least = 1,
	.most = 1,
	.run = run_replay
};
