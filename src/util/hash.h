/*
 * hash.h
 *	  Stable hashes: lanes, partitions, dedupe keys and routes.
 */
#ifndef OUTBOX_HASH_H
#define OUTBOX_HASH_H

#include "postgres.h"

#include "compat.h"
#include "utils/uuid.h"

/*
 * The place of messages in the ready index, and what claims choose by.
 * Messages of one namespace, topic, tenant, subscription and priority have the
 * same place.
 */
typedef struct OutboxPlace
{
	int64		lane;
	uint32		namespace_hash;
	uint32		topic_hash;
	uint64		tenant_hash;	/* 0: no tenant */
	int32		subscriber;		/* 0: not a delivery */
	int32		priority;
} OutboxPlace;

extern int64 outbox_topic_key(const text *namespace, const text *topic);
extern void outbox_place_of(const text *namespace, const text *topic,
							const pg_uuid_t *tenant, int32 subscriber,
							int priority, OutboxPlace *place);
extern void outbox_place_set_lane(OutboxPlace *place);
extern void outbox_subscriber_stream(const pg_uuid_t *stream, int32 subscriber,
									 pg_uuid_t *result);
extern uint32 outbox_namespace_hash(const text *namespace);
extern uint32 outbox_topic_hash(const text *topic);
extern uint64 outbox_tenant_hash(const pg_uuid_t *tenant);
extern uint64 outbox_token_hash(const pg_uuid_t *owner);
extern uint32 outbox_uuid_hash(const pg_uuid_t *uuid);
extern uint64 outbox_uuid_hash64(const pg_uuid_t *uuid);
extern int	outbox_partition(const pg_uuid_t *stream, int partition_count);
extern uint64 outbox_share_hash(const pg_uuid_t *instance, int partition);
extern uint64 outbox_route_hash(const text *name);
extern uint64 outbox_route_weight(uint64 key_hash, uint64 store_hash);
extern void outbox_dedupe_digest(const text *namespace, const text *topic,
								 const text *dedupe_key, pg_uuid_t *digest);
extern void outbox_publication_digest(const text *namespace, const text *topic,
									  const text *dedupe_key,
									  pg_uuid_t *digest);
extern void outbox_publication_id_digest(const pg_uuid_t *published_id,
										 pg_uuid_t *digest);
extern void outbox_delivery_id(const pg_uuid_t *published_id, int32 subscriber,
							   uint64 nonce, pg_uuid_t *id);

/* Are two strings the same bytes? */
static inline bool
outbox_text_equal(const text *a, const text *b)
{
	return VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
}

/* The key of a subscription, which differs from those of topics. */
static inline int64
outbox_subscriber_key(int32 subscriber)
{
	return PG_INT64_MIN + subscriber;
}

/*
 * The key of a place's topic or subscription, which identifies policies and
 * handlers.  It is the same for all tenants and priorities of a topic, and for
 * all deliveries of a subscription.
 */
static inline int64
outbox_place_topic_key(const OutboxPlace *place)
{
	if (place->subscriber != 0)
		return outbox_subscriber_key(place->subscriber);
	return ((int64) place->namespace_hash << 32) | place->topic_hash;
}

static inline bool
outbox_place_equal(const OutboxPlace *a, const OutboxPlace *b)
{
	return a->lane == b->lane && a->namespace_hash == b->namespace_hash &&
		a->topic_hash == b->topic_hash && a->tenant_hash == b->tenant_hash &&
		a->subscriber == b->subscriber && a->priority == b->priority;
}

/* Selects places. */
typedef struct OutboxLaneFilter
{
	const uint32 *namespace_hash;	/* NULL: any */
	const uint32 *topic_hashes; /* NULL: any; else sorted, unique */
	int			ntopics;
	const uint64 *tenant_hash;	/* NULL: any */
	const int32 *subscribers;	/* sorted, unique; NULL: no deliveries */
	int			nsubscribers;
	bool		any_subscriber; /* enqueued messages and all deliveries */
} OutboxLaneFilter;

/* The subscribers of a filter; 0 stands for enqueued messages. */
static inline int
outbox_filter_nsubscribers(const OutboxLaneFilter *filter)
{
	return filter->subscribers != NULL ? filter->nsubscribers : 1;
}

static inline int32
outbox_filter_subscriber(const OutboxLaneFilter *filter, int i)
{
	return filter->subscribers != NULL ? filter->subscribers[i] : 0;
}

/* A sorted list of topics, by their keys. */
typedef struct OutboxTopicKeys
{
	int64	   *keys;
	int			n;
} OutboxTopicKeys;

extern int	outbox_int64_cmp(const void *a, const void *b);
extern int	outbox_int32_cmp(const void *a, const void *b);
extern bool outbox_int32s_have(const int32 *sorted, int n, int32 wanted);
extern bool outbox_topic_keys_have(const OutboxTopicKeys *topics, int64 key);
extern bool outbox_place_wanted(const OutboxLaneFilter *filter,
								const OutboxPlace *place);

#endif							/* OUTBOX_HASH_H */
