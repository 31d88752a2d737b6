/*
 * sql_work.c
 *	  SQL functions by which workers claim messages and settle them.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "api/args.h"
#include "compat.h"
#include "core/claim.h"
#include "core/claim_wait.h"
#include "core/reap.h"
#include "core/requeue.h"
#include "core/settle.h"
#include "outbox.h"
#include "queue/message.h"
#include "table/catalog.h"
#include "util/guc.h"
#include "util/uuid.h"

/* The form of the arguments that name messages. */
typedef enum MessageForm
{
	MANY,						/* ids bigint[], attempts int[] */
	ONE							/* id bigint, attempt int */
} MessageForm;

/*
 * Define the SQL function "name", which calls "body" for one of the live
 * tables; the rest are further arguments of the body.
 */
#define TWIN(name, body, ...) \
	PG_FUNCTION_INFO_V1(name); \
	Datum \
	name(PG_FUNCTION_ARGS) \
	{ \
		return body(fcinfo, __VA_ARGS__); \
	}

/* ---------------------------------------------------------------------- */
/* Claiming                                                               */
/* ---------------------------------------------------------------------- */

static void
return_message(TupleTableSlot *message, bool taken_over, void *arg)
{
	ReturnSetInfo *rsinfo = arg;
	Datum		values[OUTBOX_MESSAGE_NATTS];
	bool		isnull[OUTBOX_MESSAGE_NATTS];

	outbox_message_values(message, values, isnull);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
}

/* Get the topics of a claim; NULL if the argument is null. */
static void
get_topics(FunctionCallInfo fcinfo, int arg, OutboxClaim *claim)
{
	Datum	   *values;
	bool	   *isnull;
	int			n;

	if (PG_ARGISNULL(arg))
		return;
	outbox_arg_array(fcinfo, arg, "topics", TEXTOID, &values, &isnull, &n);
	claim->topics = palloc_array(const text *, n + 1);
	for (int i = 0; i < n; i++)
	{
		if (isnull[i])
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("topics must not contain nulls")));
		claim->topics[claim->ntopics++] = DatumGetTextPP(values[i]);
	}
}

/* Get the arguments that all claims have. */
static void
get_claim(FunctionCallInfo fcinfo, OutboxClaim *claim)
{
	claim->lease_seconds = outbox_arg_int(fcinfo, 1, "lease_seconds",
										  outbox_lease_seconds, 1,
										  OUTBOX_MAX_LEASE_SECONDS);
	claim->batch_size = outbox_arg_int(fcinfo, 2, "batch_size",
									   outbox_batch_size, 1, OUTBOX_MAX_BATCH);
}

/* Get the arguments of claims that select by topic. */
static void
get_filters(FunctionCallInfo fcinfo, OutboxClaim *claim)
{
	claim->namespace = outbox_arg_name_or_null(fcinfo, 3, "namespace");
	get_topics(fcinfo, 4, claim);
	claim->tenant = outbox_arg_uuid_or_null(fcinfo, 5);
	claim->max_attempts = outbox_arg_int(fcinfo, 6, "max_attempts", 0, 1,
										 PG_INT32_MAX);
}

/* Get the subscription of a claim. */
static void
get_subscription(FunctionCallInfo fcinfo, int arg, OutboxClaim *claim)
{
	if (PG_NARGS() <= arg)
		return;
	claim->subscription = outbox_arg_text_or_null(fcinfo, arg);
	outbox_args_subscribers(claim->namespace, claim->subscription,
							&claim->subscribers, &claim->nsubscribers);
}

/*
 * outbox.claim(owner_token uuid, lease_seconds int, batch_size int,
 *				namespace text, topics text[], tenant_id uuid,
 *				max_attempts int, wait_ms int, subscription text)
 *		RETURNS SETOF outbox.message Leases due messages to the owner, or to a
 *		new one without an owner_token.
 */
static Datum
claim_messages(FunctionCallInfo fcinfo, OutboxStoreKind kind)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxClaim claim = {0};
	int			wait_ms;

	outbox_require_writable("outbox.claim()");
	claim.store = outbox_store(kind);
	if (PG_ARGISNULL(0))
		outbox_uuid7(GetCurrentTimestamp(), &claim.owner);
	else
		claim.owner = *PG_GETARG_UUID_P(0);
	get_claim(fcinfo, &claim);
	get_filters(fcinfo, &claim);
	get_subscription(fcinfo, 8, &claim);
	wait_ms = outbox_arg_int(fcinfo, 7, "wait_ms", 0, 0, OUTBOX_MAX_WAIT_MS);

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	(void) outbox_claim_or_wait(&claim, wait_ms, return_message, rsinfo);
	return (Datum) 0;
}

/*
 * outbox.claim_timers(owner_token uuid, lease_seconds int, batch_size int)
 *		RETURNS SETOF outbox.message
 *		The same for timers and runs, without selection.
 */
static Datum
claim_alike(FunctionCallInfo fcinfo, OutboxStoreKind kind)
{
	OutboxClaim claim = {0};

	outbox_require_writable("outbox.claim()");
	claim.store = outbox_store(kind);
	claim.owner = *outbox_arg_uuid(fcinfo, 0, "owner_token");
	get_claim(fcinfo, &claim);

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	(void) outbox_claim(&claim, return_message, fcinfo->resultinfo, NULL);
	return (Datum) 0;
}

/* ---------------------------------------------------------------------- */
/* Settling                                                               */
/* ---------------------------------------------------------------------- */

/* Attempts in an OutboxLeaseRef: any; and one that no lease has. */
#define ANY_ATTEMPT (-1)
#define NO_ATTEMPT 0

/* Get the leases named by two arrays; the array of attempts may be null. */
static void
get_many(FunctionCallInfo fcinfo, int attempts_arg, OutboxSettle *settle)
{
	Datum	   *ids;
	Datum	   *attempts = NULL;
	bool	   *ids_null;
	bool	   *attempts_null;
	int			nids;
	int			nattempts;

	outbox_arg_list(fcinfo, 1, "ids", INT8OID, &ids, &ids_null, &nids);
	if (attempts_arg >= 0 && !PG_ARGISNULL(attempts_arg))
	{
		outbox_arg_array(fcinfo, attempts_arg, "attempts", INT4OID, &attempts,
						 &attempts_null, &nattempts);
		if (nattempts != nids)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("attempts must have as many elements as ids")));
	}
	settle->leases = palloc_array(OutboxLeaseRef, nids + 1);
	for (int i = 0; i < nids; i++)
	{
		int			attempt = ANY_ATTEMPT;

		if (ids_null[i])
			continue;
		if (attempts != NULL)
			attempt = attempts_null[i] ? NO_ATTEMPT :
				Max(DatumGetInt32(attempts[i]), NO_ATTEMPT);
		settle->leases[settle->nleases++] =
			OUTBOX_MAKE(OutboxLeaseRef,.id = DatumGetInt64(ids[i]),
						.attempts = attempt);
	}
}

/* Get the lease named by an id and an attempt, which may be null. */
static void
get_one(FunctionCallInfo fcinfo, int attempt_arg, OutboxSettle *settle)
{
	int			attempt = ANY_ATTEMPT;

	if (PG_ARGISNULL(1))
		return;
	if (attempt_arg >= 0 && !PG_ARGISNULL(attempt_arg))
		attempt = Max(PG_GETARG_INT32(attempt_arg), NO_ATTEMPT);
	settle->leases = palloc_array(OutboxLeaseRef, 1);
	settle->leases[0] =
		OUTBOX_MAKE(OutboxLeaseRef,.id = PG_GETARG_INT64(1),
					.attempts = attempt);
	settle->nleases = 1;
}

/*
 * Get the arguments that all settling functions have: owner_token, then the
 * messages; strict; and attempts, unless attempts_arg is negative.
 */
static void
get_leases(FunctionCallInfo fcinfo, MessageForm form, int attempts_arg,
		   int strict_arg, OutboxSettle *settle)
{
	Assert(PG_NARGS() > Max(attempts_arg, strict_arg));
	settle->owner = *outbox_arg_uuid(fcinfo, 0, "owner_token");
	if (form == MANY)
		get_many(fcinfo, attempts_arg, settle);
	else
		get_one(fcinfo, attempts_arg, settle);
	settle->strict = !PG_ARGISNULL(strict_arg) && PG_GETARG_BOOL(strict_arg);
}

/*
 * outbox.ack(owner_token uuid, ids bigint[], attempts int[], strict boolean)
 *		RETURNS int
 *		Finishes messages.
 */
static Datum
ack_messages(FunctionCallInfo fcinfo, OutboxStoreKind kind, MessageForm form)
{
	OutboxSettle settle = {.what = OUTBOX_ACK};

	outbox_require_writable("outbox.ack()");
	settle.store = outbox_store(kind);
	get_leases(fcinfo, form, 2, 3, &settle);
	/* the output of a run is stored with it */
	if (PG_NARGS() > 4)
		settle.error = outbox_arg_text_or_null(fcinfo, 4);
	PG_RETURN_INT32(outbox_settle(&settle));
}

/*
 * outbox.nack(owner_token uuid, ids bigint[], error text, delay interval,
 *			   attempts int[], strict boolean, max_attempts int) RETURNS int
 *		Returns messages for a retry.
 */
static Datum
nack_messages(FunctionCallInfo fcinfo, OutboxStoreKind kind, MessageForm form)
{
	OutboxSettle settle = {.what = OUTBOX_NACK,.reason = OUTBOX_REASON_UNKNOWN};

	outbox_require_writable("outbox.nack()");
	settle.store = outbox_store(kind);
	get_leases(fcinfo, form, 4, 5, &settle);
	settle.error = outbox_arg_text_or_null(fcinfo, 2);
	settle.delay = outbox_arg_delay_or_null(fcinfo, 3, "delay");
	settle.max_attempts = outbox_arg_int(fcinfo, 6, "max_attempts", 0, 1,
										 PG_INT32_MAX);
	PG_RETURN_INT32(outbox_settle(&settle));
}

/*
 * outbox.fail(owner_token uuid, ids bigint[], error text, reason int,
 *			   attempts int[], strict boolean) RETURNS int
 *		Fails messages permanently.
 */
static Datum
fail_messages(FunctionCallInfo fcinfo, OutboxStoreKind kind, MessageForm form)
{
	OutboxSettle settle = {.what = OUTBOX_FAIL};

	outbox_require_writable("outbox.fail()");
	settle.store = outbox_store(kind);
	get_leases(fcinfo, form, 4, 5, &settle);
	settle.error = outbox_arg_text_or_null(fcinfo, 2);
	settle.reason = outbox_arg_int(fcinfo, 3, "reason", OUTBOX_REASON_UNKNOWN,
								   0, PG_INT16_MAX);
	PG_RETURN_INT32(outbox_settle(&settle));
}

/*
 * outbox.renew(owner_token uuid, ids bigint[], lease_seconds int,
 *				attempts int[], strict boolean) RETURNS int
 *		Renews leases, counted from now.
 */
static Datum
renew_messages(FunctionCallInfo fcinfo, OutboxStoreKind kind, MessageForm form)
{
	OutboxSettle settle = {.what = OUTBOX_RENEW};

	outbox_require_writable("outbox.renew()");
	settle.store = outbox_store(kind);
	get_leases(fcinfo, form, 3, 4, &settle);
	settle.lease_seconds = outbox_arg_int(fcinfo, 2, "lease_seconds",
										  outbox_lease_seconds, 1,
										  OUTBOX_MAX_LEASE_SECONDS);
	PG_RETURN_INT32(outbox_settle(&settle));
}

/*
 * outbox.release(owner_token uuid, ids bigint[], strict boolean) RETURNS int
 *		Releases leases.
 */
static Datum
release_messages(FunctionCallInfo fcinfo, OutboxStoreKind kind, MessageForm form)
{
	OutboxSettle settle = {.what = OUTBOX_RELEASE};

	outbox_require_writable("outbox.release()");
	settle.store = outbox_store(kind);
	get_leases(fcinfo, form, -1, 2, &settle);
	PG_RETURN_INT32(outbox_settle(&settle));
}

/*
 * outbox.release(owner_token uuid) RETURNS int
 *		Releases all leases of an owner, and ends its waiting claims.
 */
static Datum
release_all(FunctionCallInfo fcinfo, OutboxStoreKind kind)
{
	const pg_uuid_t *owner;

	outbox_require_writable("outbox.release()");
	owner = outbox_arg_uuid(fcinfo, 0, "owner_token");
	PG_RETURN_INT32(outbox_release_all(outbox_store(kind), owner));
}

/*
 * outbox.reap(batch_limit int) RETURNS int
 *		Makes messages whose leases have ended ready again, and fails expired
 *		ones.
 */
static Datum
reap_messages(FunctionCallInfo fcinfo, OutboxStoreKind kind)
{
	outbox_require_writable("outbox.reap()");
	PG_RETURN_INT32(outbox_reap(outbox_store(kind),
								outbox_arg_int(fcinfo, 0, "batch_limit",
											   OUTBOX_MAX_BATCH, 1,
											   PG_INT32_MAX)));
}

TWIN(outbox_claim_messages, claim_messages, OUTBOX_QUEUE)
TWIN(outbox_ack, ack_messages, OUTBOX_QUEUE, MANY)
TWIN(outbox_nack, nack_messages, OUTBOX_QUEUE, MANY)
TWIN(outbox_fail, fail_messages, OUTBOX_QUEUE, MANY)
TWIN(outbox_renew, renew_messages, OUTBOX_QUEUE, MANY)
TWIN(outbox_release, release_messages, OUTBOX_QUEUE, MANY)
TWIN(outbox_ack_one, ack_messages, OUTBOX_QUEUE, ONE)
TWIN(outbox_nack_one, nack_messages, OUTBOX_QUEUE, ONE)
TWIN(outbox_fail_one, fail_messages, OUTBOX_QUEUE, ONE)
TWIN(outbox_renew_one, renew_messages, OUTBOX_QUEUE, ONE)
TWIN(outbox_release_one, release_messages, OUTBOX_QUEUE, ONE)
TWIN(outbox_release_all_messages, release_all, OUTBOX_QUEUE)
TWIN(outbox_reap_messages, reap_messages, OUTBOX_QUEUE)

TWIN(outbox_claim_inbox, claim_messages, OUTBOX_INBOX)
TWIN(outbox_ack_inbox, ack_messages, OUTBOX_INBOX, MANY)
TWIN(outbox_nack_inbox, nack_messages, OUTBOX_INBOX, MANY)
TWIN(outbox_fail_inbox, fail_messages, OUTBOX_INBOX, MANY)
TWIN(outbox_renew_inbox, renew_messages, OUTBOX_INBOX, MANY)
TWIN(outbox_release_inbox, release_messages, OUTBOX_INBOX, MANY)
TWIN(outbox_release_all_inbox, release_all, OUTBOX_INBOX)
TWIN(outbox_reap_inbox, reap_messages, OUTBOX_INBOX)

TWIN(outbox_claim_timers, claim_alike, OUTBOX_TIMERS)
TWIN(outbox_ack_timers, ack_messages, OUTBOX_TIMERS, MANY)
TWIN(outbox_nack_timers, nack_messages, OUTBOX_TIMERS, MANY)
TWIN(outbox_fail_timers, fail_messages, OUTBOX_TIMERS, MANY)
TWIN(outbox_renew_timers, renew_messages, OUTBOX_TIMERS, MANY)
TWIN(outbox_reap_timers, reap_messages, OUTBOX_TIMERS)

TWIN(outbox_claim_job_runs, claim_alike, OUTBOX_RUNS)
TWIN(outbox_ack_job_runs, ack_messages, OUTBOX_RUNS, MANY)
TWIN(outbox_nack_job_runs, nack_messages, OUTBOX_RUNS, MANY)
TWIN(outbox_fail_job_runs, fail_messages, OUTBOX_RUNS, MANY)
TWIN(outbox_renew_job_runs, renew_messages, OUTBOX_RUNS, MANY)
TWIN(outbox_reap_job_runs, reap_messages, OUTBOX_RUNS)

/*
 * outbox.requeue(ids bigint[]) RETURNS int
 *		Puts dead messages back.
 */
static Datum
requeue_messages(FunctionCallInfo fcinfo, OutboxStoreKind kind)
{
	int64	   *ids;
	int			n;

	outbox_require_writable("outbox.requeue()");
	ids = outbox_arg_ids(fcinfo, 0, "ids", &n);
	PG_RETURN_INT32(outbox_requeue(outbox_store(kind), ids, n));
}

TWIN(outbox_requeue_messages, requeue_messages, OUTBOX_QUEUE)
TWIN(outbox_requeue_inbox, requeue_messages, OUTBOX_INBOX)
TWIN(outbox_requeue_timers, requeue_messages, OUTBOX_TIMERS)
TWIN(outbox_requeue_job_runs, requeue_messages, OUTBOX_RUNS)

/*
 * outbox.requeue_one(id bigint) RETURNS int
 *		The same with one message. */
PG_FUNCTION_INFO_V1(outbox_requeue_one);
Datum
outbox_requeue_one(PG_FUNCTION_ARGS)
{
	int64		id;

	outbox_require_writable("outbox.requeue_one()");
	if (PG_ARGISNULL(0))
		PG_RETURN_INT32(0);
	id = PG_GETARG_INT64(0);
	PG_RETURN_INT32(outbox_requeue(outbox_store(OUTBOX_QUEUE), &id, 1));
}
