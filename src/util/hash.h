/*
 * hash.h
 *	  Stable hashes: lanes, partitions and dedupe keys.
 */
#ifndef OUTBOX_HASH_H
#define OUTBOX_HASH_H

#include "postgres.h"

#include "compat.h"
#include "utils/uuid.h"

extern int64 outbox_topic_lane(const text *namespace, const text *topic);
extern int64 outbox_owner_lane(const pg_uuid_t *owner);
extern uint32 outbox_namespace_hash(const text *namespace);
extern uint32 outbox_topic_hash(const text *topic);
extern uint32 outbox_uuid_hash(const pg_uuid_t *uuid);
extern int	outbox_partition(const pg_uuid_t *stream, int partition_count);
extern uint64 outbox_share_hash(const pg_uuid_t *instance, int partition);
extern void outbox_dedupe_digest(const text *namespace, const text *topic,
								 const text *dedupe_key, pg_uuid_t *digest);

/* Are two strings the same bytes? */
static inline bool
outbox_text_equal(const text *a, const text *b)
{
	return VARSIZE_ANY_EXHDR(a) == VARSIZE_ANY_EXHDR(b) &&
		memcmp(VARDATA_ANY(a), VARDATA_ANY(b), VARSIZE_ANY_EXHDR(a)) == 0;
}

/* The parts of a topic's lane. */
static inline uint32
outbox_lane_namespace(int64 lane)
{
	return (uint32) (((uint64) lane >> 32) & 0x7FFFFFFF);
}

static inline uint32
outbox_lane_topic(int64 lane)
{
	return (uint32) (lane & 0xFFFFFFFF);
}

static inline bool
outbox_lane_is_topic(int64 lane)
{
	return lane >= 0;
}

/* Which lanes a caller wants; NULL or 0 means any. */
typedef struct OutboxLaneFilter
{
	const uint32 *namespace_hash;
	const uint32 *topic_hashes;
	int			ntopics;
} OutboxLaneFilter;

extern bool outbox_lane_wanted(const OutboxLaneFilter *filter, int64 lane);

#endif							/* OUTBOX_HASH_H */
