/*
 * outbox.h
 *	  The words of the contract: states, reasons, limits, and the key by
 *	  which messages are ordered.
 */
#ifndef OUTBOX_H
#define OUTBOX_H

#include "postgres.h"

#include "datatype/timestamp.h"

#define OUTBOX_EXTENSION "outbox"
#define OUTBOX_SCHEMA "outbox"
#define OUTBOX_DEFAULT_NAMESPACE "default"

/* Limits of the contract, in characters where they speak of text. */
/* In bytes, so that what was enqueued can be handed out with all that it has. */
#define OUTBOX_MAX_PAYLOAD (256 * 1024 * 1024)
#define OUTBOX_MAX_HEADERS (1024 * 1024)

/*
 * Longest delay of a retry.  A driver that counts in milliseconds or less where
 * seconds are meant goes beyond it.
 */
#define OUTBOX_MAX_DELAY_DAYS 366

#define OUTBOX_MAX_NAME 255
#define OUTBOX_MAX_BATCH 10000
#define OUTBOX_MAX_LEASE_SECONDS 86400
#define OUTBOX_MAX_WAIT_MS 60000

/* A struct from its members, as an expression. */
#define OUTBOX_MAKE(type, ...) ((type) {__VA_ARGS__})

/* The state of a message, an inbox row, a timer or a run. */
typedef enum OutboxStatus
{
	OUTBOX_READY = 0,
	OUTBOX_IN_PROGRESS = 1,
	OUTBOX_DONE = 2,
	OUTBOX_DEAD = 3
} OutboxStatus;

/* Is this the state of a row of a live table? */
static inline bool
outbox_status_is_live(Datum status)
{
	return DatumGetInt16(status) == OUTBOX_READY ||
		DatumGetInt16(status) == OUTBOX_IN_PROGRESS;
}

typedef enum OutboxReason
{
	OUTBOX_REASON_NONE = 0,
	OUTBOX_REASON_VALIDATION = 4,
	OUTBOX_REASON_MAX_ATTEMPTS = 5,
	OUTBOX_REASON_EXPIRED = 6,
	OUTBOX_REASON_CANCELLED = 9,
	OUTBOX_REASON_UNKNOWN = 99
} OutboxReason;

/*
 * Where a message lies in its lane: the time from which it may be delivered,
 * then the order of its creation.
 */
typedef struct OutboxKey
{
	TimestampTz at;
	int64		id;
} OutboxKey;

#define OUTBOX_KEY_MIN OUTBOX_MAKE(OutboxKey, PG_INT64_MIN, PG_INT64_MIN)
#define OUTBOX_KEY_MAX OUTBOX_MAKE(OutboxKey, PG_INT64_MAX, PG_INT64_MAX)

static inline int
outbox_key_cmp(OutboxKey a, OutboxKey b)
{
	if (a.at != b.at)
		return a.at < b.at ? -1 : 1;
	if (a.id != b.id)
		return a.id < b.id ? -1 : 1;
	return 0;
}

static inline bool
outbox_key_lt(OutboxKey a, OutboxKey b)
{
	return outbox_key_cmp(a, b) < 0;
}

static inline OutboxKey
outbox_key_min(OutboxKey a, OutboxKey b)
{
	return outbox_key_lt(b, a) ? b : a;
}

static inline OutboxKey
outbox_key_max(OutboxKey a, OutboxKey b)
{
	return outbox_key_lt(a, b) ? b : a;
}

/* The smallest key above k. */
static inline OutboxKey
outbox_key_next(OutboxKey k)
{
	if (k.id < PG_INT64_MAX)
		k.id++;
	else if (k.at < PG_INT64_MAX)
	{
		k.at++;
		k.id = PG_INT64_MIN;
	}
	return k;
}

#endif							/* OUTBOX_H */
