/*
 * wake.h
 *	  Sleeping until there is something to claim, and calling workers.
 */
#ifndef OUTBOX_WAKE_H
#define OUTBOX_WAKE_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "portability/instr_time.h"

#include "shmem/sleepers.h"
#include "util/hash.h"

extern void outbox_wake_prepare(void);
extern void outbox_wake_note_topic(int64 topic_key);
extern void outbox_wake_note_policies(Oid relid);
extern void outbox_wake_note_release(Oid relid, uint64 token);
extern void outbox_wake_note_worker(void);
extern void outbox_wake_note_database(void);
extern void outbox_wake_note_due(TimestampTz at);
extern void outbox_wake_note_upkeep(void);
extern void outbox_wake_note_key(TimestampTz until);
extern void outbox_wake_note_lease(TimestampTz ends);
extern void outbox_wake_xact_end(void);

/* Why a sleeping claim has woken. */
typedef enum OutboxAwake
{
	OUTBOX_AWAKE_CALLED,		/* there may be something */
	OUTBOX_AWAKE_OVER,			/* the time is over */
	OUTBOX_AWAKE_RELEASED		/* the owner has released everything */
} OutboxAwake;

extern bool outbox_sleep_begin(Oid relid, const OutboxLaneFilter *filter,
							   uint64 token, int capacity,
							   const OutboxSleeperNames *wants);
extern void outbox_sleep_look(bool registered, Oid relid);
extern OutboxAwake outbox_sleep_until_called(bool registered, Oid relid,
											 instr_time began, int wait_ms);
extern void outbox_sleep_pass_on(bool registered, Oid relid, bool for_others);
extern void outbox_sleep_end(bool registered);

#endif							/* OUTBOX_WAKE_H */
