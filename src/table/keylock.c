/*
 * keylock.c
 *	  Serializing access to something identified by a hash: a dedupe key, a
 *	  stream.
 *
 * If two transactions want the same key, or enqueue in the same stream, the
 * second must wait until the first has ended.  One lock per key, held that
 * long, would fill the server's lock table.  Instead the first row that a
 * transaction writes serves as the lock, as in a unique index: the others find
 * it uncommitted and wait for its transaction.  It remains to prevent that two
 * transactions check at the same moment, see nothing, and both write; for that
 * there is a lock on one of a few hundred buckets, held while checking and
 * writing.
 *
 * No process waits for a transaction while it holds a bucket, so buckets
 * cannot be part of a deadlock, and keys that share a bucket delay each other
 * only by microseconds.
 *
 * Streams have locks of their own instead of buckets.  An insertion into a
 * stream may wait, in the unique index, for a transaction that has inserted
 * the same given message_id; and a plain INSERT holds the lock to the end of
 * its transaction, because its row does not exist yet when the turn begins.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/procarray.h"

#include "table/keylock.h"

#define TURN_BUCKETS 512

/* Delay before the next attempt, if there is no transaction to wait for. */
#define RETRY_USECS 1000

static void
set_tag(LOCKTAG *tag, Oid relid, uint32 hash)
{
	/* the class is not a catalog, so no other code uses this tag */
	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, relid, hash % TURN_BUCKETS, 0);
}

/*
 * Lock a key's bucket.  The caller must not wait for a transaction while it
 * holds it.
 */
void
outbox_keylock_acquire(Oid relid, uint32 hash)
{
	LOCKTAG		tag;

	set_tag(&tag, relid, hash);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

/* Unlock a key's bucket. */
void
outbox_keylock_release(Oid relid, uint32 hash)
{
	LOCKTAG		tag;

	set_tag(&tag, relid, hash);
	LockRelease(&tag, ExclusiveLock, false);
}

/*
 * The same for a lock on a single key.  Such locks are not shared between
 * keys, so one that is held to the end of a transaction does not block others;
 * but each takes an entry in the server's lock table.
 */
static void
set_long_tag(LOCKTAG *tag, Oid relid, uint64 hash)
{
	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, relid, (uint32) (hash >> 32),
					   (uint16) hash);
	/* not one of the buckets */
	if (tag->locktag_field3 < TURN_BUCKETS)
		tag->locktag_field3 += TURN_BUCKETS;
}

/* Lock a single key, which may be held to the end of the transaction. */
void
outbox_keylock_acquire_long(Oid relid, uint64 hash)
{
	LOCKTAG		tag;

	set_long_tag(&tag, relid, hash);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

/* The same without waiting; false if another process holds the lock. */
bool
outbox_keylock_try_long(Oid relid, uint64 hash)
{
	LOCKTAG		tag;

	set_long_tag(&tag, relid, hash);
	return LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL;
}

/* Unlock a single key. */
void
outbox_keylock_release_long(Oid relid, uint64 hash)
{
	LOCKTAG		tag;

	set_long_tag(&tag, relid, hash);
	LockRelease(&tag, ExclusiveLock, false);
}

/*
 * Try something that only one transaction may do at a time, until the attempt
 * is decided: each attempt is made under the key's lock, and if it depends on
 * a transaction in progress, this waits for that one without holding the lock.
 */
void
outbox_keylock_decide(Oid relid, uint32 hash, OutboxKeyAttempt attempt,
					  void *arg)
{
	for (;;)
	{
		TransactionId blocker = InvalidTransactionId;
		bool		decided;

		CHECK_FOR_INTERRUPTS();
		outbox_keylock_acquire(relid, hash);
		decided = attempt(arg, &blocker);
		outbox_keylock_release(relid, hash);
		if (decided)
			return;
		if (TransactionIdIsValid(blocker))
			outbox_xact_wait(blocker);
		else
			pg_usleep(RETRY_USECS); /* several lockers, or it has changed */
	}
}

static void
say_what_is_waited_for(void *arg)
{
	errcontext("while waiting for transaction %u to end", *(TransactionId *) arg);
}

/* Wait for the end of a transaction on which ours depends. */
void
outbox_xact_wait(TransactionId xid)
{
	ErrorContextCallback context = {error_context_stack, say_what_is_waited_for, &xid};

	Assert(TransactionIdIsNormal(xid));
	Assert(!TransactionIdIsCurrentTransactionId(xid));
	error_context_stack = &context;
	XactLockTableWait(xid, NULL, NULL, XLTW_None);
	error_context_stack = context.previous;
}

/*
 * Has this transaction ended?  True for ids that are in the future, which are
 * those of another server and have come with a dump.
 */
bool
outbox_xact_has_ended(TransactionId xid)
{
	return !TransactionIdPrecedes(xid, ReadNextTransactionId()) ||
		!TransactionIdIsInProgress(xid);
}
