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
 *
 * With --disable-triggers no trigger tells of such rows, but then the triggers of
 * the table that is being loaded are disabled, for all to see.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

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

static bool
has_disabled_trigger(Relation pg_trigger, Oid relid)
{
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		result = false;

	ScanKeyInit(&key, Anum_pg_trigger_tgrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(relid));
	scan = systable_beginscan(pg_trigger, TriggerRelidNameIndexId, true, NULL,
							  1, &key);
	while (!result && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_trigger form = (Form_pg_trigger) GETSTRUCT(tuple);

		result = form->tgenabled == TRIGGER_DISABLED &&
			get_func_namespace(form->tgfoid) == outbox_catalog()->namespace;
	}
	systable_endscan(scan);
	return result;
}

static bool
triggers_are_disabled(void)
{
	const OutboxCatalog *catalog = outbox_catalog();
	Relation	pg_trigger = table_open(TriggerRelationId, AccessShareLock);
	bool		result = has_disabled_trigger(pg_trigger, catalog->joins) ||
	has_disabled_trigger(pg_trigger, catalog->join_members) ||
	has_disabled_trigger(pg_trigger, catalog->join_waits) ||
	has_disabled_trigger(pg_trigger, catalog->join_doubts);

	for (OutboxStoreKind kind = 0; kind < OUTBOX_NSTORES && !result; kind++)
		result = has_disabled_trigger(pg_trigger, outbox_store(kind)->table);
	table_close(pg_trigger, AccessShareLock);
	return result;
}

/* Does another session load one?  The modes let those who ask ask together. */
bool
outbox_loading_elsewhere(void)
{
	LOCKTAG		tag;

	if (triggers_are_disabled())
		return true;

	set_tag(&tag);
	if (LockAcquire(&tag, RowExclusiveLock, false, true) ==
		LOCKACQUIRE_NOT_AVAIL)
		return true;
	LockRelease(&tag, RowExclusiveLock, false);
	return false;
}
