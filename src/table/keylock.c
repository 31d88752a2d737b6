/*
 * keylock.c
 *	  Taking turns at something named by a hash: a dedupe key, a stream.
 *
 * Two transactions that want the same key, or to enqueue in the same stream,
 * must come one after the other, until the first has ended.  A lock per key
 * held that long would fill the server's lock table.  Instead the first row
 * that a transaction writes is its lock, as in a unique index: the others
 * find it uncommitted and wait for its transaction.  What is left to exclude
 * is that two look at the same moment, see nothing, and both write; for that
 * a lock on one of a few hundred buckets, held while looking and writing.
 *
 * No transaction is waited for while a bucket is held, so buckets cannot take part
 * in a deadlock, and two keys in one bucket cost each other microseconds.
 *
 * Streams have locks of their own, not buckets.  An insertion into a stream waits,
 * in the unique index, for a transaction that has just inserted the same given
 * message_id; and a plain INSERT keeps the lock to the end of its transaction,
 * because the row is not yet there when the turn begins.
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

/* Until the next attempt, if there is no transaction to wait for. */
#define RETRY_USECS 1000

static void
set_tag(LOCKTAG *tag, Oid relid, uint32 hash)
{
	/* a class that is no catalog's is nobody else's */
	SET_LOCKTAG_OBJECT(*tag, MyDatabaseId, relid, hash % TURN_BUCKETS, 0);
}

void
outbox_keylock_acquire(Oid relid, uint32 hash)
{
	LOCKTAG		tag;

	set_tag(&tag, relid, hash);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

void
outbox_keylock_release(Oid relid, uint32 hash)
{
	LOCKTAG		tag;

	set_tag(&tag, relid, hash);
	LockRelease(&tag, ExclusiveLock, false);
}

/*
 * The same on a single key.  Such locks do not share buckets, so one that is kept
 * to the end of a transaction is in nobody else's way; but each takes a place in
 * the server's lock table.
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

void
outbox_keylock_acquire_long(Oid relid, uint64 hash)
{
	LOCKTAG		tag;

	set_long_tag(&tag, relid, hash);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
}

void
outbox_keylock_release_long(Oid relid, uint64 hash)
{
	LOCKTAG		tag;

	set_long_tag(&tag, relid, hash);
	LockRelease(&tag, ExclusiveLock, false);
}

/*
 * Try something that only one transaction may do at a time, until the attempt
 * is decided: each attempt is made under the key's lock, and when it reports
 * an undecided transaction, that one is waited for without the lock.
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
			pg_usleep(RETRY_USECS); /* several have it locked, or it has
									 * changed */
	}
}

static void
say_what_is_waited_for(void *arg)
{
	errcontext("while waiting for transaction %u to end", *(TransactionId *) arg);
}

/* Wait for the end of a transaction whose row is before ours. */
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
 * Has this transaction ended?  One that has not begun was another server's:
 * its number has come here with a dump.
 */
bool
outbox_xact_has_ended(TransactionId xid)
{
	return !TransactionIdPrecedes(xid, ReadNextTransactionId()) ||
		!TransactionIdIsInProgress(xid);
}
