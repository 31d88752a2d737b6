/*
 * policy.c
 *	  What outbox.topics says of a topic.
 *
 * Each backend keeps a copy of the table and throws it away when the table's
 * relcache entry is invalidated, which a trigger on the table does with every
 * change (outbox_topics_changed).  So a change is in force for the next call
 * of every session once it has committed, and costs nobody a look-up.
 */
#include "postgres.h"

#include <limits.h>

#include "access/table.h"
#include "access/tableam.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/datum.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "util/guc.h"
#include "util/hash.h"
#include "queue/policy.h"
#include "table/table.h"
#include "shmem/wake.h"

/* outbox.topics */
enum
{
	T_NAMESPACE = 1,
	T_TOPIC,
	T_PAUSED,
	T_MAX_ATTEMPTS,
	T_BACKOFF_BASE,
	T_BACKOFF_MAX,
	T_BACKOFF_JITTER,
	T_RETENTION,
	T_DEAD_RETENTION,
	T_CHECK_DEDUPE_TENANT,
	T_NATTS = T_CHECK_DEDUPE_TENANT
};

/* What a topic says itself; a null means: as the settings say. */
typedef struct PolicyEntry
{
	int64		lane;			/* hash key */
	struct PolicyEntry *next;	/* another topic in the same lane */
	text	   *namespace;
	text	   *topic;
	Datum		values[T_NATTS];
	bool		isnull[T_NATTS];
} PolicyEntry;

static MemoryContext policy_context = NULL;
static HTAB *policies = NULL;
static bool policies_valid = false;
static Oid	policies_relid = InvalidOid;
static int	npolicies = 0;
static int	npaused = 0;

static void
forget_policies(Datum arg, Oid relid)
{
	if (!OidIsValid(relid) || relid == policies_relid)
		policies_valid = false;
}

/* Read them anew, as in outbox_handler_forget. */
void
outbox_policy_forget(void)
{
	policies_valid = false;
}

/* From _PG_init. */
void
outbox_policy_init(void)
{
	CacheRegisterRelcacheCallback(forget_policies, (Datum) 0);
}

static void
add_policy(TupleTableSlot *slot)
{
	PolicyEntry *entry = palloc0_object(PolicyEntry);
	PolicyEntry *head;
	bool		found;

	slot_getsomeattrs(slot, T_NATTS);
	entry->namespace = DatumGetTextPCopy(slot->tts_values[T_NAMESPACE - 1]);
	entry->topic = DatumGetTextPCopy(slot->tts_values[T_TOPIC - 1]);
	for (int i = 0; i < T_NATTS; i++)
	{
		Form_pg_attribute att = TupleDescAttr(slot->tts_tupleDescriptor, i);

		entry->isnull[i] = slot->tts_isnull[i];
		if (!entry->isnull[i])
			entry->values[i] = datumCopy(slot->tts_values[i], att->attbyval,
										 att->attlen);
	}
	entry->lane = outbox_topic_lane(entry->namespace, entry->topic);

	head = hash_search(policies, &entry->lane, HASH_ENTER, &found);
	entry->next = found ? head->next : NULL;
	head->next = entry;
	npolicies++;
	if (DatumGetBool(entry->values[T_PAUSED - 1]))
		npaused++;
}

static void
read_all(void)
{
	HASHCTL		ctl = {.keysize = sizeof(int64),
	.entrysize = sizeof(PolicyEntry)};
	Relation	rel;
	Snapshot	snapshot;
	TableScanDesc scan;
	TupleTableSlot *slot;
	MemoryContext old;

	if (policy_context == NULL)
		policy_context = AllocSetContextCreate(CacheMemoryContext,
											   "outbox policies",
											   ALLOCSET_SMALL_SIZES);
	MemoryContextReset(policy_context);
	npolicies = npaused = 0;
	ctl.hcxt = policy_context;
	policies = hash_create("outbox policies", 64, &ctl,
						   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	policies_relid = outbox_catalog()->topics;
	rel = outbox_relation_open(policies_relid, AccessShareLock);
	/* an invalidation that comes in from here on makes the next call reload */
	policies_valid = true;
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	slot = table_slot_create(rel, NULL);
	scan = table_beginscan(rel, snapshot, 0, NULL);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		old = MemoryContextSwitchTo(policy_context);
		add_policy(slot);
		MemoryContextSwitchTo(old);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
}

/* Half of them would be worse than none: after an error, begin anew. */
static void
load_policies(void)
{
	PG_TRY();
	{
		read_all();
	}
	PG_CATCH();
	{
		policies_valid = false;
		PG_RE_THROW();
	}
	PG_END_TRY();
}

static const PolicyEntry *
find_policy(const text *namespace, const text *topic)
{
	int64		lane;
	const PolicyEntry *entry;

	if (!policies_valid)
		load_policies();
	if (npolicies == 0)
		return NULL;
	lane = outbox_topic_lane(namespace, topic);
	entry = hash_search(policies, &lane, HASH_FIND, NULL);
	for (entry = entry ? entry->next : NULL; entry; entry = entry->next)
	{
		if (outbox_text_equal(entry->namespace, namespace) &&
			outbox_text_equal(entry->topic, topic))
			return entry;
	}
	return NULL;
}

/* An interval as microseconds, as extract(epoch from it) has it. */
static double
interval_usecs(const Interval *interval)
{
	int			years = interval->month / MONTHS_PER_YEAR;
	int			months = interval->month % MONTHS_PER_YEAR;
	double		days;

	days = years * (double) DAYS_PER_YEAR + months * (double) DAYS_PER_MONTH +
		interval->day;
	return days * (double) USECS_PER_DAY + (double) interval->time;
}

static int
keep_seconds(Datum interval)
{
	double		seconds = interval_usecs(DatumGetIntervalP(interval)) / USECS_PER_SEC;

	if (seconds < 0)
		return OUTBOX_KEEP_FOREVER;
	return (int) Min(seconds + 0.5, INT_MAX);
}

/*
 * What holds for this topic.  Topics are the queue's; for other live tables
 * it is what the settings say.  What was received and is done is not kept:
 * that it was there once is remembered elsewhere.
 */
void
outbox_policy_get(const OutboxStore *store, const text *namespace,
				  const text *topic, OutboxPolicy *policy)
{
	const PolicyEntry *entry = NULL;

	if (store->kind == OUTBOX_QUEUE)
		entry = find_policy(namespace, topic);
	policy->paused = false;
	policy->max_attempts = outbox_max_attempts;
	policy->backoff_base = outbox_backoff_base * 1000.0;
	policy->backoff_max = outbox_backoff_max * 1000.0;
	policy->backoff_jitter = outbox_backoff_jitter;
	policy->retention = outbox_retention == 0 || store->kind == OUTBOX_INBOX ?
		OUTBOX_KEEP_NOT : OUTBOX_KEEP_DEFAULT;
	policy->dead_retention = outbox_dead_retention == 0 ? OUTBOX_KEEP_NOT :
		OUTBOX_KEEP_DEFAULT;
	policy->check_dedupe_tenant = outbox_check_dedupe_tenant;
	if (entry == NULL)
		return;

	policy->paused = DatumGetBool(entry->values[T_PAUSED - 1]);
	if (!entry->isnull[T_MAX_ATTEMPTS - 1])
		policy->max_attempts = DatumGetInt32(entry->values[T_MAX_ATTEMPTS - 1]);
	if (!entry->isnull[T_BACKOFF_BASE - 1])
		policy->backoff_base =
			interval_usecs(DatumGetIntervalP(entry->values[T_BACKOFF_BASE - 1]));
	if (!entry->isnull[T_BACKOFF_MAX - 1])
		policy->backoff_max =
			interval_usecs(DatumGetIntervalP(entry->values[T_BACKOFF_MAX - 1]));
	if (!entry->isnull[T_BACKOFF_JITTER - 1])
		policy->backoff_jitter =
			DatumGetBool(entry->values[T_BACKOFF_JITTER - 1]);
	if (!entry->isnull[T_RETENTION - 1])
		policy->retention = keep_seconds(entry->values[T_RETENTION - 1]);
	if (!entry->isnull[T_DEAD_RETENTION - 1])
		policy->dead_retention = keep_seconds(entry->values[T_DEAD_RETENTION - 1]);
	if (!entry->isnull[T_CHECK_DEDUPE_TENANT - 1])
		policy->check_dedupe_tenant =
			DatumGetBool(entry->values[T_CHECK_DEDUPE_TENANT - 1]);
}

/*
 * Is the topic of this lane paused?  Of topics that share a lane one is
 * enough.
 */
bool
outbox_policy_lane_is_paused(int64 lane)
{
	const PolicyEntry *entry;

	if (!policies_valid)
		load_policies();
	if (npaused == 0)
		return false;
	entry = hash_search(policies, &lane, HASH_FIND, NULL);
	for (entry = entry ? entry->next : NULL; entry; entry = entry->next)
	{
		if (DatumGetBool(entry->values[T_PAUSED - 1]))
			return true;
	}
	return false;
}

/*
 * outbox._topics_changed() RETURNS trigger
 *		After each change of outbox.topics: every backend is to read it anew.
 */
PG_FUNCTION_INFO_V1(outbox_topics_changed);
Datum
outbox_topics_changed(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("\"%s\" was not called as a trigger",
						"outbox._topics_changed")));
	CacheInvalidateRelcache(((TriggerData *) fcinfo->context)->tg_relation);
	outbox_wake_note_all();
	PG_RETURN_POINTER(NULL);
}
