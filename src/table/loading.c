/*
 * loading.c
 *	  Whether a dump is being loaded, or rows come by replication.
 *
 * While pg_restore or psql loads a dump, some tables are full and others are
 * still empty, and the sequence of ids comes last.  A worker that dispatched a
 * timer or evaluated a wait then would decide on incomplete data, and take ids
 * that the dump is about to insert.  Nothing in a dump marks its beginning or
 * its end.  But its rows can be distinguished from all others: they are
 * inserted by plain SQL, into tables that no other code writes that way, or
 * with given ids.
 *
 * A session that has inserted such rows holds a shared lock until it ends, or
 * until DISCARD ALL, whether or not its transactions commit.  pg_restore keeps
 * each of its connections to the end, so the lock is released when everything
 * is loaded.  It is an advisory lock of a kind that no SQL function uses.
 *
 * With --disable-triggers no trigger reports such rows, but then the triggers
 * of the table that is being loaded are disabled, which all sessions can see.
 *
 * On a subscriber of logical replication nothing may be decided, either.  Its
 * rows are copies of the publisher's, where workers decide, and the results
 * are replicated.  So as long as a live table, or a table of joins, belongs to
 * a subscription, even a disabled one, workers only create partitions, without
 * which rows of the archive could not be applied.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_subscription_rel.h"
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

/* Record that this session is loading a dump. */
void
outbox_loading_note(void)
{
	LOCKTAG		tag;

	set_tag(&tag);
	/* sessions that check hold their lock only for a moment */
	if (LockAcquire(&tag, ShareLock, true, false) == LOCKACQUIRE_ALREADY_HELD)
		LockRelease(&tag, ShareLock, true);
}

/* Does the table have a disabled trigger? */
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

/* Does a subscription of logical replication write this table? */
static bool
has_subscription(Relation pg_subscription_rel, Oid relid)
{
	ScanKeyData key;
	SysScanDesc scan;
	bool		result;

	ScanKeyInit(&key, Anum_pg_subscription_rel_srrelid, BTEqualStrategyNumber,
				F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(pg_subscription_rel,
							  SubscriptionRelSrrelidSrsubidIndexId, true, NULL,
							  1, &key);
	result = HeapTupleIsValid(systable_getnext(scan));
	systable_endscan(scan);
	return result;
}

/* Is the test true for a live table, or for one of the tables of joins? */
static bool
of_some_table(Oid catalog_relid, bool (*test) (Relation catalog, Oid relid))
{
	const OutboxCatalog *catalog = outbox_catalog();
	Relation	rel = table_open(catalog_relid, AccessShareLock);
	bool		result = test(rel, catalog->joins) ||
	test(rel, catalog->join_members) ||
	test(rel, catalog->join_waits) ||
	test(rel, catalog->join_rechecks);

	for (OutboxStoreKind kind = 0; kind < OUTBOX_NSTORES && !result; kind++)
		result = test(rel, outbox_store(kind)->table);
	table_close(rel, AccessShareLock);
	return result;
}

/* Does logical replication write tables of unfinished work? */
bool
outbox_loading_by_replication(void)
{
	return of_some_table(SubscriptionRelRelationId, has_subscription);
}

/*
 * Is another session loading a dump?  The lock modes allow concurrent checks.
 */
bool
outbox_loading_elsewhere(void)
{
	LOCKTAG		tag;

	if (of_some_table(TriggerRelationId, has_disabled_trigger))
		return true;

	set_tag(&tag);
	if (LockAcquire(&tag, RowExclusiveLock, false, true) ==
		LOCKACQUIRE_NOT_AVAIL)
		return true;
	LockRelease(&tag, RowExclusiveLock, false);
	return false;
}
