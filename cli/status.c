/*
 * status.c
 *		outbox status and outbox doctor: is everything well, and what to do
 */
#include "postgres_fe.h"

#include <math.h>
#include <time.h>

#include "pqexpbuffer.h"

#include "commands.h"
#include "database.h"
#include "json.h"
#include "table.h"
#include "text.h"

/* What the checks of doctor have found. */
typedef struct Findings
{
	int			bad;
	int			good;
	PQExpBufferData out;
} Findings;

/* What the views say in one row. Counting ends at 10,000 in a topic, as more says. */
static const char *const totals_sql =
"SELECT count(*) AS topics,"
"       coalesce(sum(s.ready), 0)::bigint AS ready,"
"       extract(epoch FROM now() - min(s.oldest_ready_at))::float8 AS oldest_seconds,"
"       coalesce(sum(s.leased), 0)::bigint AS leased,"
"       coalesce(sum(s.expired), 0)::bigint AS expired,"
"       coalesce(sum(s.delayed), 0)::bigint AS delayed,"
"       coalesce(sum(s.waiting_in_stream), 0)::bigint AS waiting_in_stream,"
"       coalesce(sum(s.failing), 0)::bigint AS failing,"
"       coalesce(sum(s.dead), 0)::bigint AS dead,"
"       coalesce(bool_or(s.more), false) AS more,"
"       count(*) FILTER (WHERE s.paused) AS paused,"
"       (SELECT coalesce(sum(c.waiting), 0)::bigint FROM outbox.claimers c) AS waiting_claims"
"  FROM outbox.topic_stats s";

static const char *const problems_sql =
"SELECT s.component, s.ok, s.status, s.detail, s.hint FROM outbox.status() s WHERE NOT s.ok OR $1::text = 'all'";

static bool all_components;

static const Option status_options[] = {
	{"all", 'a', OPTION_FLAG, &all_components, NULL, "also what is in order"},
	{NULL}
};

/* Append a component of status(), with what to do if something is wrong. */
static void
append_component(PQExpBuffer out, bool ok, const char *name, const char *status, const char *detail,
				 const char *hint)
{
	appendPQExpBuffer(out, "%s%s%s ", style_on(ok ? STYLE_GOOD : STYLE_BAD),
					  sign(ok ? SIGN_GOOD : SIGN_BAD),
					  style_off(STYLE_GOOD));
	append_safe(out, name, false);
	if (status && *status)
	{
		appendPQExpBufferStr(out, ": ");
		append_safe(out, status, false);
	}
	if (detail && *detail)
	{
		appendPQExpBuffer(out, "%s", style_on(STYLE_DIM));
		appendPQExpBufferStr(out, " (");
		append_safe(out, detail, false);
		appendPQExpBuffer(out, ")%s", style_off(STYLE_DIM));
	}
	appendPQExpBufferChar(out, '\n');
	if (!ok && hint && *hint)
	{
		appendPQExpBuffer(out, "  %s ", sign(SIGN_HINT));
		append_safe(out, hint, false);
		appendPQExpBufferChar(out, '\n');
	}
}

/* The value of a column of a result with one row. */
static const char *
value_of(PGresult *result, const char *column)
{
	return PQgetvalue(result, 0, PQfnumber(result, column));
}

/* Append a number and what it counts, with an interpunct before all but the first. */
static void
append_total(PQExpBuffer out, PGresult *totals, const char *column, const char *what, Style style)
{
	const char *value = value_of(totals, column);
	bool		none = strcmp(value, "0") == 0;

	appendPQExpBufferStr(out, style_on(none ? STYLE_DIM : style));
	append_count(out, strtoll(value, NULL, 10));
	appendPQExpBuffer(out, " %s%s", what, style_off(none ? STYLE_DIM : style));
	appendPQExpBufferStr(out, "   ");
}

/* outbox status */
static int
run_status(int count, char **arguments)
{
	PGresult   *totals = query(totals_sql, NO_MORE);
	PGresult   *problems = query(problems_sql, all_components ? "all" : "problems", NO_MORE);
	PQExpBufferData out;
	int			oldest = PQfnumber(totals, "oldest_seconds");

	initPQExpBuffer(&out);
	if (common.json)
	{
		appendPQExpBufferStr(&out, "{\"totals\": ");
		append_json_row(&out, totals, 0);
		appendPQExpBufferStr(&out, ",\n \"components\": ");
		append_json_rows(&out, problems);
		appendPQExpBufferStr(&out, "}\n");
	}
	else
	{
		append_total(&out, totals, "ready", "ready", STYLE_HEADER);
		append_total(&out, totals, "leased", "leased", STYLE_PLAIN);
		append_total(&out, totals, "delayed", "delayed", STYLE_PLAIN);
		append_total(&out, totals, "failing", "failing", STYLE_WARN);
		append_total(&out, totals, "dead", "dead", STYLE_BAD);
		out.len -= 3;
		out.data[out.len] = '\0';
		if (*value_of(totals, "more") == 't')
			appendPQExpBufferStr(&out, "   (or more)");
		appendPQExpBufferChar(&out, '\n');
		if (!PQgetisnull(totals, 0, oldest))
		{
			appendPQExpBufferStr(&out, "oldest ready message: ");
			append_age(&out, strtod(PQgetvalue(totals, 0, oldest), NULL));
			appendPQExpBufferStr(&out, "   ");
		}
		appendPQExpBuffer(&out, "topics: %s   claims that wait: %s\n", value_of(totals, "topics"),
						  value_of(totals, "waiting_claims"));
		appendPQExpBufferChar(&out, '\n');
		if (PQntuples(problems) == 0)
			append_component(&out, true, "nothing is wrong", NULL, NULL, NULL);
		for (int i = 0; i < PQntuples(problems); i++)
			append_component(&out, *PQgetvalue(problems, i, 1) == 't', PQgetvalue(problems, i, 0),
							 PQgetvalue(problems, i, 2), PQgetvalue(problems, i, 3),
							 PQgetvalue(problems, i, 4));
	}
	put_out(&out);
	return 0;
}

const Command status_command = {
	.name = "status",
	.arguments = "",
	.summary = "What there is, and what is wrong",
	.details = "The totals of all topics, and the problems that outbox.status() finds.\n"
	"With --json, one document: an object with totals and components.",
	.example = "outbox status -d shop",
	.needs = "monitor",
	.options = status_options,
	.run = run_status
};

/* Note a check. */
static void
find(Findings *findings, bool ok, const char *name, const char *status, const char *detail,
	 const char *hint)
{
	if (ok)
		findings->good++;
	else
		findings->bad++;
	if (!common.json)
	{
		append_component(&findings->out, ok, name, status, detail, hint);
		return;
	}
	appendPQExpBuffer(&findings->out, "%s{\"check\": ", findings->good + findings->bad > 1 ? ",\n  " : "");
	append_json_string(&findings->out, name);
	appendPQExpBuffer(&findings->out, ", \"ok\": %s, \"status\": ", ok ? "true" : "false");
	append_json_string(&findings->out, status);
	appendPQExpBufferStr(&findings->out, ", \"detail\": ");
	append_json_string(&findings->out, detail);
	appendPQExpBufferStr(&findings->out, ", \"hint\": ");
	append_json_string(&findings->out, ok ? "" : hint);
	appendPQExpBufferChar(&findings->out, '}');
}

/* How long a statement that does nothing takes, and how far the two clocks differ. */
static void
check_connection(Findings *findings)
{
	struct timespec before;
	struct timespec after;
	struct timespec wall;
	PGresult   *result;
	double		took;
	double		apart;
	char		status[64];
	char		detail[256];

	clock_gettime(CLOCK_MONOTONIC, &before);
	result = query("SELECT extract(epoch FROM clock_timestamp())::float8", NO_MORE);
	clock_gettime(CLOCK_MONOTONIC, &after);
	clock_gettime(CLOCK_REALTIME, &wall);
	took = (after.tv_sec - before.tv_sec) + (after.tv_nsec - before.tv_nsec) / 1e9;
	apart = strtod(PQgetvalue(result, 0, 0), NULL) - (wall.tv_sec + wall.tv_nsec / 1e9);
	PQclear(result);
	snprintf(status, sizeof(status), "%.1f ms there and back", took * 1000);
	snprintf(detail, sizeof(detail), "PostgreSQL %s, database %s, role %s",
			 PQparameterStatus(connection, "server_version"), PQdb(connection), PQuser(connection));
	find(findings, took < 0.5, "connection", status, detail,
		 "Each call takes at least so long: claim and settle in batches, or move closer.");
	snprintf(status, sizeof(status), "%.1f s apart", fabs(apart));
	find(findings, fabs(apart) < 5 + took, "clocks", status, "",
		 "All times are those of the server; the times that this machine shows differ.");
}

/* What the server and the role have set that works against waiting claims. */
static void
check_settings(Findings *findings)
{
	PGresult   *result = query("SELECT pg_is_in_recovery(),"
							   " current_setting('statement_timeout'),"
							   " extract(epoch FROM current_setting('statement_timeout')::interval)::float8 BETWEEN 0.001 AND 60,"
							   " current_setting('idle_in_transaction_session_timeout'),"
							   " e.extversion"
							   "  FROM pg_catalog.pg_extension e WHERE e.extname = 'outbox'", NO_MORE);

	find(findings, *PQgetvalue(result, 0, 0) == 'f', "writable",
		 *PQgetvalue(result, 0, 0) == 'f' ? "yes" : "no, a standby", "",
		 "Everything can be read here. To enqueue and to claim, connect to the primary.");
	find(findings, *PQgetvalue(result, 0, 2) == 'f', "statement_timeout", PQgetvalue(result, 0, 1),
		 "of this role", "A claim that waits longer is cancelled: ALTER ROLE ... SET statement_timeout = 0.");
	find(findings, strcmp(PQgetvalue(result, 0, 4), OUTBOX_VERSION) == 0, "program",
		 OUTBOX_VERSION, "", "The extension in this database has another version: ALTER EXTENSION outbox UPDATE, "
		 "or install the program that came with it.");
	PQclear(result);
}

/* Which rights this role has: of each kind, one function that comes with no other. */
static void
check_rights(Findings *findings)
{
	static const struct
	{
		const char *kind;
		const char *function;
	}			kinds[] = {
		{"admin", "requeue"},
		{"monitor", "status"},
		{"worker", "ack"},
		{"producer", "enqueue_batch"}
	};
	char		rights[64] = "";

	for (int i = 0; i < (int) lengthof(kinds); i++)
	{
		if (!may_call(kinds[i].function))
			continue;
		if (*rights)
			strlcat(rights, ", ", sizeof(rights));
		strlcat(rights, kinds[i].kind, sizeof(rights));
		if (i == 0)
			break;				/* an admin has them all */
	}
	find(findings, *rights != '\0', "rights", *rights ? rights : "none", PQuser(connection),
		 "See outbox.grant_producer, grant_worker, grant_monitor and grant_admin.");
}

/* What the extension says of itself. */
static void
check_extension(Findings *findings)
{
	PGresult   *result;

	if (!may_call("status"))
	{
		find(findings, false, "status", "cannot be read", "", "Connect as a role with grant_monitor to see the rest.");
		return;
	}
	result = query(problems_sql, "all", NO_MORE);
	for (int i = 0; i < PQntuples(result); i++)
		find(findings, *PQgetvalue(result, i, 1) == 't', PQgetvalue(result, i, 0), PQgetvalue(result, i, 2),
			 PQgetvalue(result, i, 3), PQgetvalue(result, i, 4));
	PQclear(result);
	if (!may_call("alerts"))
		return;
	result = query("SELECT a.name, a.severity, a.subject, a.message, a.hint FROM outbox.alerts() a", NO_MORE);
	for (int i = 0; i < PQntuples(result); i++)
	{
		PQExpBufferData name;

		initPQExpBuffer(&name);
		appendPQExpBuffer(&name, "%s alert %s", PQgetvalue(result, i, 1), PQgetvalue(result, i, 0));
		find(findings, false, name.data, PQgetvalue(result, i, 3), PQgetvalue(result, i, 2),
			 PQgetvalue(result, i, 4));
		termPQExpBuffer(&name);
	}
	PQclear(result);
}

/* outbox doctor */
static int
run_doctor(int count, char **arguments)
{
	Findings	findings = {0};

	initPQExpBuffer(&findings.out);
	if (common.json)
		appendPQExpBufferStr(&findings.out, "{\"checks\": [\n  ");
	check_connection(&findings);
	check_rights(&findings);
	check_settings(&findings);
	check_extension(&findings);
	if (common.json)
		appendPQExpBuffer(&findings.out, "],\n \"ok\": %s, \"passed\": %d, \"found\": %d}\n",
						  findings.bad == 0 ? "true" : "false", findings.good, findings.bad);
	else
		appendPQExpBuffer(&findings.out, "\n%d checks passed, %s%d found something%s\n", findings.good,
						  style_on(findings.bad ? STYLE_BAD : STYLE_GOOD), findings.bad,
						  style_off(STYLE_GOOD));
	put_out(&findings.out);
	return findings.bad == 0 ? 0 : EXIT_FOUND;
}

const Command doctor_command = {
	.name = "doctor",
	.arguments = "",
	.summary = "Check everything, and say what to do",
	.details = "Checks the connection, the role's rights, settings, all that outbox.status() knows, and\n"
	"outbox.alerts() where there is one. Exits with 3 if there is something to do.\n"
	"With --json, one document: an object with checks, ok, passed and found.",
	.example = "outbox doctor -d shop || mail -s 'outbox' admin </dev/null",
	.run = run_doctor
};
