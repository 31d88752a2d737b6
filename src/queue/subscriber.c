/*
 * subscriber.c
 *	  Subscriptions, and which of them a publication goes to.
 *
 * Each backend keeps a copy of outbox.subscribers (cached_table.c), which a
 * trigger invalidates at each change, and, for the topics in which it has
 * published, a list of the subscriptions whose patterns match: so a
 * publication examines only these, whatever the number of subscriptions.
 * Their filters are evaluated each time.
 *
 * A subscription that has ended stays in the table until none of its messages
 * is left.
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/inval.h"

#include "queue/subscriber.h"
#include "queue/topic_pattern.h"
#include "table/cached_table.h"
#include "table/catalog.h"
#include "table/table.h"
#include "util/grow.h"
#include "util/hash.h"

/* outbox.subscribers */
enum
{
	SB_ID = 1,
	SB_NAMESPACE,
	SB_SUBSCRIPTION,
	SB_TOPICS,
	SB_FILTER,
	SB_CREATED_AT,
	SB_STATE,
	SB_DROPS,
	SB_UNTIL,
	SB_NATTS = SB_UNTIL
};

/*
 * Maximum number of topics in the cache, and of subscriptions in all their
 * lists.
 */
#define MAX_KNOWN_TOPICS 10000
#define MAX_KNOWN_WANTS 1000000

/* A topic, and the subscriptions whose patterns it matches. */
typedef struct KnownTopic
{
	int64		key;			/* hash key */
	text	   *namespace;
	text	   *topic;
	OutboxSubscriberList list;
} KnownTopic;

static void begin_subscribers(void);
static void add_subscriber(TupleTableSlot *slot);
static Oid	find_subscribers(void);

static OutboxCachedTable cache = {
	.name = "outbox subscribers",.find = find_subscribers,
	.begin = begin_subscribers,.add = add_subscriber
};

static HTAB *subscribers = NULL;
static HTAB *known_topics = NULL;
static int64 nknown_wants = 0;

static void
forget_subscribers(Datum arg, Oid relid)
{
	outbox_cached_table_forget(&cache, relid);
}

/* Called by _PG_init. */
void
outbox_subscriber_init(void)
{
	CacheRegisterRelcacheCallback(forget_subscribers, (Datum) 0);
}

static Oid
find_subscribers(void)
{
	return outbox_catalog()->subscribers;
}

static void
begin_subscribers(void)
{
	HASHCTL		ctl;

	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = sizeof(int32);
	ctl.entrysize = sizeof(OutboxSubscriber);
	ctl.hcxt = cache.context;
	nknown_wants = 0;
	subscribers = hash_create("outbox subscribers", 64, &ctl,
							  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	ctl.keysize = sizeof(int64);
	ctl.entrysize = sizeof(KnownTopic);
	known_topics = hash_create("outbox published topics", 64, &ctl,
							   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* Add a row of outbox.subscribers to the copy. */
static void
add_subscriber(TupleTableSlot *slot)
{
	int32		id;
	OutboxSubscriber *added;
	Datum	   *patterns;
	bool		isnull;
	Datum		filter;

	slot_getsomeattrs(slot, SB_NATTS);
	id = DatumGetInt32(outbox_row_get(slot, SB_ID));
	added = hash_search(subscribers, &id, HASH_ENTER, NULL);
	added->state = DatumGetInt16(outbox_row_get(slot, SB_STATE));
	added->namespace = DatumGetTextPCopy(outbox_row_get(slot, SB_NAMESPACE));
	added->name = DatumGetTextPCopy(outbox_row_get(slot, SB_SUBSCRIPTION));
	deconstruct_array(DatumGetArrayTypeP(outbox_row_get(slot, SB_TOPICS)),
					  TEXTOID, -1, false, TYPALIGN_INT, &patterns, NULL,
					  &added->npatterns);
	added->patterns = palloc_array(text *, added->npatterns + 1);
	for (int i = 0; i < added->npatterns; i++)
		added->patterns[i] = DatumGetTextPCopy(patterns[i]);
	added->drops = DatumGetBool(outbox_row_get(slot, SB_DROPS));
	filter = slot_getattr(slot, SB_FILTER, &isnull);
	added->filter = isnull ? NULL : DatumGetJsonbPCopy(filter);
}

/* The subscriber with this id; NULL if it is unknown. */
const OutboxSubscriber *
outbox_subscriber_get(int32 id)
{
	outbox_cached_table_load(&cache);
	return hash_search(subscribers, &id, HASH_FIND, NULL);
}

/* Make sure that the copy of the table is valid. */
void
outbox_subscribers_load(void)
{
	outbox_cached_table_load(&cache);
}

/*
 * The id of the subscription with this name; 0 if there is none.  The caller
 * must have called outbox_subscribers_load; pending invalidations are not
 * processed.
 */
int32
outbox_subscriber_find(const text *namespace, const text *name)
{
	HASH_SEQ_STATUS scan;
	const OutboxSubscriber *subscriber;
	int32		id = 0;

	hash_seq_init(&scan, subscribers);
	while ((subscriber = hash_seq_search(&scan)) != NULL)
	{
		if (subscriber->state != OUTBOX_UNSUBSCRIBED &&
			outbox_text_equal(subscriber->namespace, namespace) &&
			outbox_text_equal(subscriber->name, name))
			id = subscriber->id;
	}
	return id;
}

/*
 * Like outbox_subscriber_get, for a caller that has the id from a committed
 * row: if it is unknown here, processes pending invalidations first.
 */
const OutboxSubscriber *
outbox_subscriber_get_latest(int32 id)
{
	const OutboxSubscriber *subscriber = outbox_subscriber_get(id);

	if (subscriber == NULL)
	{
		outbox_cached_table_forget(&cache, InvalidOid);
		subscriber = outbox_subscriber_get(id);
	}
	return subscriber;
}

/*
 * The ids of the committed subscriptions with this name, in this namespace or
 * in all of them, in order.
 */
void
outbox_subscribers_named(const text *namespace, const text *name, int32 **ids,
						 int *nids)
{
	HASH_SEQ_STATUS scan;
	const OutboxSubscriber *subscriber;
	int			max = 0;

	AcceptInvalidationMessages();
	outbox_cached_table_load(&cache);
	*ids = NULL;
	*nids = 0;
	hash_seq_init(&scan, subscribers);
	while ((subscriber = hash_seq_search(&scan)) != NULL)
	{
		if (subscriber->state == OUTBOX_UNSUBSCRIBED ||
			(namespace != NULL &&
			 !outbox_text_equal(subscriber->namespace, namespace)) ||
			!outbox_text_equal(subscriber->name, name))
			continue;
		outbox_grow(*ids, *nids, max);
		(*ids)[(*nids)++] = subscriber->id;
	}
	if (*nids > 1)
		qsort(*ids, *nids, sizeof(int32), outbox_int32_cmp);
}

/* The subscription with this name; NULL if there is none. */
const OutboxSubscriber *
outbox_subscriber_named(const text *namespace, const text *name)
{
	AcceptInvalidationMessages();
	outbox_cached_table_load(&cache);
	return outbox_subscriber_get(outbox_subscriber_find(namespace, name));
}

/* ---------------------------------------------------------------------- */
/* Changes                                                                */
/* ---------------------------------------------------------------------- */

/*
 * Does this process, or prepared transaction, hold a lock to write
 * subscriptions?
 */
static bool
writes_subscribers(const LockData *locks, int pid)
{
	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *lock = &locks->locks[i];

		if (lock->pid == pid && (lock->holdMask & LOCKBIT_ON(RowExclusiveLock)) != 0 &&
			lock->locktag.locktag_type == LOCKTAG_RELATION &&
			lock->locktag.locktag_field1 == MyDatabaseId &&
			lock->locktag.locktag_field2 == outbox_catalog()->subscribers)
			return true;
	}
	return false;
}

/*
 * Returns an id: transactions from this one on know all changes of subscriptions that
 * the caller has seen.  A transaction becomes visible when it leaves the list of those
 * in progress; then it sends its invalidations, and then releases its locks.  While one
 * is in between, the result is not valid.  Nor is it if the caller's transaction has
 * changed subscriptions itself, since the others know that only when it has ended.
 */
FullTransactionId
outbox_subscribers_horizon(void)
{
	const LockData *locks = GetLockStatusData();

	if (writes_subscribers(locks, MyProcPid))
		return InvalidFullTransactionId;
	for (int i = 0; i < locks->nelements; i++)
	{
		const LockInstanceData *lock = &locks->locks[i];

		if (lock->locktag.locktag_type == LOCKTAG_TRANSACTION &&
			(lock->holdMask & LOCKBIT_ON(ExclusiveLock)) != 0 &&
			!TransactionIdIsInProgress(lock->locktag.locktag_field1) &&
			writes_subscribers(locks, lock->pid))
			return InvalidFullTransactionId;
	}
	return ReadNextFullTransactionId();
}

/* ---------------------------------------------------------------------- */
/* Routes                                                                 */
/* ---------------------------------------------------------------------- */

static bool
wants_topic(const OutboxSubscriber *subscriber, const text *namespace,
			const text *topic)
{
	if (subscriber->state == OUTBOX_UNSUBSCRIBED ||
		!outbox_text_equal(subscriber->namespace, namespace))
		return false;
	for (int i = 0; i < subscriber->npatterns; i++)
	{
		if (outbox_topic_pattern_matches(subscriber->patterns[i], topic))
			return true;
	}
	return false;
}

static int
cmp_subscriber(const void *a, const void *b)
{
	return outbox_int32_cmp(&(*(const OutboxSubscriber *const *) a)->id,
							&(*(const OutboxSubscriber *const *) b)->id);
}

/* Search all subscriptions for those whose patterns match this topic. */
static void
find_list(const text *namespace, const text *topic, OutboxSubscriberList *list)
{
	HASH_SEQ_STATUS scan;
	const OutboxSubscriber *subscriber;
	int			max = 0;

	list->n = 0;
	list->subscribers = NULL;
	hash_seq_init(&scan, subscribers);
	while ((subscriber = hash_seq_search(&scan)) != NULL)
	{
		if (!wants_topic(subscriber, namespace, topic))
			continue;
		outbox_grow(list->subscribers, list->n, max);
		list->subscribers[list->n++] = subscriber;
	}
	if (list->n > 1)
		qsort(list->subscribers, list->n, sizeof(OutboxSubscriber *),
			  cmp_subscriber);
}

/* Get the cached list for a topic, or make it. */
static const KnownTopic *
know_topic(const text *namespace, const text *topic)
{
	int64		key = outbox_topic_key(namespace, topic);
	KnownTopic *known = hash_search(known_topics, &key, HASH_FIND, NULL);
	MemoryContext old;
	OutboxSubscriberList list;
	text	   *names[2];

	if (known != NULL && outbox_text_equal(known->namespace, namespace) &&
		outbox_text_equal(known->topic, topic))
		return known;
	/* empty the whole cache, which is simpler than tracking use */
	if (hash_get_num_entries(known_topics) >= MAX_KNOWN_TOPICS ||
		nknown_wants >= MAX_KNOWN_WANTS)
	{
		outbox_cached_table_forget(&cache, InvalidOid);
		outbox_cached_table_load(&cache);
	}
	old = MemoryContextSwitchTo(cache.context);
	find_list(namespace, topic, &list);
	names[0] = DatumGetTextPCopy(PointerGetDatum(namespace));
	names[1] = DatumGetTextPCopy(PointerGetDatum(topic));
	MemoryContextSwitchTo(old);
	/* of two topics with the same key, only the last is cached */
	known = hash_search(known_topics, &key, HASH_ENTER, NULL);
	known->namespace = names[0];
	known->topic = names[1];
	known->list = list;
	nknown_wants += list.n;
	return known;
}

/* headers @> filter; without headers, only an empty filter matches. */
static bool
passes_filter(const OutboxSubscriber *subscriber, const Jsonb *headers)
{
	Jsonb	   *plain;
	JsonbIterator *have;
	JsonbIterator *want;

	if (subscriber->filter == NULL)
		return true;
	if (headers == NULL)
		return JB_ROOT_COUNT(subscriber->filter) == 0;
	plain = DatumGetJsonbP(PointerGetDatum(headers));
	have = JsonbIteratorInit(&plain->root);
	want = JsonbIteratorInit(&subscriber->filter->root);
	return JsonbDeepContains(&have, &want);
}

/*
 * List the committed subscriptions that match this topic and these headers.
 * The list is in the current memory context; what it points to is valid until
 * the next invalidation is processed.
 */
void
outbox_subscribers_of(const text *namespace, const text *topic,
					  const Jsonb *headers, OutboxSubscriberList *list)
{
	const KnownTopic *known;

	AcceptInvalidationMessages();
	outbox_cached_table_load(&cache);
	known = know_topic(namespace, topic);
	list->n = 0;
	list->subscribers = palloc_array(const OutboxSubscriber *, known->list.n + 1);
	for (int i = 0; i < known->list.n; i++)
	{
		if (passes_filter(known->list.subscribers[i], headers))
			list->subscribers[list->n++] = known->list.subscribers[i];
	}
}
