/*
 * handler.c
 *	  Topics that are served inside the database.
 *
 * What outbox.handlers says is kept per backend (cached_table.c).
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_proc.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "queue/handler.h"
#include "shmem/wake.h"
#include "table/cached_table.h"
#include "table/catalog.h"
#include "table/table.h"
#include "util/guc.h"
#include "util/hash.h"

/* outbox.handlers */
enum
{
	HD_NAMESPACE = 1,
	HD_TOPIC,
	HD_HANDLER,
	HD_ROLE,
	HD_BATCH_SIZE,
	HD_LEASE_SECONDS,
	HD_NATTS = HD_LEASE_SECONDS
};

static void begin_handlers(void);
static void add_handler(TupleTableSlot *slot);
static Oid	find_handlers(void);

static OutboxCachedTable cache = {
	.name = "outbox handlers",.find = find_handlers,
	.begin = begin_handlers,.add = add_handler
};

static List *handlers = NIL;

static void
forget_handlers(Datum arg, Oid relid)
{
	outbox_cached_table_forget(&cache, relid);
}

/* From _PG_init. */
void
outbox_handler_init(void)
{
	CacheRegisterRelcacheCallback(forget_handlers, (Datum) 0);
}

/*
 * Read them again.  A worker that is woken by a change can be there before
 * the invalidation is.
 */
void
outbox_handler_forget(void)
{
	outbox_cached_table_forget(&cache, InvalidOid);
}

static Oid
find_handlers(void)
{
	return outbox_catalog()->handlers;
}

static void
begin_handlers(void)
{
	handlers = NIL;
}

static OutboxHandler *
read_handler(TupleTableSlot *slot)
{
	OutboxHandler *handler = palloc0_object(OutboxHandler);

	handler->namespace = DatumGetTextPCopy(outbox_row_get(slot, HD_NAMESPACE));
	handler->topic = DatumGetTextPCopy(outbox_row_get(slot, HD_TOPIC));
	handler->lane = outbox_topic_key(handler->namespace, handler->topic);
	handler->function = TextDatumGetCString(outbox_row_get(slot, HD_HANDLER));
	handler->role = pstrdup(NameStr(*DatumGetName(outbox_row_get(slot, HD_ROLE))));
	handler->batch_size = DatumGetInt32(outbox_row_get(slot, HD_BATCH_SIZE));
	handler->lease_seconds = DatumGetInt32(outbox_row_get(slot, HD_LEASE_SECONDS));
	return handler;
}

static void
add_handler(TupleTableSlot *slot)
{
	handlers = lappend(handlers, read_handler(slot));
}

/* All of them; good until the next invalidation is accepted. */
List *
outbox_handlers(void)
{
	outbox_cached_table_load(&cache);
	return handlers;
}

/* A copy in the current memory context. */
OutboxHandler *
outbox_handler_copy(const OutboxHandler *handler)
{
	OutboxHandler *copy = palloc_object(OutboxHandler);

	*copy = *handler;
	copy->namespace = DatumGetTextPCopy(PointerGetDatum(handler->namespace));
	copy->topic = DatumGetTextPCopy(PointerGetDatum(handler->topic));
	copy->function = pstrdup(handler->function);
	copy->role = pstrdup(handler->role);
	return copy;
}

/*
 * Is there a handler for this lane, or, if the topic is given, for exactly
 * this topic in it?
 */
bool
outbox_handler_serves(int64 lane, const text *topic)
{
	ListCell   *lc;

	foreach(lc, outbox_handlers())
	{
		const OutboxHandler *handler = lfirst(lc);

		if (handler->lane == lane &&
			(topic == NULL || outbox_text_equal(handler->topic, topic)))
			return true;
	}
	return false;
}

/* ---------------------------------------------------------------------- */
/* Changes                                                                */
/* ---------------------------------------------------------------------- */

/* Have every session read the handlers again, and the worker look. */
static void
announce_change(OutboxTable *table)
{
	CacheInvalidateRelcache(table->rel);
	outbox_wake_note_policies(outbox_store(OUTBOX_QUEUE)->table);
}

/* Register a handler; the caller has checked that there is none yet. */
void
outbox_handler_add(const OutboxHandler *handler)
{
	OutboxTable table;
	TupleTableSlot *row;
	NameData	role;

	namestrcpy(&role, handler->role);
	outbox_table_open(&table, outbox_catalog()->handlers, HD_NATTS);
	row = outbox_table_new_row(&table);
	outbox_row_set(row, HD_NAMESPACE, PointerGetDatum(handler->namespace));
	outbox_row_set(row, HD_TOPIC, PointerGetDatum(handler->topic));
	outbox_row_set(row, HD_HANDLER, CStringGetTextDatum(handler->function));
	outbox_row_set(row, HD_ROLE, NameGetDatum(&role));
	outbox_row_set(row, HD_BATCH_SIZE, Int32GetDatum(handler->batch_size));
	outbox_row_set(row, HD_LEASE_SECONDS, Int32GetDatum(handler->lease_seconds));
	outbox_table_insert(&table, row);
	announce_change(&table);
	ExecDropSingleTupleTableSlot(row);
	outbox_table_close(&table);
	CommandCounterIncrement();
}

/* Delete the row of a handler that the caller may delete. */
static bool
delete_row(OutboxTable *table, const text *namespace, const text *topic)
{
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = table_beginscan(table->rel, snapshot, 0, NULL);
	TupleTableSlot *slot = outbox_table_slot(table);
	bool		deleted = false;

	while (!deleted && table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		Oid			owner;

		if (!outbox_text_equal(DatumGetTextPP(outbox_row_get(slot, HD_TOPIC)), topic) ||
			!outbox_text_equal(DatumGetTextPP(outbox_row_get(slot, HD_NAMESPACE)), namespace))
			continue;
		owner = get_role_oid(NameStr(*DatumGetName(outbox_row_get(slot, HD_ROLE))), true);
		if (!superuser() &&
			(!OidIsValid(owner) || !has_privs_of_role(GetUserId(), owner)))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied for the handler of topic \"%s\"",
							text_to_cstring(topic)),
					 errdetail("Only the role that has registered it may remove it.")));
		deleted = outbox_table_delete(table, slot, true, NULL) == OUTBOX_ROW_OK;
	}
	ExecDropSingleTupleTableSlot(slot);
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	return deleted;
}

/* Remove the handler of a topic; false if it has none. */
bool
outbox_handler_remove(const text *namespace, const text *topic)
{
	OutboxTable table;
	bool		removed;

	CommandCounterIncrement();
	outbox_table_open(&table, outbox_catalog()->handlers, HD_NATTS);
	table.nkeys = 2;
	removed = delete_row(&table, namespace, topic);
	if (removed)
		announce_change(&table);
	outbox_table_close(&table);
	return removed;
}

/* ---------------------------------------------------------------------- */
/* Rights                                                                 */
/* ---------------------------------------------------------------------- */

/* Can a worker connect as this role?  Since 17 it may, whatever the role. */
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
 * Is this role a superuser by now?  Not what the caches say: a worker can be
 * called by the very commit that makes it one, before they are told.
 */
static bool
is_superuser_now(Oid roleid)
{
	Relation	rel = table_open(AuthIdRelationId, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
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
