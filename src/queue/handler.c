/*
 * handler.c
 *	  Topics that are served inside the database.
 *
 * What outbox.handlers says is kept per backend, and read anew when the table
 * has changed, like policies.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "queue/handler.h"
#include "util/hash.h"
#include "table/table.h"

static MemoryContext handlers_context = NULL;
static List *handlers = NIL;
static bool handlers_valid = false;
static Oid	handlers_relid = InvalidOid;

static void
forget_handlers(Datum arg, Oid relid)
{
	if (!OidIsValid(relid) || relid == handlers_relid)
		handlers_valid = false;
}

/* From _PG_init. */
void
outbox_handler_init(void)
{
	CacheRegisterRelcacheCallback(forget_handlers, (Datum) 0);
}

/*
 * Read them anew.  Who is called after a change can be there before the
 * invalidation is.
 */
void
outbox_handler_forget(void)
{
	handlers_valid = false;
}

static OutboxHandler *
read_handler(TupleTableSlot *slot)
{
	OutboxHandler *handler = palloc0_object(OutboxHandler);

	handler->namespace = DatumGetTextPCopy(outbox_row_get(slot, HD_NAMESPACE));
	handler->topic = DatumGetTextPCopy(outbox_row_get(slot, HD_TOPIC));
	handler->lane = outbox_topic_lane(handler->namespace, handler->topic);
	handler->function = TextDatumGetCString(outbox_row_get(slot, HD_HANDLER));
	handler->role = pstrdup(NameStr(*DatumGetName(outbox_row_get(slot, HD_ROLE))));
	handler->batch_size = DatumGetInt32(outbox_row_get(slot, HD_BATCH_SIZE));
	handler->lease_seconds = DatumGetInt32(outbox_row_get(slot, HD_LEASE_SECONDS));
	return handler;
}

static void
read_all(void)
{
	Relation	rel;
	Snapshot	snapshot;
	TableScanDesc scan;
	TupleTableSlot *slot;

	if (handlers_context == NULL)
		handlers_context = AllocSetContextCreate(CacheMemoryContext,
												 "outbox handlers",
												 ALLOCSET_SMALL_SIZES);
	MemoryContextReset(handlers_context);
	handlers = NIL;
	handlers_relid = outbox_catalog()->handlers;
	rel = outbox_relation_open(handlers_relid, AccessShareLock);
	/* an invalidation that comes in from here on makes the next call reload */
	handlers_valid = true;
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	slot = table_slot_create(rel, NULL);
	scan = table_beginscan(rel, snapshot, 0, NULL);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		MemoryContext old = MemoryContextSwitchTo(handlers_context);

		handlers = lappend(handlers, read_handler(slot));
		MemoryContextSwitchTo(old);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
}

/* Half of them would be worse than none: after an error, begin anew. */
static void
load_handlers(void)
{
	PG_TRY();
	{
		read_all();
	}
	PG_CATCH();
	{
		handlers_valid = false;
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/* All of them; good until the next invalidation is accepted. */
List *
outbox_handlers(void)
{
	if (!handlers_valid)
		load_handlers();
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
