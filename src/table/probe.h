/*
 * probe.h
 *	  Finding rows by an index.
 */
#ifndef OUTBOX_PROBE_H
#define OUTBOX_PROBE_H

#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "executor/tuptable.h"
#include "utils/snapshot.h"

#include "table/table.h"

/* A search by an index with a dirty snapshot. */
typedef struct OutboxProbe
{
	Relation	index;
	IndexScanDesc scan;
	SnapshotData snapshot;
	ScanKeyData key;
} OutboxProbe;

extern void outbox_probe_begin(OutboxProbe *probe, OutboxTable *table,
							   Oid index);
extern bool outbox_probe(OutboxProbe *probe, Datum key, TupleTableSlot *slot,
						 TransactionId *blocker);
extern void outbox_probe_seek(OutboxProbe *probe, Datum key);
extern bool outbox_probe_next(OutboxProbe *probe, TupleTableSlot *slot,
							  TransactionId *writer);
extern void outbox_probe_end(OutboxProbe *probe);
extern bool outbox_find_row(OutboxTable *table, Oid index, Datum key,
							TupleTableSlot *slot, TransactionId *blocker);

extern TransactionId outbox_row_writer(const SnapshotData *snapshot);
extern bool outbox_row_is_own(TupleTableSlot *slot, TransactionId *xid);
extern bool outbox_row_is_update(TupleTableSlot *slot);
extern bool outbox_row_is_outdated(TupleTableSlot *slot);
extern TransactionId outbox_row_locker(TupleTableSlot *slot);

#endif							/* OUTBOX_PROBE_H */
