/*
 * handler_bind.c
 *	  What a handler is bound to: a function and a role, by identity.
 *
 * Names can be reused: a role is dropped and another one gets its name, or a
 * function is dropped and another user creates one with the same name.  So a
 * handler is bound to the OIDs of the role that has registered it, of the
 * function, and of the function's owner.  OIDs do not survive a dump.  So the
 * names are kept, too, as is "home", which identifies the database where the
 * OIDs are valid.  In another database the names are looked up once, and the
 * handler is bound again if there are such a role and such a function, with an
 * owner of that name.
 *
 * A function that was dropped and created again by the same owner, with the
 * same signature, counts as the same function: its owner could have replaced
 * it as well.
 *
 * None of this may fail because of missing privileges: monitoring uses it,
 * too.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "compat.h"
#include "queue/handler.h"
#include "queue/handler_bind.h"
#include "table/catalog.h"
#include "table/table.h"
#include "util/guc.h"

/* ---------------------------------------------------------------------- */
/* Roles                                                                  */
/* ---------------------------------------------------------------------- */

/* Is there a role with this OID? */
bool
outbox_role_exists(Oid roleid)
{
	return SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(roleid));
}

/*
 * Can a worker connect as this role?  Since version 17, it can bypass LOGIN.
 */
bool
outbox_handler_role_connects(Oid roleid)
{
#if PG_VERSION_NUM >= 170000
	return true;
#else
	HeapTuple	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(roleid));
	bool		result;

	if (!HeapTupleIsValid(tuple))
		return false;
	result = ((Form_pg_authid) GETSTRUCT(tuple))->rolcanlogin;
	ReleaseSysCache(tuple);
	return result;
#endif
}

/*
 * Is this role a superuser now?  Does not use the caches: the commit that
 * makes the role a superuser may be the one that calls a worker, before the
 * caches are invalidated.
 */
static bool
is_superuser_now(Oid roleid)
{
	Relation	rel = table_open(AuthIdRelationId, AccessShareLock);
	Snapshot	snapshot = outbox_snapshot_now();
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		result;

	ScanKeyInit(&key, Anum_pg_authid_oid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(roleid));
	scan = systable_beginscan(rel, AuthIdOidIndexId, true, snapshot, 1, &key);
	tuple = systable_getnext(scan);
	result = HeapTupleIsValid(tuple) &&
		((Form_pg_authid) GETSTRUCT(tuple))->rolsuper;
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return result;
}

/* May this role have handlers? */
bool
outbox_handler_role_allowed(Oid roleid)
{
	return outbox_allow_superuser_handlers || !is_superuser_now(roleid);
}

/* ---------------------------------------------------------------------- */
/* Functions                                                              */
/* ---------------------------------------------------------------------- */

/* Does the role have EXECUTE on the function? */
bool
outbox_function_may_be_called(Oid function, Oid roleid)
{
#if PG_VERSION_NUM >= 160000
	return object_aclcheck(ProcedureRelationId, function, roleid,
						   ACL_EXECUTE) == ACLCHECK_OK;
#else
	return pg_proc_aclcheck(function, roleid, ACL_EXECUTE) == ACLCHECK_OK;
#endif
}

/*
 * The owner of a function; invalid if it does not exist.  *fits is set to
 * whether it takes one outbox.message and returns void.
 */
static Oid
look_at_function(Oid function, bool *fits)
{
	HeapTuple	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(function));
	Form_pg_proc proc;
	Oid			owner;

	*fits = false;
	if (!HeapTupleIsValid(tuple))
		return InvalidOid;
	proc = (Form_pg_proc) GETSTRUCT(tuple);
	owner = proc->proowner;
	*fits = proc->prokind == PROKIND_FUNCTION && !proc->proretset &&
		proc->prorettype == VOIDOID && proc->pronargs == 1 &&
		proc->proargtypes.values[0] == get_rel_type_id(outbox_catalog()->message);
	ReleaseSysCache(tuple);
	return owner;
}

/* The function with this signature; invalid if there is none. */
static Oid
find_function(const char *signature)
{
	Oid			type = get_rel_type_id(outbox_catalog()->message);
	char	   *name = pstrdup(signature);
	char	   *arguments = strrchr(name, '(');
	List	   *names;
	Oid			namespace;

	if (arguments == NULL)
		return InvalidOid;
	*arguments = '\0';
	names = outbox_split_qualified(name);
	if (list_length(names) != 2)
		return InvalidOid;
	namespace = get_namespace_oid(strVal(linitial(names)), true);
	if (!OidIsValid(namespace))
		return InvalidOid;
	return GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid,
						   CStringGetDatum(strVal(lsecond(names))),
						   PointerGetDatum(buildoidvector(&type, 1)),
						   ObjectIdGetDatum(namespace));
}

/* ---------------------------------------------------------------------- */
/* Handlers                                                               */
/* ---------------------------------------------------------------------- */

/*
 * What identifies the present place, stored with OIDs: they are different in
 * another cluster, in another database, or if the extension was created again.
 */
static char *
home(void)
{
	return psprintf(UINT64_FORMAT "/%u/%u", GetSystemIdentifier(),
					MyDatabaseId, outbox_catalog()->handlers);
}

/* Are the OIDs of the handler valid in this database? */
bool
outbox_handler_is_at_home(const OutboxHandler *handler)
{
	return strcmp(handler->home, home()) == 0;
}

/* Bind a handler to a function and a role, which must exist. */
void
outbox_handler_bind(OutboxHandler *handler, Oid function, Oid roleid)
{
	bool		fits;

	handler->function_oid = function;
	handler->role_oid = roleid;
	handler->owner_oid = look_at_function(function, &fits);
	handler->function = format_procedure_qualified(function);
	handler->role = GetUserNameFromId(roleid, false);
	handler->owner = GetUserNameFromId(handler->owner_oid, false);
	handler->home = home();
}

/* Does this function take an outbox.message, and return void? */
bool
outbox_function_fits(Oid function)
{
	bool		fits;

	return OidIsValid(look_at_function(function, &fits)) && fits;
}

/*
 * Can this handler be called?  If so, sets *function to what must be called,
 * as role_oid.
 */
OutboxHandlerProblem
outbox_handler_check(const OutboxHandler *handler, Oid *function)
{
	Oid			owner;
	bool		fits;

	*function = InvalidOid;
	if (!outbox_handler_is_at_home(handler))
		return OUTBOX_HANDLER_UNBOUND;
	if (!outbox_role_exists(handler->role_oid))
		return OUTBOX_HANDLER_NO_ROLE;
	if (!outbox_handler_role_allowed(handler->role_oid))
		return OUTBOX_HANDLER_SUPERUSER;
	if (!outbox_handler_role_connects(handler->role_oid))
		return OUTBOX_HANDLER_NO_LOGIN;
	*function = handler->function_oid;
	owner = look_at_function(*function, &fits);
	if (!OidIsValid(owner))
	{
		*function = find_function(handler->function);
		owner = look_at_function(*function, &fits);
	}
	if (!OidIsValid(owner) || !fits)
		return OUTBOX_HANDLER_NO_FUNCTION;
	if (owner != handler->owner_oid)
		return OUTBOX_HANDLER_OTHER_OWNER;
	if (!outbox_function_may_be_called(*function, handler->role_oid))
		return OUTBOX_HANDLER_NO_RIGHT;
	if (handler->subscription != NULL && handler->subscriber == 0)
		return OUTBOX_HANDLER_NO_SUBSCRIPTION;
	return OUTBOX_HANDLER_FINE;
}

/* A description of a problem: a sentence without its subject. */
const char *
outbox_handler_problem_text(OutboxHandlerProblem problem)
{
	switch (problem)
	{
		case OUTBOX_HANDLER_FINE:
			return NULL;
		case OUTBOX_HANDLER_UNBOUND:
			return "comes from another database, and this one has no such role, or no such function with the same owner";
		case OUTBOX_HANDLER_NO_ROLE:
			return "was registered by a role that has been dropped";
		case OUTBOX_HANDLER_SUPERUSER:
			return "was registered by a role that is a superuser now";
		case OUTBOX_HANDLER_NO_LOGIN:
			return "was registered by a role that cannot log in now";
		case OUTBOX_HANDLER_NO_FUNCTION:
			return "has lost its function";
		case OUTBOX_HANDLER_OTHER_OWNER:
			return "has a function that belongs to another owner now";
		case OUTBOX_HANDLER_NO_RIGHT:
			return "has a function that its role may not call";
		case OUTBOX_HANDLER_NO_SUBSCRIPTION:
			return "serves a subscription that does not exist";
	}
	pg_unreachable();
}

/* The SQLSTATE of a problem. */
int
outbox_handler_problem_code(OutboxHandlerProblem problem)
{
	switch (problem)
	{
		case OUTBOX_HANDLER_NO_FUNCTION:
			return ERRCODE_UNDEFINED_FUNCTION;
		case OUTBOX_HANDLER_NO_ROLE:
		case OUTBOX_HANDLER_NO_SUBSCRIPTION:
			return ERRCODE_UNDEFINED_OBJECT;
		case OUTBOX_HANDLER_UNBOUND:
			return ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
		default:
			return ERRCODE_INSUFFICIENT_PRIVILEGE;
	}
}

/*
 * Find the function and the role that a handler from another database can be
 * bound to; false if there are none.
 */
bool
outbox_handler_find_binding(const OutboxHandler *handler, Oid *function,
							Oid *roleid)
{
	Oid			owner;
	bool		fits;

	*roleid = get_role_oid(handler->role, true);
	*function = find_function(handler->function);
	owner = look_at_function(*function, &fits);
	return OidIsValid(*roleid) && OidIsValid(owner) && fits &&
		strcmp(GetUserNameFromId(owner, false), handler->owner) == 0;
}

/*
 * Bind a handler that comes from another database; for one of this database,
 * update names that have changed, so that a dump has the right ones.  Returns
 * whether the handler was changed.
 */
static bool
rebind(OutboxHandler *handler)
{
	OutboxHandler old = *handler;
	Oid			function;
	Oid			roleid;

	if (!outbox_handler_is_at_home(handler))
	{
		if (!outbox_handler_find_binding(handler, &function, &roleid))
			return false;
		outbox_handler_bind(handler, function, roleid);
		return true;
	}
	if (outbox_handler_check(handler, &function) != OUTBOX_HANDLER_FINE)
		return false;
	outbox_handler_bind(handler, function, handler->role_oid);
	return strcmp(handler->function, old.function) != 0 ||
		strcmp(handler->role, old.role) != 0 ||
		strcmp(handler->owner, old.owner) != 0 ||
		handler->function_oid != old.function_oid;
}

/*
 * Bind all handlers that came with a dump, if that is possible.  This is done
 * with the privileges of the extension's owner, whichever role calls.
 */
void
outbox_handlers_bind(void)
{
	Oid			userid;
	int			context;

	GetUserIdAndSecContext(&userid, &context);
	SetUserIdAndSecContext(outbox_catalog()->owner,
						   context | SECURITY_LOCAL_USERID_CHANGE);
	(void) outbox_handler_rewrite(rebind);
	SetUserIdAndSecContext(userid, context);
}
