/*
 * lease.c
 *		The calls of a worker: claim, settle, renew, release
 *
 * They go through one connection. A claim may wait in the server for long, so it is
 * sent and taken apart; the others wait for their answer, and need that no claim is
 * under way. A call that could not be made now can be repeated: each is undone if
 * there is no answer, or its repetition finds nothing to do.
 */
#include "postgres_fe.h"

#include "common/logging.h"
#include "pqexpbuffer.h"

#include "command.h"
#include "database.h"
#include "lease.h"

static const char *const claim_sql =
"SELECT c.id, c.message_id, c.topic, c.namespace, c.attempts AS attempt, c.retry_count, c.correlation_id,"
"       c.tenant_id, c.dedupe_key, c.stream_id, c.subscription, c.published_id, c.priority, c.created_at,"
"       c.due_time, c.locked_until, c.headers, c.headers OPERATOR(pg_catalog.->>) 'traceparent' AS traceparent, c.payload"
"  FROM outbox.claim(owner_token => $1::uuid, lease_seconds => $2::integer, batch_size => 1,"
"                    namespace => $3::text, topics => $4::text[], subscription => $5::text,"
"                    tenant_id => $6::uuid, wait_ms => $7::integer) c";

/* Send a claim for one message. False if the connection is lost. */
bool
send_claim(const ClaimRequest *request)
{
	const char *values[] = {request->owner, number_text(request->lease_seconds), request->namespace, request->topics,
		request->subscription, request->tenant, number_text(request->wait_ms)
	};

	return PQsendQueryParams(connection, claim_sql, lengthof(values), NULL, values, NULL, NULL, 0) == 1;
}

/* How a statement has ended; its error is reported unless it is one that passes. */
static CallResult
judge(const PGresult *result)
{
	/* no connection, a conflict, no resources, an end of the server, a lock */
	static const char *const passing[] = {"08", "40", "53", "57", "55P"};
	const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;

	if (PQresultStatus(result) == PGRES_TUPLES_OK)
		return CALL_DONE;
	if (state && strcmp(state, "57014") == 0)
		return CALL_CANCELED;
	report_result(connection, result);
	if (state == NULL || PQstatus(connection) == CONNECTION_BAD)
		return CALL_AGAIN;
	for (int i = 0; i < (int) lengthof(passing); i++)
		if (strncmp(state, passing[i], strlen(passing[i])) == 0)
			return CALL_AGAIN;
	return CALL_FAILED;
}

/*
 * Take the answer to a claim; it waits for it. The messages, at most one, are null if
 * there are none; the caller clears them.
 */
CallResult
take_claim(PGresult **messages)
{
	PGresult   *result = PQgetResult(connection);
	CallResult	answer = judge(result);

	*messages = NULL;
	if (answer == CALL_DONE && PQntuples(result) > 0)
		*messages = result;
	else
		PQclear(result);
	while ((result = PQgetResult(connection)) != NULL)
		PQclear(result);
	return answer;
}

/* Have the claim that waits end soon; its answer is still to be taken. */
void
cancel_claim(void)
{
	PGcancel   *cancel = PQgetCancel(connection);
	char		error[256];

	if (cancel && !PQcancel(cancel, error, sizeof(error)))
		pg_log_warning("could not cancel a claim: %s", error);
	PQfreeCancel(cancel);
}

/* Make a call that answers with a number: how many it has changed. */
static CallResult
call(const char *sql, int count, const char *const *values, int *changed)
{
	PGresult   *result = PQexecParams(connection, sql, count, NULL, values, NULL, NULL, 0);
	CallResult	answer = judge(result);

	/* behind a pooler, what was to end a claim may have come too late */
	if (answer == CALL_CANCELED)
		answer = CALL_AGAIN;
	*changed = answer == CALL_DONE ? atoi(PQgetvalue(result, 0, 0)) : 0;
	PQclear(result);
	return answer;
}

/*
 * Settle a message. The error is for nack and fail, the delay for nack; they may be
 * null. If the database cannot store the error, it does without it.
 */
CallResult
settle(Outcome outcome, const char *owner, const char *id, const char *attempt, const char *error,
	   const char *delay)
{
	static const char *const statements[] = {
		[OUTCOME_ACKED] = "SELECT outbox.ack_one($1::uuid, $2::bigint, $3::integer)",
		[OUTCOME_NACKED] = "SELECT outbox.nack_one($1::uuid, $2::bigint, $4::text, $5::interval, $3::integer)",
		[OUTCOME_FAILED] = "SELECT outbox.fail_one($1::uuid, $2::bigint, $4::text, 4, $3::integer)",
		[OUTCOME_RELEASED] = "SELECT outbox.release_one($1::uuid, $2::bigint)"
	};
	static const int counts[] = {3, 5, 4, 2};
	const char *values[] = {owner, id, attempt, error, delay};
	int			changed;
	CallResult	answer;

	Assert(outcome != OUTCOME_LOST);
	answer = call(statements[outcome], counts[outcome], values, &changed);
	if (answer == CALL_FAILED && error != NULL && counts[outcome] > 3)
	{
		values[3] = NULL;
		answer = call(statements[outcome], counts[outcome], values, &changed);
	}
	return answer == CALL_DONE && changed == 0 ? CALL_LOST : answer;
}

/* Renew leases; renewed says for each whether it is still held. */
CallResult
renew(int count, char **owners, char **ids, char **attempts, int lease_seconds, bool *renewed)
{
	char	   *arrays[] = {array_of(count, owners), array_of(count, ids), array_of(count, attempts)};
	const char *values[] = {arrays[0], arrays[1], arrays[2], number_text(lease_seconds)};
	PGresult   *result = PQexecParams(connection,
									  "SELECT outbox.renew_one(u.owner_token, u.id, $4::integer, u.attempt)"
									  "  FROM unnest($1::uuid[], $2::bigint[], $3::integer[])"
									  "       WITH ORDINALITY u(owner_token, id, attempt, place) ORDER BY u.place",
									  lengthof(values), NULL, values, NULL, NULL, 0);
	CallResult	answer = judge(result);

	for (int i = 0; i < count; i++)
		renewed[i] = answer != CALL_DONE || strcmp(PQgetvalue(result, i, 0), "1") == 0;
	PQclear(result);
	for (int i = 0; i < (int) lengthof(arrays); i++)
		free(arrays[i]);
	return answer;
}

/* Give back whatever this owner still has. */
void
release_all(const char *owner)
{
	int			changed;

	call("SELECT outbox.release($1::uuid)", 1, &owner, &changed);
}

/* Connect again after the connection was lost; false if there is none yet. */
bool
reconnect(void)
{
	PGconn	   *fresh = open_connection(true);

	if (fresh == NULL)
		return false;
	PQfinish(connection);
	connection = fresh;
	return true;
}
