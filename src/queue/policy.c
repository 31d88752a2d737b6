/*
 * policy.c
 *	  Policies of topics: the settings in outbox.topics.
 *
 * Each backend keeps a copy of the table (cached_table.c), which a trigger on
 * the table invalidates at each change (outbox._topics_changed).
 */
#include "postgres.h"

#include "utils/datum.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "queue/policy.h"
#include "queue/subscriber.h"
#include "table/cached_table.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/table.h"
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
	T_PUBLISH_RETENTION,
	T_PRIORITY,
	T_NATTS = T_PRIORITY
};

/* Kinds of policies: one for each live table, and one for subscriptions. */
#define SUBSCRIPTIONS OUTBOX_NSTORES
#define NKINDS (OUTBOX_NSTORES + 1)

/* A row of outbox.topics; null values stand for the settings of the server. */
typedef struct PolicyEntry
{
	int64		topic_key;		/* hash key */
	struct PolicyEntry *next;	/* another with the same key */
	int			kind;
	text	   *namespace;
	text	   *topic;			/* or subscription */
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
static int	npaused[NKINDS];
static int	npriorities = 0;

static void
forget_policies(Datum arg, Oid relid)
{
	outbox_cached_table_forget(&cache, relid);
}

/* Make this backend read the policies again, as in outbox_handler_forget. */
void
outbox_policy_forget(void)
{
	outbox_cached_table_forget(&cache, InvalidOid);
}

/* Called by _PG_init. */
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
	npolicies = npriorities = 0;
	memset(npaused, 0, sizeof(npaused));
	policies = hash_create("outbox policies", 64, &ctl,
						   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* The number of a policy's kind; -1 if the name is unknown. */
static int
kind_of(const text *name)
{
	static const char *const names[NKINDS] = {
		[OUTBOX_QUEUE] = "message",
		[OUTBOX_INBOX] = "inbox",
		[OUTBOX_TIMERS] = "timer",
		[OUTBOX_RUNS] = "job_run",
		[SUBSCRIPTIONS] = "subscription"
	};

	for (int kind = 0; kind < NKINDS; kind++)
	{
		if (strlen(names[kind]) == VARSIZE_ANY_EXHDR(name) &&
			memcmp(names[kind], VARDATA_ANY(name), strlen(names[kind])) == 0)
			return kind;
	}
	return -1;
}

/* Add a row of outbox.topics to the copy. */
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
	if (!entry->isnull[T_PRIORITY - 1])
		npriorities++;
}

/* Look up the policy of a topic; NULL if it has none. */
static const PolicyEntry *
find_policy(int kind, const text *namespace, const text *topic)
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

/* Convert an interval to microseconds, as extract(epoch from it) does. */
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
 * Fill in a policy from the defaults and from the entry, if there is one.
 * Received messages that are done are not kept unless the policy says so; that
 * they were received is recorded elsewhere.
 */
static void
make_policy(const OutboxStore *store, const PolicyEntry *entry,
			OutboxPolicy *policy)
{
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
	policy->publish_retention = outbox_publish_retention;
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
	if (!entry->isnull[T_PUBLISH_RETENTION - 1])
		policy->publish_retention =
			keep_seconds(entry->values[T_PUBLISH_RETENTION - 1]);
}

/* The policy for a topic of a live table. */
void
outbox_policy_get(const OutboxStore *store, const text *namespace,
				  const text *topic, OutboxPolicy *policy)
{
	make_policy(store, find_policy(store->kind, namespace, topic), policy);
}

/* The priority of a message that is enqueued in this topic without one. */
int
outbox_policy_priority(const text *namespace, const text *topic)
{
	const PolicyEntry *entry;

	outbox_cached_table_load(&cache);
	if (npriorities == 0)
		return 0;
	entry = find_policy(OUTBOX_QUEUE, namespace, topic);
	return entry == NULL || entry->isnull[T_PRIORITY - 1] ? 0 :
		DatumGetInt16(entry->values[T_PRIORITY - 1]);
}

/* The policy for a message; for a delivery, that of its subscription. */
void
outbox_policy_of(const OutboxStore *store, TupleTableSlot *message,
				 OutboxPolicy *policy)
{
	const text *namespace = DatumGetTextPP(outbox_row_get(message, Q_NAMESPACE));
	const OutboxSubscriber *subscriber;

	if (slot_attisnull(message, Q_SUBSCRIBER))
	{
		outbox_policy_get(store, namespace,
						  DatumGetTextPP(outbox_row_get(message, Q_TOPIC)), policy);
		return;
	}
	subscriber = outbox_subscriber_get(DatumGetInt32(outbox_row_get(message, Q_SUBSCRIBER)));
	make_policy(store, subscriber == NULL ? NULL :
				find_policy(SUBSCRIPTIONS, namespace, subscriber->name), policy);
}

static bool
is_paused(int kind, int64 topic_key)
{
	const PolicyEntry *entry;

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

/*
 * Is the topic with this key paused?  If several topics share the key: is any
 * of them?
 */
bool
outbox_policy_topic_is_paused(OutboxStoreKind kind, int64 topic_key)
{
	outbox_cached_table_load(&cache);
	return is_paused(kind, topic_key);
}

/* Are deliveries to this subscriber paused? */
bool
outbox_policy_subscriber_is_paused(int32 id)
{
	const OutboxSubscriber *subscriber;

	outbox_cached_table_load(&cache);
	if (npaused[SUBSCRIPTIONS] == 0)
		return false;
	subscriber = outbox_subscriber_get(id);
	return subscriber != NULL &&
		is_paused(SUBSCRIPTIONS,
				  outbox_topic_key(subscriber->namespace, subscriber->name));
}

/* List the paused topics of a live table, without subscriptions. */
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
