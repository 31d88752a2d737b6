/*
 * uuid.c
 *	  Time-ordered message ids (UUID version 7, RFC 9562).
 *
 * 48 bits of milliseconds, 12 bits of the fraction of a millisecond, 62 random
 * bits.  Within a backend each id is greater than the one before: if the clock
 * has not advanced, or was set back, the time part is incremented.
 *
 * Random bytes are fetched in blocks; fetching ten bytes at a time would cost
 * more than the insertion of the message.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "utils/timestamp.h"

#include "util/uuid.h"

#define RANDOM_BLOCK 1024
#define RANDOM_BYTES 8

/* Number of steps of the 12-bit fraction in a millisecond. */
#define FRACTION_STEPS 4096

static uint8 random_block[RANDOM_BLOCK];
static int	random_used = RANDOM_BLOCK;
static int	random_pid = 0;
static uint64 last_tick = 0;

static void
draw_random(uint8 *to, int len)
{
	/* a forked child must not use its parent's bytes */
	if (random_used + len > RANDOM_BLOCK || random_pid != MyProcPid)
	{
		if (!pg_strong_random(random_block, RANDOM_BLOCK))
			elog(ERROR, "could not generate random values");
		random_used = 0;
		random_pid = MyProcPid;
	}
	memcpy(to, random_block + random_used, len);
	/* erase what was used */
	memset(random_block + random_used, 0, len);
	random_used += len;
}

/* Make a new UUID of version 7 for the given time. */
void
outbox_uuid7(TimestampTz now, pg_uuid_t *uuid)
{
	int64		unix_us;
	uint64		tick;
	uint64		head;

	unix_us = now + (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;
	if (unix_us < 0)
		unix_us = 0;
	tick = (uint64) (unix_us / 1000) * FRACTION_STEPS +
		(uint64) (unix_us % 1000) * FRACTION_STEPS / 1000;
	if (tick <= last_tick)
		tick = last_tick + 1;
	last_tick = tick;

	head = (tick / FRACTION_STEPS) << 16 |	/* milliseconds */
		0x7000 |				/* version */
		tick % FRACTION_STEPS;
	head = pg_hton64(head);
	memcpy(uuid->data, &head, 8);
	draw_random(uuid->data + 8, RANDOM_BYTES);
	uuid->data[8] = (uuid->data[8] & 0x3F) | 0x80;	/* variant */
}

/* Get the time of a UUID of version 7; false if it has another version. */
bool
outbox_uuid7_time(const pg_uuid_t *uuid, TimestampTz *at)
{
	uint64		head;

	if (uuid->data[6] >> 4 != 7 || uuid->data[8] >> 6 != 2)
		return false;
	memcpy(&head, uuid->data, 8);
	/* 48 bits of milliseconds do not overflow a timestamp */
	*at = (int64) (pg_ntoh64(head) >> 16) * 1000 -
		(POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;
	return true;
}
