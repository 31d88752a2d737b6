/*
 * keylock.h
 *	  Serializing access to something identified by a hash.
 */
#ifndef OUTBOX_KEYLOCK_H
#define OUTBOX_KEYLOCK_H

#include "postgres.h"

/*
 * An attempt under a key's lock.  False if it must be repeated: after the end
 * of *blocker, or after a moment if that is invalid.
 */
typedef bool (*OutboxKeyAttempt) (void *arg, TransactionId *blocker);

extern void outbox_keylock_decide(Oid relid, uint32 hash,
								  OutboxKeyAttempt attempt, void *arg);
extern void outbox_keylock_acquire(Oid relid, uint32 hash);
extern void outbox_keylock_release(Oid relid, uint32 hash);
extern void outbox_keylock_acquire_long(Oid relid, uint64 hash);
extern bool outbox_keylock_try_long(Oid relid, uint64 hash);
extern void outbox_keylock_release_long(Oid relid, uint64 hash);
extern void outbox_xact_wait(TransactionId xid);
extern bool outbox_xact_has_ended(TransactionId xid);

#endif							/* OUTBOX_KEYLOCK_H */
