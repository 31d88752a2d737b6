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
 * Where messages lie in the ready index, and the hashes by which claims choose.
 * Messages of one namespace, topic and tenant have the same place.
 */
typedef struct OutboxPlace
{
	int64		lane;
	uint32		namespace_hash;
	uint32		topic_hash;
	uint64		tenant_hash;	/* 0: no tenant */
} OutboxPlace;

extern int64 outbox_topic_key(const text *namespace, const text *topic);
extern void outbox_place_of(const text *namespace, const text *topic,
							const pg_uuid_t *tenant, OutboxPlace *place);
extern void outbox_place_of_hashes(uint32 namespace_hash, uint32 topic_hash,
								   uint64 tenant_hash, OutboxPlace *place);
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

/* Are two strings the same bytes? */
static inline bool
outbox_text_equal(const text *a, const text *b)
{
	return VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
}

/* The same for all tenants of a topic: what policies and handlers are known by. */
static inline int64
outbox_place_topic_key(const OutboxPlace *place)
{
	return ((int64) place->namespace_hash << 32) | place->topic_hash;
}

static inline bool
outbox_place_equal(const OutboxPlace *a, const OutboxPlace *b)
{
	return a->lane == b->lane && a->namespace_hash == b->namespace_hash &&
		a->topic_hash == b->topic_hash && a->tenant_hash == b->tenant_hash;
}

/* Which places a caller wants. */
typedef struct OutboxLaneFilter
{
	const uint32 *namespace_hash;	/* NULL: any */
	const uint32 *topic_hashes; /* NULL: any; else in order, each once */
	int			ntopics;
	const uint64 *tenant_hash;	/* NULL: any */
} OutboxLaneFilter;

/* Some topics, by their keys, in order. */
typedef struct OutboxTopicKeys
{
	int64	   *keys;
	int			n;
} OutboxTopicKeys;

extern int	outbox_int64_cmp(const void *a, const void *b);
extern bool outbox_topic_keys_have(const OutboxTopicKeys *topics, int64 key);
extern bool outbox_place_wanted(const OutboxLaneFilter *filter,
								const OutboxPlace *place);

#endif							/* OUTBOX_HASH_H */
