/*
 * outbox.h
 *	  Statuses, reasons of failure, limits, and the key by which messages are
 *	  ordered.
 */
#ifndef OUTBOX_H
#define OUTBOX_H

#include "postgres.h"

#include "datatype/timestamp.h"

#define OUTBOX_EXTENSION "outbox"
#define OUTBOX_SCHEMA "outbox"
#define OUTBOX_DEFAULT_NAMESPACE "default"

/* Limits; those of names are in characters. */
/*
 * In bytes, so that a message can be handed out together with its other
 * columns.
 */
#define OUTBOX_MAX_PAYLOAD (256 * 1024 * 1024)
#define OUTBOX_MAX_HEADERS (1024 * 1024)

/*
 * Maximum delay of a retry.  It detects drivers that pass milliseconds or less
 * instead of seconds.
 */
#define OUTBOX_MAX_DELAY_DAYS 366

#define OUTBOX_MAX_NAME 255
#define OUTBOX_MAX_PRIORITY 2
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
 * The key of a message within its lane: the time from which it may be
 * delivered, then its id, which is the order of creation.
 */
typedef struct OutboxReadyKey
{
	TimestampTz at;
	int64		id;
} OutboxReadyKey;

#define OUTBOX_READY_KEY_MIN \
	OUTBOX_MAKE(OutboxReadyKey, PG_INT64_MIN, PG_INT64_MIN)
#define OUTBOX_READY_KEY_MAX \
	OUTBOX_MAKE(OutboxReadyKey, PG_INT64_MAX, PG_INT64_MAX)

static inline int
outbox_ready_key_cmp(OutboxReadyKey a, OutboxReadyKey b)
{
	if (a.at != b.at)
		return a.at < b.at ? -1 : 1;
	if (a.id != b.id)
		return a.id < b.id ? -1 : 1;
	return 0;
}

static inline bool
outbox_ready_key_lt(OutboxReadyKey a, OutboxReadyKey b)
{
	return outbox_ready_key_cmp(a, b) < 0;
}

static inline OutboxReadyKey
outbox_ready_key_min(OutboxReadyKey a, OutboxReadyKey b)
{
	return outbox_ready_key_lt(b, a) ? b : a;
}

static inline OutboxReadyKey
outbox_ready_key_max(OutboxReadyKey a, OutboxReadyKey b)
{
	return outbox_ready_key_lt(a, b) ? b : a;
}

/* The smallest key above k. */
static inline OutboxReadyKey
outbox_ready_key_next(OutboxReadyKey k)
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

/* The version of the library. */
extern const char outbox_version[];

#endif							/* OUTBOX_H */
