/*
 * database.c
 *		The connection, and queries on it
 *
 * Nothing is set in the session, because behind a pooler it may be another client's
 * in a moment. So statements name the schema of everything that is not PostgreSQL's
 * own, and the style of dates, which poolers know of, is asked for at the start.
 * What users give is always a parameter: no statement is put together of it.
 */
#include "postgres_fe.h"

#include "common/logging.h"
#include "common/string.h"
#include "pqexpbuffer.h"

#include "command.h"
#include "database.h"
#include "text.h"

PGconn	   *connection = NULL;
bool		show_notices = true;

/* for queries that read the end of a large table, whatever the planner expects */
bool		prefer_indexes = false;

static char *password = NULL;

/* Print what is wrong with a connection. */
void
report_connection(PGconn *conn)
{
	PQExpBufferData text;
	char	   *message = pg_strdup(PQerrorMessage(conn));

	pg_strip_crlf(message);
	initPQExpBuffer(&text);
	append_safe(&text, message, true);
	pg_log_error("%s", text.data);
	termPQExpBuffer(&text);
	pg_free(message);
}

/*
 * Open a connection as psql does: what is not given comes from the environment. Asks
 * for the password if the server wants one. Returns null if there is none, after an
 * error message unless it is to be quiet.
 */
PGconn *
open_connection(bool quiet)
{
	PQExpBufferData name;
	PGconn	   *conn;

	initPQExpBuffer(&name);
	appendPQExpBuffer(&name, "outbox %s", current_command->name);
	setenv("PGDATESTYLE", "ISO", 1);
	if (common.password && password == NULL)
		password = simple_prompt("Password: ", false);
	for (;;)
	{
		const char *keywords[] = {"host", "port", "user", "password", "dbname",
			"client_encoding", "fallback_application_name", NULL
		};
		const char *values[] = {common.host, common.port, common.user, password,
			common.database, "UTF8", name.data, NULL
		};

		/* expand_dbname: the name may be a connection string or a URI */
		conn = PQconnectdbParams(keywords, values, true);
		if (conn && PQstatus(conn) == CONNECTION_BAD && PQconnectionNeedsPassword(conn) &&
			password == NULL && !common.no_password)
		{
			PQfinish(conn);
			password = simple_prompt("Password: ", false);
			continue;
		}
		break;
	}
	termPQExpBuffer(&name);
	if (conn == NULL)
		pg_fatal("out of memory");
	if (PQstatus(conn) == CONNECTION_BAD)
	{
		if (!quiet)
			report_connection(conn);
		PQfinish(conn);
		return NULL;
	}
	return conn;
}

/* Print the notices of the server, as errors are printed. */
static void
report_notice(void *arg, const PGresult *result)
{
	PQExpBufferData text;

	if (!show_notices)
		return;
	initPQExpBuffer(&text);
	append_safe(&text, PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY), true);
	pg_log_info("%s", text.data);
	termPQExpBuffer(&text);
}

/* Connect, or end the program; the extension must be in the database. */
void
connect_database(void)
{
	PGresult   *result;

	connection = open_connection(false);
	if (connection == NULL)
		exit(EXIT_CONNECTION);
	PQsetNoticeReceiver(connection, report_notice, NULL);
	result = query("SELECT e.extversion FROM pg_catalog.pg_extension e WHERE e.extname = 'outbox'", NO_MORE);
	if (PQntuples(result) == 0)
	{
		pg_log_error("database \"%s\" does not have the extension outbox", PQdb(connection));
		pg_log_error_hint("CREATE EXTENSION outbox; in it, or connect to another database with --dbname.");
		exit(EXIT_TROUBLE);
	}
	PQclear(result);
}

/* Print the error of a statement, with its detail and hint; of the connection if null. */
void
report_result(PGconn *conn, const PGresult *result)
{
	static const int fields[] = {PG_DIAG_MESSAGE_PRIMARY, PG_DIAG_MESSAGE_DETAIL, PG_DIAG_MESSAGE_HINT};
	const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;

	if (result == NULL || PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) == NULL)
	{
		report_connection(conn);
		return;
	}
	for (int i = 0; i < (int) lengthof(fields); i++)
	{
		const char *field = PQresultErrorField(result, fields[i]);
		PQExpBufferData text;

		if (field == NULL)
			continue;
		initPQExpBuffer(&text);
		append_safe(&text, field, true);
		if (i == 0)
			pg_log_error("%s", text.data);
		else if (i == 1)
			pg_log_error_detail("%s", text.data);
		else
			pg_log_error_hint("%s", text.data);
		termPQExpBuffer(&text);
	}
	if (state && strcmp(state, "42501") == 0 && current_command->needs)
		pg_log_error_hint("\"outbox %s\" needs what outbox.grant_%s() grants.",
						  current_command->name, current_command->needs);
}

/* Print the error of a statement, and end the program. */
void
fail_query(PGconn *conn, const PGresult *result)
{
	report_result(conn, result);
	exit(PQstatus(conn) == CONNECTION_BAD ? EXIT_CONNECTION : EXIT_TROUBLE);
}

/* The next result of the pipeline, which must be of this kind. */
static PGresult *
next_result(ExecStatusType wanted)
{
	PGresult   *result = PQgetResult(connection);

	if (PQresultStatus(result) != wanted)
		fail_query(connection, result);
	if (wanted != PGRES_PIPELINE_SYNC)
		PQclear(PQgetResult(connection));	/* the null behind it */
	return result;
}

/*
 * Run a statement with these parameters, all as text, in a transaction of its own.
 * Ends the program if it fails.
 *
 * A statement before it, in the same pipeline and so in the same transaction, sets
 * what is needed for this transaction alone: names are those of PostgreSQL, and
 * nothing is compiled, which would take longer than any of these queries.
 */
PGresult *
run_query(const char *sql, int count, const char *const *values)
{
	static const char *const settings_sql =
	"SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),"
	"       pg_catalog.set_config('jit', 'off', true),"
	"       pg_catalog.set_config('enable_seqscan', coalesce($1::text, pg_catalog.current_setting('enable_seqscan')), true)";
	const char *seqscan = prefer_indexes ? "off" : NULL;
	PGresult   *result;

	if (!PQenterPipelineMode(connection) ||
		!PQsendQueryParams(connection, settings_sql, 1, NULL, &seqscan, NULL, NULL, 0) ||
		!PQsendQueryParams(connection, sql, count, NULL, values, NULL, NULL, 0) ||
		!PQpipelineSync(connection))
		fail_query(connection, NULL);
	PQclear(next_result(PGRES_TUPLES_OK));
	result = next_result(PGRES_TUPLES_OK);
	PQclear(next_result(PGRES_PIPELINE_SYNC));
	if (!PQexitPipelineMode(connection))
		fail_query(connection, NULL);
	return result;
}

/* The same with its parameters as arguments, the last of which is NO_MORE. */
PGresult *
query(const char *sql,...)
{
	const char *values[16];
	int			count = 0;
	const char *value;
	va_list		arguments;

	va_start(arguments, sql);
	while ((value = va_arg(arguments, const char *)) != NO_MORE)
	{
		Assert(count < (int) lengthof(values));
		values[count++] = value;
	}
	va_end(arguments);
	return run_query(sql, count, values);
}

/* May this role read a column of one of the extension's relations? */
bool
may_read(const char *relation, const char *column)
{
	PGresult   *result = query("SELECT coalesce(has_column_privilege(to_regclass('outbox.' || $1::text)::oid, $2::text, 'SELECT'), false)",
							   relation, column, NO_MORE);
	bool		may = *PQgetvalue(result, 0, 0) == 't';

	PQclear(result);
	return may;
}

/*
 * May this role call a function of the extension, one of this name? False if there is
 * none, as in another version of the extension.
 */
bool
may_call(const char *function)
{
	PGresult   *result = query("SELECT coalesce(bool_or(has_function_privilege(p.oid, 'EXECUTE')), false)"
							   "       AND has_schema_privilege('outbox', 'USAGE')"
							   "  FROM pg_catalog.pg_proc p"
							   " WHERE p.pronamespace = 'outbox'::regnamespace AND p.proname = $1::text",
							   function, NO_MORE);
	bool		may = *PQgetvalue(result, 0, 0) == 't';

	PQclear(result);
	return may;
}

/* The text of an array of these items; the caller frees it. */
char *
array_of(int count, char *const *items)
{
	PQExpBufferData out;

	initPQExpBuffer(&out);
	appendPQExpBufferChar(&out, '{');
	for (int i = 0; i < count; i++)
	{
		appendPQExpBufferStr(&out, i > 0 ? ",\"" : "\"");
		for (const char *at = items[i]; *at; at++)
		{
			if (*at == '"' || *at == '\\')
				appendPQExpBufferChar(&out, '\\');
			appendPQExpBufferChar(&out, *at);
		}
		appendPQExpBufferChar(&out, '"');
	}
	appendPQExpBufferChar(&out, '}');
	return out.data;
}

/* The text of a number, valid until it has been called four times more. */
const char *
number_text(long long number)
{
	static char texts[4][32];
	static int	next = 0;

	next = (next + 1) % 4;
	snprintf(texts[next], sizeof(texts[next]), "%lld", number);
	return texts[next];
}
