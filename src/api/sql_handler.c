/*
 * sql_handler.c
 *	  SQL functions by which handlers are registered, and run by hand.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/syscache.h"

#include "api/args.h"
#include "outbox.h"
#include "queue/handler.h"
#include "table/catalog.h"
#include "util/guc.h"
#include "util/hash.h"
#include "worker/handler_run.h"

#define DEFAULT_BATCH_SIZE 20

/* A handler takes an outbox.message and returns nothing. */
static void
check_signature(Oid function)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc proc;
	bool		fits;

	if (!HeapTupleIsValid(tuple))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("function with OID %u does not exist", function)));
	proc = (Form_pg_proc) GETSTRUCT(tuple);
	fits = proc->prokind == PROKIND_FUNCTION && !proc->proretset &&
		proc->prorettype == VOIDOID && proc->pronargs == 1 &&
		proc->proargtypes.values[0] == get_rel_type_id(outbox_catalog()->message);
	ReleaseSysCache(tuple);
	if (!fits)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("handler must be a function that takes one outbox.message and returns void")));
}

/* May this role have a handler, and call this function? */
static void
check_role(Oid roleid, Oid function)
{
	if (!outbox_handler_role_allowed(roleid))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("a superuser must not register a handler"),
				 errdetail("The handler would run as superuser."),
				 errhint("Register it as a role with just the rights that it needs, or turn on outbox.allow_superuser_handlers.")));
	if (!outbox_handler_role_connects(roleid))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("role \"%s\" cannot log in, so no worker can run its handlers",
						GetUserNameFromId(roleid, false)),
				 errhint("ALTER ROLE ... LOGIN.")));
	if (!outbox_function_may_be_called(function, roleid))
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_FUNCTION, get_func_name(function));
}

/*
 * outbox.register_handler(topic text, handler regprocedure, namespace text,
 *						   batch_size int, lease_seconds int) RETURNS void
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
	OutboxHandler handler;

	outbox_begin_call("outbox.register_handler()");
	outbox_require(fcinfo, 1, "handler");
	function = PG_GETARG_OID(1);
	batch_size = outbox_arg_int(fcinfo, 3, "batch_size", DEFAULT_BATCH_SIZE, 1,
								OUTBOX_MAX_BATCH);
	lease_seconds = outbox_arg_int(fcinfo, 4, "lease_seconds",
								   outbox_lease_seconds, 1,
								   OUTBOX_MAX_LEASE_SECONDS);
	check_signature(function);
	check_role(GetUserId(), function);
	if (outbox_handler_serves(outbox_topic_key(namespace, topic), topic))
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("topic \"%s\" has a handler already",
						text_to_cstring(topic)),
				 errhint("Call outbox.unregister_handler first.")));

	handler.namespace = unconstify(text *, namespace);
	handler.topic = unconstify(text *, topic);
	handler.function = format_procedure_qualified(function);
	handler.role = GetUserNameFromId(GetUserId(), false);
	handler.batch_size = batch_size;
	handler.lease_seconds = lease_seconds;
	outbox_handler_add(&handler);
	PG_RETURN_VOID();
}

/* outbox.unregister_handler(topic text, namespace text) RETURNS void */
PG_FUNCTION_INFO_V1(outbox_unregister_handler);
Datum
outbox_unregister_handler(PG_FUNCTION_ARGS)
{
	const text *topic = outbox_arg_name(fcinfo, 0, "topic");
	const text *namespace = outbox_arg_name(fcinfo, 1, "namespace");

	outbox_begin_call("outbox.unregister_handler()");
	if (!outbox_handler_remove(namespace, topic))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("topic \"%s\" has no handler", text_to_cstring(topic))));
	PG_RETURN_VOID();
}

/*
 * outbox._run_handlers() RETURNS int
 *		One batch of each handler whose role the caller may act for.
 */
PG_FUNCTION_INFO_V1(outbox_run_handlers);
Datum
outbox_run_handlers(PG_FUNCTION_ARGS)
{
	int			n = 0;
	List	   *copies = NIL;
	ListCell   *lc;

	outbox_begin_call("outbox._run_handlers()");
	/* what we are given may be gone as soon as the first of them has run */
	foreach(lc, outbox_handlers())
		copies = lappend(copies, outbox_handler_copy(lfirst(lc)));
	foreach(lc, copies)
	{
		const OutboxHandler *handler = lfirst(lc);
		Oid			roleid = get_role_oid(handler->role, true);

		if (OidIsValid(roleid) && outbox_handler_role_allowed(roleid) &&
			has_privs_of_role(GetUserId(), roleid))
			n += outbox_handler_run_here(handler, roleid);
	}
	PG_RETURN_INT32(n);
}
