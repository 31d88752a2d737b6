/*
 * sql_handler.c
 *	  SQL functions that register and run handlers, and that report problems of
 *	  handlers and workers.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "api/args.h"
#include "compat.h"
#include "outbox.h"
#include "queue/handler.h"
#include "queue/handler_bind.h"
#include "queue/subscriber.h"
#include "shmem/troubles.h"
#include "table/catalog.h"
#include "util/guc.h"
#include "util/hash.h"
#include "worker/handler_start.h"

#define DEFAULT_BATCH_SIZE 20

/* The maximum timeout of a call: a day, in milliseconds. */
#define MAX_TIMEOUT_MS (24 * 60 * 60 * 1000)

/*
 * Raise an error unless a function takes one outbox.message and returns void.
 */
static void
check_signature(Oid function)
{
	if (!SearchSysCacheExists1(PROCOID, ObjectIdGetDatum(function)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("function with OID %u does not exist", function)));
	if (!outbox_function_fits(function))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("handler must be a function that takes one outbox.message and returns void")));
}

/* Get the timeout of a call in milliseconds; 0 if none was given. */
static int
get_timeout(FunctionCallInfo fcinfo, int arg)
{
	const Interval *timeout = outbox_arg_delay_or_null(fcinfo, arg, "timeout");
	double		ms;

	if (timeout == NULL)
		return 0;
	ms = timeout->time / 1000.0 + timeout->day * (double) SECS_PER_DAY * 1000 +
		timeout->month * (double) DAYS_PER_MONTH * SECS_PER_DAY * 1000;
	if (ms < 1 || ms > MAX_TIMEOUT_MS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("timeout must be between 1 millisecond and 1 day")));
	return (int) ms;
}

/*
 * Raise an error unless this role may have a handler and call this function.
 */
static void
check_role(Oid roleid, Oid function)
{
	if (!outbox_handler_role_allowed(roleid))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("superusers cannot register handlers"),
				 errdetail("The handler would run as superuser."),
				 errhint("Register it as a role that has only the privileges that the handler needs, or turn on outbox.allow_superuser_handlers.")));
	if (!outbox_handler_role_connects(roleid))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" cannot log in, so no worker can run its handlers",
						GetUserNameFromId(roleid, false)),
				 errhint("Use ALTER ROLE ... LOGIN.")));
	if (!outbox_function_may_be_called(function, roleid))
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FUNCTION, get_func_name(function));
}

static void
refuse_second(const OutboxHandler *handler)
{
	ereport(ERROR,
			(errcode(ERRCODE_DUPLICATE_OBJECT),
			 errmsg("%s has a handler already", outbox_handler_domain(handler)),
			 errhint("Call outbox.unregister_handler first.")));
}

/*
 * Create the subscription, or replace its topics by this pattern; its filter
 * stays.  Does nothing if it has exactly this pattern already.  Otherwise calls
 * subscribe, on which the caller must have EXECUTE.
 */
static void
subscribe(const OutboxHandler *handler)
{
	Oid			types[4] = {TEXTOID, TEXTOID, TEXTOID, JSONBOID};
	Datum		values[4] = {
		PointerGetDatum(handler->subscription), PointerGetDatum(handler->topic),
		PointerGetDatum(handler->namespace), (Datum) 0
	};
	char		nulls[] = "   n";
	const OutboxSubscriber *known = outbox_subscriber_named(handler->namespace,
															handler->subscription);

	if (known != NULL && known->npatterns == 1 &&
		outbox_text_equal(known->patterns[0], handler->topic))
		return;
	if (known != NULL && known->filter != NULL)
	{
		values[3] = datumCopy(PointerGetDatum(known->filter), false, -1);
		nulls[3] = ' ';
	}
	if (SPI_connect() != SPI_OK_CONNECT ||
		SPI_execute_with_args("SELECT " OUTBOX_SCHEMA
							  ".subscribe($1, ARRAY[$2], $3, $4)", 4, types,
							  values, nulls, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not subscribe");
	SPI_finish();
}

/*
 * outbox.register_handler(topic text, handler regprocedure, namespace text,
 *						   batch_size int, lease_seconds int,
 *						   timeout interval, subscription text) RETURNS void
 */
PG_FUNCTION_INFO_V1(outbox_register_handler);
Datum
outbox_register_handler(PG_FUNCTION_ARGS)
{
	const text *topic = outbox_arg_name(fcinfo, 0, "topic");
	const text *namespace = outbox_arg_name(fcinfo, 2, "namespace");
	int			batch_size;
	int			lease_seconds;
	Oid			function;
	int			timeout_ms;
	OutboxHandler handler;

	outbox_require_writable("outbox.register_handler()");
	outbox_require(fcinfo, 1, "handler");
	function = PG_GETARG_OID(1);
	batch_size = outbox_arg_int(fcinfo, 3, "batch_size", DEFAULT_BATCH_SIZE, 1,
								OUTBOX_MAX_BATCH);
	lease_seconds = outbox_arg_int(fcinfo, 4, "lease_seconds",
								   outbox_lease_seconds, 1,
								   OUTBOX_MAX_LEASE_SECONDS);
	timeout_ms = get_timeout(fcinfo, 5);
	check_signature(function);
	check_role(GetUserId(), function);
	handler.namespace = unconstify(text *, namespace);
	handler.topic = unconstify(text *, topic);
	handler.subscription =
		unconstify(text *, outbox_arg_name_or_null(fcinfo, 6, "subscription"));

	/*
	 * a subscription has one handler, whatever the pattern, which the primary
	 * key does not guarantee
	 */
	if (handler.subscription != NULL)
		LockRelationOid(outbox_catalog()->handlers, ShareRowExclusiveLock);
	if (handler.subscription != NULL ?
		outbox_handler_of_subscription(namespace, handler.subscription) != NULL :
		outbox_handler_serves(outbox_topic_key(namespace, topic), topic))
		refuse_second(&handler);
	if (handler.subscription != NULL)
		subscribe(&handler);
	handler.batch_size = batch_size;
	handler.lease_seconds = lease_seconds;
	handler.timeout_ms = timeout_ms;
	outbox_handler_bind(&handler, function, GetUserId());
	outbox_handler_add(&handler);
	PG_RETURN_VOID();
}

/*
 * outbox.unregister_handler(topic text, namespace text, subscription text)
 *		RETURNS void
 */
PG_FUNCTION_INFO_V1(outbox_unregister_handler);
Datum
outbox_unregister_handler(PG_FUNCTION_ARGS)
{
	const text *subscription = outbox_arg_name_or_null(fcinfo, 2, "subscription");
	const text *topic = subscription == NULL ?
	outbox_arg_name(fcinfo, 0, "topic") :
	outbox_arg_name_or_null(fcinfo, 0, "topic");
	const text *namespace = outbox_arg_name(fcinfo, 1, "namespace");

	outbox_require_writable("outbox.unregister_handler()");
	if (!outbox_handler_remove(namespace, topic, subscription))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 subscription != NULL ?
				 errmsg("subscription \"%s\" has no such handler",
						text_to_cstring(subscription)) :
				 errmsg("topic \"%s\" has no handler", text_to_cstring(topic))));
	PG_RETURN_VOID();
}

/*
 * outbox._start_handlers() RETURNS bigint
 *		Runs the handlers of all roles whose privileges the caller has, in one
 *		background process for each role, and waits for them; returns the
 *		number of messages handled.
 */
PG_FUNCTION_INFO_V1(outbox_start_handlers);
Datum
outbox_start_handlers(PG_FUNCTION_ARGS)
{
	outbox_require_writable("outbox._start_handlers()");
	PG_RETURN_INT64(outbox_handlers_start());
}

/*
 * outbox._handler_problems(OUT namespace text, OUT topic text, OUT handler text,
 *							OUT role name, OUT problem text, OUT subscription text)
 *		RETURNS SETOF record
 *		The handlers that cannot be called, and the reasons.
 */
PG_FUNCTION_INFO_V1(outbox_handler_problems);
Datum
outbox_handler_problems(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	ListCell   *lc;

	InitMaterializedSRF(fcinfo, 0);
	foreach(lc, outbox_handlers())
	{
		const OutboxHandler *handler = lfirst(lc);
		NameData	role;
		Oid			function;
		OutboxHandlerProblem problem = outbox_handler_check(handler, &function);
		Datum		values[6];
		bool		nulls[6] = {false};

		if (problem == OUTBOX_HANDLER_FINE)
			continue;
		namestrcpy(&role, handler->role);
		values[0] = PointerGetDatum(handler->namespace);
		values[1] = PointerGetDatum(handler->topic);
		values[2] = CStringGetTextDatum(handler->function);
		values[3] = NameGetDatum(&role);
		values[4] = CStringGetTextDatum(outbox_handler_problem_text(problem));
		values[5] = PointerGetDatum(handler->subscription);
		nulls[5] = handler->subscription == NULL;
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* A description of what a handler serves, as namespace/topic or similar. */
static Datum
topic_of(int64 lane, bool *isnull)
{
	ListCell   *lc;

	foreach(lc, outbox_handlers())
	{
		const OutboxHandler *handler = lfirst(lc);

		if (handler->lane == lane)
			return CStringGetTextDatum(psprintf("%s%s/%s",
												handler->subscription != NULL ? "subscription " : "",
												text_to_cstring(handler->namespace),
												text_to_cstring(handler->subscription != NULL ?
																handler->subscription :
																handler->topic)));
	}
	*isnull = true;
	return (Datum) 0;
}

/*
 * outbox._worker_troubles(OUT part text, OUT failures int, OUT sqlstate text,
 *						   OUT since timestamptz, OUT next_try timestamptz,
 *						   OUT topic text)
 *		RETURNS SETOF record
 *		The parts of the workers' rounds that fail in this database.
 */
PG_FUNCTION_INFO_V1(outbox_worker_troubles);
Datum
outbox_worker_troubles(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxTrouble *troubles = palloc_array(OutboxTrouble, OUTBOX_MAX_TROUBLES);
	int			n = outbox_troubles_list(troubles, OUTBOX_MAX_TROUBLES);

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < n; i++)
	{
		Datum		values[6];
		bool		nulls[6] = {false};

		/* _handler_problems() has more information about these */
		if (troubles[i].part == OUTBOX_PART_BINDING)
			continue;
		values[0] = CStringGetTextDatum(outbox_part_name(troubles[i].part));
		values[1] = Int32GetDatum(troubles[i].failures);
		values[2] = CStringGetTextDatum(unpack_sql_state(troubles[i].sqlerrcode));
		values[3] = TimestampTzGetDatum(troubles[i].since);
		values[4] = TimestampTzGetDatum(troubles[i].next_try);
		values[5] = topic_of(troubles[i].lane, &nulls[5]);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
