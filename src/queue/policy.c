/*
 * policy.c
 *	  What outbox.topics says of a topic.
 *
 * Each backend keeps a copy of the table (cached_table.c), which a trigger on
 * it invalidates with every change (outbox._topics_changed).
 */
#include "postgres.h"

#include "utils/datum.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "queue/policy.h"
#include "table/cached_table.h"
#include "table/catalog.h"
#include "util/guc.h"
#include "util/hash.h"

/* outbox.topics */
enum
{
	T_KIND = 1,
	T_NAMESPACE,
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
	int64		topic_key;		/* hash key */
	struct PolicyEntry *next;	/* another with the same key */
	OutboxStoreKind kind;
	text	   *namespace;
	text	   *topic;
	Datum		values[T_NATTS];
	bool		isnull[T_NATTS];
} PolicyEntry;

static void begin_policies(void);
static void add_policy(TupleTableSlot *slot);
static Oid	find_topics(void);

static OutboxCachedTable cache = {
	.name = "outbox policies",.find = find_topics,
	.begin = begin_policies,.add = add_policy
};

static HTAB *policies = NULL;
static int	npolicies = 0;
static int	npaused[OUTBOX_NSTORES];

static void
forget_policies(Datum arg, Oid relid)
{
	outbox_cached_table_forget(&cache, relid);
}

/* Read the policies again, as in outbox_handler_forget. */
void
outbox_policy_forget(void)
{
	outbox_cached_table_forget(&cache, InvalidOid);
}

/* From _PG_init. */
void
outbox_policy_init(void)
{
	CacheRegisterRelcacheCallback(forget_policies, (Datum) 0);
}

static Oid
find_topics(void)
{
	return outbox_catalog()->topics;
}

static void
begin_policies(void)
{
	HASHCTL		ctl;

	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = sizeof(int64);
	ctl.entrysize = sizeof(PolicyEntry);
	ctl.hcxt = cache.context;
	npolicies = 0;
	memset(npaused, 0, sizeof(npaused));
	policies = hash_create("outbox policies", 64, &ctl,
						   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* Of which live table does a policy speak?  -1 for a kind that is unknown. */
static int
kind_of(const text *name)
{
	static const char *const names[OUTBOX_NSTORES] = {
		[OUTBOX_QUEUE] = "message",
		[OUTBOX_INBOX] = "inbox",
		[OUTBOX_TIMERS] = "timer",
		[OUTBOX_RUNS] = "job_run"
	};

	for (int kind = 0; kind < OUTBOX_NSTORES; kind++)
	{
		if (strlen(names[kind]) == VARSIZE_ANY_EXHDR(name) &&
			memcmp(names[kind], VARDATA_ANY(name), strlen(names[kind])) == 0)
			return kind;
	}
	return -1;
}

static void
add_policy(TupleTableSlot *slot)
{
	int			kind;
	PolicyEntry *entry;
	PolicyEntry *head;
	bool		found;

	slot_getsomeattrs(slot, T_NATTS);
	kind = kind_of(DatumGetTextPP(slot->tts_values[T_KIND - 1]));
	if (kind < 0)
		return;
	entry = palloc0_object(PolicyEntry);
	entry->kind = kind;
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
	entry->topic_key = outbox_topic_key(entry->namespace, entry->topic);

	head = hash_search(policies, &entry->topic_key, HASH_ENTER, &found);
	entry->next = found ? head->next : NULL;
	head->next = entry;
	npolicies++;
	if (DatumGetBool(entry->values[T_PAUSED - 1]))
		npaused[kind]++;
}

static const PolicyEntry *
find_policy(OutboxStoreKind kind, const text *namespace, const text *topic)
{
	int64		topic_key;
	const PolicyEntry *entry;

	outbox_cached_table_load(&cache);
	if (npolicies == 0)
		return NULL;
	topic_key = outbox_topic_key(namespace, topic);
	entry = hash_search(policies, &topic_key, HASH_FIND, NULL);
	for (entry = entry ? entry->next : NULL; entry; entry = entry->next)
	{
		if (entry->kind == kind &&
			outbox_text_equal(entry->namespace, namespace) &&
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
	return (int) Min(seconds + 0.5, OUTBOX_KEEP_MAX);
}

/*
 * What holds for this topic of a live table.  What was received and is done is not
 * kept, unless the policy says so: that it was there once is remembered elsewhere.
 */
void
outbox_policy_get(const OutboxStore *store, const text *namespace,
				  const text *topic, OutboxPolicy *policy)
{
	const PolicyEntry *entry = find_policy(store->kind, namespace, topic);

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
 * Is the topic with this key paused?  Of topics that share a key one is enough.
 */
bool
outbox_policy_topic_is_paused(OutboxStoreKind kind, int64 topic_key)
{
	const PolicyEntry *entry;

	outbox_cached_table_load(&cache);
	if (npaused[kind] == 0)
		return false;
	entry = hash_search(policies, &topic_key, HASH_FIND, NULL);
	for (entry = entry ? entry->next : NULL; entry; entry = entry->next)
	{
		if (entry->kind == kind && DatumGetBool(entry->values[T_PAUSED - 1]))
			return true;
	}
	return false;
}

/* All topics of a live table that are paused. */
void
outbox_policy_paused(OutboxStoreKind kind, OutboxTopicKeys *topics)
{
	HASH_SEQ_STATUS scan;
	const PolicyEntry *head;

	outbox_cached_table_load(&cache);
	topics->n = 0;
	topics->keys = palloc_array(int64, npaused[kind] + 1);
	if (npaused[kind] == 0)
		return;
	hash_seq_init(&scan, policies);
	while ((head = hash_seq_search(&scan)) != NULL)
	{
		for (const PolicyEntry *entry = head->next; entry; entry = entry->next)
		{
			if (entry->kind == kind && DatumGetBool(entry->values[T_PAUSED - 1]))
				topics->keys[topics->n++] = entry->topic_key;
		}
	}
	Assert(topics->n == npaused[kind]);
	qsort(topics->keys, topics->n, sizeof(int64), outbox_int64_cmp);
}
