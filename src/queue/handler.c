/*
 * handler.c
 *	  Topics and subscriptions that are served inside the database.
 *
 * Each backend keeps a copy of outbox.handlers (cached_table.c).  The handler
 * of a subscription names it; the number of the subscription, which changes if
 * it is dropped and made again, is looked up each time the list is requested.
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

#include "compat.h"
#include "queue/handler.h"
#include "queue/handler_bind.h"
#include "queue/policy.h"
#include "queue/subscriber.h"
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
	HD_SUBSCRIPTION,
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
static int	nof_topics = 0;

static void
forget_handlers(Datum arg, Oid relid)
{
	outbox_cached_table_forget(&cache, relid);
}

/* Called by _PG_init. */
void
outbox_handler_init(void)
{
	CacheRegisterRelcacheCallback(forget_handlers, (Datum) 0);
}

/*
 * Make this backend read the handlers again.  A worker that a change has woken
 * may run before it has received the invalidation.
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
	nof_topics = 0;
}

/*
 * Make a handler from a row of outbox.handlers, in the current memory context.
 * Its subscriber is not set.
 */
static OutboxHandler *
read_handler(TupleTableSlot *slot)
{
	OutboxHandler *handler = palloc0_object(OutboxHandler);
	text	   *subscription = DatumGetTextPCopy(outbox_row_get(slot, HD_SUBSCRIPTION));

	if (VARSIZE_ANY_EXHDR(subscription) > 0)
		handler->subscription = subscription;
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
	OutboxHandler *handler = read_handler(slot);

	handlers = lappend(handlers, handler);
	if (handler->subscription == NULL)
		nof_topics++;
}

/* Look up the current numbers of the subscriptions. */
static void
find_subscribers(void)
{
	ListCell   *lc;

	foreach(lc, handlers)
	{
		OutboxHandler *handler = lfirst(lc);

		if (handler->subscription == NULL)
			continue;
		handler->subscriber = outbox_subscriber_find(handler->namespace,
													 handler->subscription);
		/* one that does not exist has no lane, but needs a distinct value */
		handler->lane = handler->subscriber != 0 ?
			outbox_subscriber_key(handler->subscriber) :
			~outbox_topic_key(handler->namespace, handler->subscription);
	}
}

/*
 * All handlers.  The list is valid until the next invalidation is processed.
 */
List *
outbox_handlers(void)
{
	outbox_cached_table_load(&cache);

	/*
	 * reading one of the two tables may process an invalidation of the other
	 */
	while (list_length(handlers) > nof_topics)
	{
		outbox_subscribers_load();
		if (cache.valid)
		{
			find_subscribers();
			break;
		}
		outbox_cached_table_load(&cache);
	}
	return handlers;
}

/* Is there any handler of a topic? */
bool
outbox_handlers_of_topics(void)
{
	outbox_cached_table_load(&cache);
	return nof_topics > 0;
}

/* Copy a handler into the current memory context. */
OutboxHandler *
outbox_handler_copy(const OutboxHandler *handler)
{
	OutboxHandler *copy = palloc_object(OutboxHandler);

	*copy = *handler;
	copy->namespace = DatumGetTextPCopy(PointerGetDatum(handler->namespace));
	copy->topic = DatumGetTextPCopy(PointerGetDatum(handler->topic));
	if (handler->subscription != NULL)
		copy->subscription = DatumGetTextPCopy(PointerGetDatum(handler->subscription));
	copy->function = pstrdup(handler->function);
	copy->role = pstrdup(handler->role);
	copy->owner = pstrdup(handler->owner);
	copy->home = pstrdup(handler->home);
	return copy;
}

/*
 * Is there a handler for the topic with this key, or, if "topic" is given, for
 * exactly this topic?  Handlers of subscriptions do not count.
 */
bool
outbox_handler_serves(int64 lane, const text *topic)
{
	ListCell   *lc;

	if (!outbox_handlers_of_topics())
		return false;
	foreach(lc, handlers)
	{
		const OutboxHandler *handler = lfirst(lc);

		if (handler->subscription == NULL && handler->lane == lane &&
			(topic == NULL || outbox_text_equal(handler->topic, topic)))
			return true;
	}
	return false;
}

/* The handler of a subscription; NULL if it has none. */
OutboxHandler *
outbox_handler_of_subscription(const text *namespace, const text *name)
{
	ListCell   *lc;

	foreach(lc, outbox_handlers())
	{
		OutboxHandler *handler = lfirst(lc);

		if (handler->subscription != NULL &&
			outbox_text_equal(handler->subscription, name) &&
			outbox_text_equal(handler->namespace, namespace))
			return handler;
	}
	return NULL;
}

/* A description of what a handler serves, for messages. */
const char *
outbox_handler_domain(const OutboxHandler *handler)
{
	if (handler->subscription != NULL)
		return psprintf("subscription \"%s\"",
						text_to_cstring(handler->subscription));
	return psprintf("topic \"%s\"", text_to_cstring(handler->topic));
}

/* Set the filter for the lanes of a handler's messages. */
void
outbox_handler_filter(const OutboxHandler *handler, OutboxLaneFilter *filter)
{
	uint32	   *hashes = palloc_array(uint32, 2);

	memset(filter, 0, sizeof(OutboxLaneFilter));
	hashes[0] = outbox_namespace_hash(handler->namespace);
	filter->namespace_hash = &hashes[0];
	if (handler->subscription != NULL)
	{
		filter->subscribers = &handler->subscriber;
		filter->nsubscribers = handler->subscriber != 0 ? 1 : 0;
		return;
	}
	hashes[1] = outbox_topic_hash(handler->topic);
	filter->topic_hashes = &hashes[1];
	filter->ntopics = 1;
}

/* Is its topic or subscription paused? */
bool
outbox_handler_is_paused(const OutboxHandler *handler)
{
	if (handler->subscription != NULL)
		return handler->subscriber == 0 ||
			outbox_policy_subscriber_is_paused(handler->subscriber);
	return outbox_policy_topic_is_paused(OUTBOX_QUEUE, handler->lane);
}

/* ---------------------------------------------------------------------- */
/* Changes                                                                */
/* ---------------------------------------------------------------------- */

/* Make all sessions read the handlers again, and wake the worker. */
static void
announce_change(OutboxTable *table)
{
	CacheInvalidateRelcache(table->rel);
	outbox_wake_note_policies(outbox_store(OUTBOX_QUEUE)->table);
}

/* Set the columns that say what a handler is bound to, as names and OIDs. */
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
	outbox_row_set(row, HD_SUBSCRIPTION, handler->subscription != NULL ?
				   PointerGetDatum(handler->subscription) : CStringGetTextDatum(""));
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
 * Call a function for each handler that may change what it is bound to;
 * returns how many were changed.  Rows that are locked are skipped.
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
	table.nkeys = 3;
	slot = outbox_table_slot(&table);
	row = outbox_table_new_row(&table);
	snapshot = outbox_snapshot_now();
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

/*
 * Is this the handler of the subscription, or, if that is NULL, of the topic?
 */
static bool
is_handler_of(const OutboxHandler *handler, const text *namespace,
			  const text *topic, const text *subscription)
{
	if (!outbox_text_equal(handler->namespace, namespace) ||
		(topic != NULL && !outbox_text_equal(handler->topic, topic)))
		return false;
	if (subscription == NULL || handler->subscription == NULL)
		return subscription == NULL && handler->subscription == NULL;
	return outbox_text_equal(handler->subscription, subscription);
}

/* Delete the row of a handler, if the caller is allowed to. */
static bool
delete_row(OutboxTable *table, const text *namespace, const text *topic,
		   const text *subscription)
{
	Snapshot	snapshot = outbox_snapshot_now();
	TableScanDesc scan = table_beginscan(table->rel, snapshot, 0, NULL);
	TupleTableSlot *slot = outbox_table_slot(table);
	bool		deleted = false;

	while (!deleted && table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		const OutboxHandler *handler = read_handler(slot);

		if (!is_handler_of(handler, namespace, topic, subscription))
			continue;
		if (!superuser() &&
			!(outbox_handler_is_at_home(handler) &&
			  outbox_role_exists(handler->role_oid) &&
			  has_privs_of_role(GetUserId(), handler->role_oid)))
			ereport(ERROR,
					(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
					 errmsg("permission denied for handler of %s",
							outbox_handler_domain(handler)),
					 errdetail("Only members of the role that has registered it may remove it.")));
		deleted = outbox_table_delete(table, slot, true, NULL) == OUTBOX_ROW_OK;
	}
	ExecDropSingleTupleTableSlot(slot);
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	return deleted;
}

/*
 * Remove the handler of a topic, or of a subscription if one is given; if both
 * are given, it must have been registered with that topic.  False if there is
 * none.
 */
bool
outbox_handler_remove(const text *namespace, const text *topic,
					  const text *subscription)
{
	OutboxTable table;
	bool		removed;

	CommandCounterIncrement();
	outbox_table_open(&table, outbox_catalog()->handlers, HD_NATTS);
	table.nkeys = 3;
	removed = delete_row(&table, namespace, topic, subscription);
	if (removed)
		announce_change(&table);
	outbox_table_close(&table);
	return removed;
}
