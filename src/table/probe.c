/*
 * probe.c
 *	  Finding rows by an index, and the transactions that have written them.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "table/probe.h"
#include "table/table.h"

/* Prepare to look up rows by the first column of a unique index. */
void
outbox_probe_begin(OutboxProbe *probe, OutboxTable *table, Oid index)
{
	Oid			opfamily;
	Oid			type;

	probe->index = index_open(index, AccessShareLock);
	opfamily = probe->index->rd_opfamily[0];
	type = probe->index->rd_opcintype[0];
	ScanKeyEntryInitialize(&probe->key, 0, 1, BTEqualStrategyNumber, type,
						   probe->index->rd_indcollation[0],
						   get_opcode(get_opfamily_member(opfamily, type, type,
														  BTEqualStrategyNumber)),
						   (Datum) 0);
	InitDirtySnapshot(probe->snapshot);
	probe->scan = outbox_index_beginscan(table->rel, probe->index,
										 &probe->snapshot, 1);
}

/* End outbox_probe_begin. */
void
outbox_probe_end(OutboxProbe *probe)
{
	index_endscan(probe->scan);
	index_close(probe->index, NoLock);
}

/*
 * Find the row with this key, in its last version that is committed or written
 * by our transaction.  *blocker is set to the transaction in progress, if any,
 * that is changing or deleting it.
 *
 * If there is no such row, *blocker is set to the transaction in progress, if
 * any, that has inserted one.
 */
bool
outbox_probe(OutboxProbe *probe, Datum key, TupleTableSlot *slot,
			 TransactionId *blocker)
{
	probe->key.sk_argument = key;
	for (;;)
	{
		TransactionId inserter = InvalidTransactionId;
		TransactionId updater = InvalidTransactionId;

		index_rescan(probe->scan, &probe->key, 1, NULL, 0);
		while (index_getnext_slot(probe->scan, ForwardScanDirection, slot))
		{
			TransactionId xmin = probe->snapshot.xmin;

			if (!TransactionIdIsValid(xmin))
			{
				*blocker = probe->snapshot.xmax;
				return true;
			}
			if (outbox_row_is_update(slot))
				updater = xmin;
			else
				inserter = xmin;
		}

		*blocker = inserter;
		if (TransactionIdIsValid(inserter) || !TransactionIdIsValid(updater))
			return false;

		/*
		 * If only the new version of a row was seen, its transaction has
		 * ended during the search: search again.
		 */
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Look up a single row: outbox_probe_begin, outbox_probe and outbox_probe_end.
 */
bool
outbox_find_row(OutboxTable *table, Oid index, Datum key,
				TupleTableSlot *slot, TransactionId *blocker)
{
	OutboxProbe probe;
	bool		found;

	outbox_probe_begin(&probe, table, index);
	found = outbox_probe(&probe, key, slot, blocker);
	outbox_probe_end(&probe);
	return found;
}

/* Prepare to read all rows with this key, of an index that is not unique. */
void
outbox_probe_seek(OutboxProbe *probe, Datum key)
{
	probe->key.sk_argument = key;
	index_rescan(probe->scan, &probe->key, 1, NULL, 0);
}

/*
 * Read the next row; false if there is none.  *writer is set to the
 * transaction in progress, if any, that has inserted it, or is changing or
 * deleting it.
 */
bool
outbox_probe_next(OutboxProbe *probe, TupleTableSlot *slot,
				  TransactionId *writer)
{
	if (!index_getnext_slot(probe->scan, ForwardScanDirection, slot))
		return false;
	*writer = outbox_row_writer(&probe->snapshot);
	return true;
}

/*
 * The transaction in progress, other than ours, that has inserted or is
 * changing the row just read with this dirty snapshot.
 */
TransactionId
outbox_row_writer(const SnapshotData *snapshot)
{
	return TransactionIdIsValid(snapshot->xmin) ?
		snapshot->xmin : snapshot->xmax;
}

static HeapTupleHeader
row_header(TupleTableSlot *slot)
{
	return ((BufferHeapTupleTableSlot *) slot)->base.tuple->t_data;
}

/* Was this version of the row written by our transaction?  Sets *xid if so. */
bool
outbox_row_is_own(TupleTableSlot *slot, TransactionId *xid)
{
	HeapTupleHeader header = row_header(slot);

	if (HeapTupleHeaderXminCommitted(header))
		return false;
	*xid = HeapTupleHeaderGetXmin(header);
	return TransactionIdIsCurrentTransactionId(*xid);
}

/* Is this version of the row not its first? */
bool
outbox_row_is_update(TupleTableSlot *slot)
{
	return (row_header(slot)->t_infomask & HEAP_UPDATED) != 0;
}

/* Has our transaction updated or deleted this version of the row? */
bool
outbox_row_is_outdated(TupleTableSlot *slot)
{
	HeapTupleHeader header = row_header(slot);

	return (header->t_infomask & HEAP_XMAX_INVALID) == 0 &&
		!HEAP_XMAX_IS_LOCKED_ONLY(header->t_infomask) &&
		TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetUpdateXid(header));
}

/* A member of a multixact whose lock conflicts with an update. */
static TransactionId
locking_member(MultiXactId multi, bool lock_only)
{
	TransactionId locker = InvalidTransactionId;
	MultiXactMember *members;
	int			nmembers = GetMultiXactIdMembers(multi, &members, false, lock_only);

	for (int i = 0; i < nmembers && !TransactionIdIsValid(locker); i++)
	{
		if (members[i].status != MultiXactStatusForKeyShare &&
			!TransactionIdIsCurrentTransactionId(members[i].xid) &&
			TransactionIdIsInProgress(members[i].xid))
			locker = members[i].xid;
	}
	if (nmembers > 0)
		pfree(members);
	return locker;
}

/*
 * The transaction in progress, other than ours, whose lock prevents claims of
 * the row just read: it has locked it, or is changing or deleting it.
 */
TransactionId
outbox_row_locker(TupleTableSlot *slot)
{
	Buffer		buffer = ((BufferHeapTupleTableSlot *) slot)->buffer;
	HeapTupleHeader header = row_header(slot);
	TransactionId xmax;
	uint16		infomask;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	xmax = HeapTupleHeaderGetRawXmax(header);
	infomask = header->t_infomask;
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);

	if ((infomask & HEAP_XMAX_INVALID) != 0 || HEAP_XMAX_IS_KEYSHR_LOCKED(infomask))
		return InvalidTransactionId;
	if ((infomask & HEAP_XMAX_IS_MULTI) != 0)
		return locking_member(xmax, HEAP_XMAX_IS_LOCKED_ONLY(infomask));
	return !TransactionIdIsCurrentTransactionId(xmax) &&
		TransactionIdIsInProgress(xmax) ? xmax : InvalidTransactionId;
}
