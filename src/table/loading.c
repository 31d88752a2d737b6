/*
 * loading.c
 *	  Whether a dump is being loaded.
 *
 * While pg_restore or psql loads a dump, some tables are full and others still
 * empty, and the sequence of ids comes last of all.  A worker that dispatched a
 * timer or evaluated a wait then would decide on half of the truth, and take ids
 * that the dump is about to bring.  Nothing in a dump says that it begins or that
 * it is complete.  But its rows can be told from all others: they come by plain
 * SQL, into tables that nobody else writes so, or with ids of their own.
 *
 * A session that has inserted such rows keeps a shared lock until it ends, or
 * until DISCARD ALL, whatever becomes of its transactions.  pg_restore keeps each
 * of its connections to the end, so the lock is gone when all is there.  The lock
 * looks like an advisory lock, of a kind that no SQL function takes.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lock.h"

#include "table/catalog.h"
#include "table/loading.h"

/* SQL functions take advisory locks of the kinds 1 and 2. */
#define LOADING_LOCK_KIND 3

static void
set_tag(LOCKTAG *tag)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, outbox_catalog()->namespace, 0,
						 LOADING_LOCK_KIND);
}

/* This session loads a dump. */
void
outbox_loading_note(void)
{
	LOCKTAG		tag;

	set_tag(&tag);
	/* those who ask hold theirs for a moment only */
	if (LockAcquire(&tag, ShareLock, true, false) == LOCKACQUIRE_ALREADY_HELD)
		LockRelease(&tag, ShareLock, true);
}

/* Does another session load one?  The modes let those who ask ask together. */
bool
outbox_loading_elsewhere(void)
{
	LOCKTAG		tag;

	set_tag(&tag);
	if (LockAcquire(&tag, RowExclusiveLock, false, true) ==
		LOCKACQUIRE_NOT_AVAIL)
		return true;
	LockRelease(&tag, RowExclusiveLock, false);
	return false;
}
