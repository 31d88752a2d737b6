/*
 * uuid.h
 *	  UUIDs: comparing them, and making ones that are ordered by time.
 */
#ifndef OUTBOX_UUID_H
#define OUTBOX_UUID_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "utils/uuid.h"

extern void outbox_uuid7(TimestampTz now, pg_uuid_t *uuid);
extern bool outbox_uuid7_time(const pg_uuid_t *uuid, TimestampTz *at);

/* Compare UUIDs, in the order of the type's operators. */
static inline int
outbox_uuid_cmp(const pg_uuid_t *a, const pg_uuid_t *b)
{
	return memcmp(a->data, b->data, UUID_LEN);
}

static inline bool
outbox_uuid_equal(const pg_uuid_t *a, const pg_uuid_t *b)
{
	return outbox_uuid_cmp(a, b) == 0;
}

/* The same for qsort() and bsearch(). */
static inline int
outbox_uuid_qsort_cmp(const void *a, const void *b)
{
	return outbox_uuid_cmp(a, b);
}

#endif							/* OUTBOX_UUID_H */
