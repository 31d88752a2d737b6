/*
 * handler.c
 *	  Topics that are served inside the database.
 *
 * What outbox.handlers says is kept per backend (cached_table.c).
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "queue/handler.h"
#include "queue/handler_bind.h"
#include "shmem/wake.h"
#include "table/cached_table.h"
#include "table/catalog.h"
#include "table/table.h"
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
	HD_TIMEOUT_MS,
	HD_OWNER,
	HD_FUNCTION_OID,
	HD_ROLE_OID,
	HD_OWNER_OID,
	HD_HOME,
	HD_NATTS = HD_HOME
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
	if (!slot_attisnull(slot, HD_TIMEOUT_MS))
		handler->timeout_ms = DatumGetInt32(outbox_row_get(slot, HD_TIMEOUT_MS));
	handler->owner = pstrdup(NameStr(*DatumGetName(outbox_row_get(slot, HD_OWNER))));
	handler->function_oid = DatumGetObjectId(outbox_row_get(slot, HD_FUNCTION_OID));
	handler->role_oid = DatumGetObjectId(outbox_row_get(slot, HD_ROLE_OID));
	handler->owner_oid = DatumGetObjectId(outbox_row_get(slot, HD_OWNER_OID));
	handler->home = TextDatumGetCString(outbox_row_get(slot, HD_HOME));
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
	copy->owner = pstrdup(handler->owner);
	copy->home = pstrdup(handler->home);
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

/* What a handler is bound to, as names and as OIDs. */
static void
set_binding(TupleTableSlot *row, const OutboxHandler *handler)
{
	Name		role = palloc_object(NameData);
	Name		owner = palloc_object(NameData);

	namestrcpy(role, handler->role);
	namestrcpy(owner, handler->owner);
	outbox_row_set(row, HD_HANDLER, CStringGetTextDatum(handler->function));
	outbox_row_set(row, HD_ROLE, NameGetDatum(role));
	outbox_row_set(row, HD_OWNER, NameGetDatum(owner));
	outbox_row_set(row, HD_FUNCTION_OID, ObjectIdGetDatum(handler->function_oid));
	outbox_row_set(row, HD_ROLE_OID, ObjectIdGetDatum(handler->role_oid));
	outbox_row_set(row, HD_OWNER_OID, ObjectIdGetDatum(handler->owner_oid));
	outbox_row_set(row, HD_HOME, CStringGetTextDatum(handler->home));
}

/* Register a handler; the caller has checked that there is none yet. */
void
outbox_handler_add(const OutboxHandler *handler)
{
	OutboxTable table;
	TupleTableSlot *row;

	outbox_table_open(&table, outbox_catalog()->handlers, HD_NATTS);
	row = outbox_table_new_row(&table);
	outbox_row_set(row, HD_NAMESPACE, PointerGetDatum(handler->namespace));
	outbox_row_set(row, HD_TOPIC, PointerGetDatum(handler->topic));
	outbox_row_set(row, HD_BATCH_SIZE, Int32GetDatum(handler->batch_size));
	outbox_row_set(row, HD_LEASE_SECONDS, Int32GetDatum(handler->lease_seconds));
	if (handler->timeout_ms > 0)
		outbox_row_set(row, HD_TIMEOUT_MS, Int32GetDatum(handler->timeout_ms));
	set_binding(row, handler);
	outbox_table_insert(&table, row);
	announce_change(&table);
	ExecDropSingleTupleTableSlot(row);
	outbox_table_close(&table);
	CommandCounterIncrement();
}

/*
 * Show each handler to a function that may change what it is bound to; how many
 * were changed.  A row that is locked is left as it is.
 */
int
outbox_handler_rewrite(bool (*rewrite) (OutboxHandler *handler))
{
	OutboxTable table;
	Snapshot	snapshot;
	TableScanDesc scan;
	TupleTableSlot *slot;
	TupleTableSlot *row;
	TransactionId blocker;
	int			n = 0;

	outbox_table_open(&table, outbox_catalog()->handlers, HD_NATTS);
	table.nkeys = 2;
	slot = outbox_table_slot(&table);
	row = outbox_table_new_row(&table);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan = table_beginscan(table.rel, snapshot, 0, NULL);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		OutboxHandler *handler = read_handler(slot);

		CHECK_FOR_INTERRUPTS();
		if (!rewrite(handler))
			continue;
		outbox_new_row_from(row, slot);
		set_binding(row, handler);
		if (outbox_table_update(&table, slot, row, false, &blocker) == OUTBOX_ROW_OK)
			n++;
	}
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	if (n > 0)
		announce_change(&table);
	ExecDropSingleTupleTableSlot(row);
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&table);
	CommandCounterIncrement();
	return n;
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
		const OutboxHandler *handler;

		if (!outbox_text_equal(DatumGetTextPP(outbox_row_get(slot, HD_TOPIC)), topic) ||
			!outbox_text_equal(DatumGetTextPP(outbox_row_get(slot, HD_NAMESPACE)), namespace))
			continue;
		handler = read_handler(slot);
		if (!superuser() &&
			!(outbox_handler_is_at_home(handler) &&
			  outbox_role_exists(handler->role_oid) &&
			  has_privs_of_role(GetUserId(), handler->role_oid)))
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
