/*
 * table.h
 *	  The extension's own tables: which they are, and how their rows are
 *	  read and written.
 */
#ifndef OUTBOX_TABLE_H
#define OUTBOX_TABLE_H

#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "executor/tuptable.h"
#include "utils/relcache.h"
#include "utils/reltrigger.h"
#include "utils/snapshot.h"

/*
 * A live table: outbox.queue and its siblings.  What a claim changes comes
 * first and has a fixed width, because a heap update logs what lies between
 * the common beginning and the common end of the two versions.
 */
enum
{
	Q_ID = 1,
	Q_LANE,
	Q_READY_AT,
	Q_NEXT_ATTEMPT_AT,
	Q_UPDATED_AT,
	Q_LOCKED_UNTIL,
	Q_OWNER_TOKEN,
	Q_ATTEMPTS,
	Q_RETRY_COUNT,
	Q_WAIVED,
	Q_PROGRESS,
	Q_STATUS,
	Q_FAILURE_REASON,
	Q_CREATED_AT,
	Q_MESSAGE_ID,
	Q_STREAM_SEQ,
	Q_DUE_TIME,
	Q_EXPIRES_AT,
	Q_TENANT_ID,
	Q_STREAM_ID,
	Q_NAMESPACE,
	Q_TOPIC,
	Q_CORRELATION_ID,
	Q_DEDUPE_KEY,
	Q_HEADERS,
	Q_LAST_ERROR,
	Q_PAYLOAD,
	Q_NATTS = Q_PAYLOAD
};

/* A history table: the partitions of outbox.archive, and outbox.dead. */
enum
{
	H_ID = 1,
	H_CREATED_AT,
	H_PROCESSED_AT,
	H_KEEP,
	H_ATTEMPTS,
	H_RETRY_COUNT,
	H_PROGRESS,
	H_FAILURE_REASON,
	H_MESSAGE_ID,
	H_PROCESSED_BY,
	H_DUE_TIME,
	H_EXPIRES_AT,
	H_TENANT_ID,
	H_STREAM_ID,
	H_NAMESPACE,
	H_TOPIC,
	H_CORRELATION_ID,
	H_DEDUPE_KEY,
	H_HEADERS,
	H_LAST_ERROR,
	H_PAYLOAD,
	H_NATTS = H_PAYLOAD
};

/* outbox.dedupe */
enum
{
	D_KEY = 1,
	D_MESSAGE_ID,
	D_NATTS = D_MESSAGE_ID
};

/* outbox.message_deduplication */
enum
{
	R_MESSAGE_ID = 1,
	R_FIRST_SEEN_AT,
	R_NATTS = R_FIRST_SEEN_AT
};

/* outbox.instances */
enum
{
	I_ID = 1,
	I_SERVICE_NAME,
	I_HOST_NAME,
	I_PROCESS_ID,
	I_METADATA,
	I_STARTED_AT,
	I_LAST_HEARTBEAT_AT,
	I_NATTS = I_LAST_HEARTBEAT_AT
};

/* outbox.joins */
enum
{
	J_ID = 1,
	J_GROUPING_KEY,
	J_EXPECTED_STEPS,
	J_COMPLETED_STEPS,
	J_FAILED_STEPS,
	J_STATUS,
	J_CREATED_AT,
	J_LAST_UPDATED_AT,
	J_METADATA,
	J_NATTS = J_METADATA
};

/* outbox.join_members */
enum
{
	JM_JOIN_ID = 1,
	JM_MESSAGE_ID,
	JM_STATUS,
	JM_CREATED_AT,
	JM_NATTS = JM_CREATED_AT
};

/* outbox.join_waits */
enum
{
	JW_JOIN_ID = 1,
	JW_MESSAGE_ID,
	JW_NATTS = JW_MESSAGE_ID
};

/* outbox.join_doubts */
enum
{
	JD_ID = 1,
	JD_WAITS_FOR,
	JD_JOIN_ID,
	JD_MESSAGE_ID,
	JD_STATUS,
	JD_NATTS = JD_STATUS
};

/* outbox.handlers */
enum
{
	HD_NAMESPACE = 1,
	HD_TOPIC,
	HD_HANDLER,
	HD_ROLE,
	HD_BATCH_SIZE,
	HD_LEASE_SECONDS,
	HD_NATTS = HD_LEASE_SECONDS
};

/* outbox.stream_doubts */
enum
{
	S_ID = 1,
	S_WAITS_FOR,
	S_STORE,
	S_STREAM_ID,
	S_NATTS = S_STREAM_ID
};

/* The live tables, all alike, and served by the same code. */
typedef enum OutboxStoreKind
{
	OUTBOX_QUEUE,				/* messages to be delivered */
	OUTBOX_INBOX,				/* messages received */
	OUTBOX_TIMERS,
	OUTBOX_RUNS					/* of jobs */
} OutboxStoreKind;

#define OUTBOX_NSTORES 4

/* A live table, and where its rows go in the end. */
typedef struct OutboxStore
{
	OutboxStoreKind kind;
	Oid			table;
	Oid			pkey;
	Oid			message_id;		/* index */
	Oid			ready;			/* index */
	Oid			stream;			/* index */
	Oid			expires;		/* index */
	Oid			done;			/* for the queue, partitioned */
	Oid			dead;
} OutboxStore;

/* The relations of the extension, looked up once per backend. */
typedef struct OutboxCatalog
{
	Oid			namespace;
	Oid			owner;
	Oid			sequence;
	OutboxStore stores[OUTBOX_NSTORES];
	Oid			dead_pkey;
	Oid			dead_message_id;
	Oid			dedupe;
	Oid			dedupe_pkey;
	Oid			stream_doubts;
	Oid			stream_doubts_pkey;
	Oid			topics;
	Oid			joins;
	Oid			joins_pkey;
	Oid			join_members;
	Oid			join_members_message;
	Oid			join_waits;
	Oid			join_waits_pkey;
	Oid			join_doubts;
	Oid			handlers;
	Oid			received;
	Oid			received_pkey;
	Oid			instances;
	Oid			instances_pkey;
	Oid			message;
} OutboxCatalog;

/* Rows are inserted in batches of at most this many. */
#define OUTBOX_BATCH_ROWS 64

/* A table opened for writing; close it before the end of the call. */
typedef struct OutboxTable
{
	Relation	rel;
	const OutboxStore *store;	/* if it is a live table */
	int			natts;			/* how many columns are ours */
	int			nkeys;			/* how many of the first make the key */
	struct OutboxTableInfo *info;
	Relation   *indexes;
	bool		direct;			/* may be written without the executor */
	MemoryContext context;		/* in which it was opened */
	TupleTableSlot **batch;		/* our own, if those of info are in use */
} OutboxTable;

typedef enum OutboxRowResult
{
	OUTBOX_ROW_OK,
	OUTBOX_ROW_LOCKED,			/* by somebody, and we were not to wait */
	OUTBOX_ROW_GONE,			/* changed or deleted since it was read */
	OUTBOX_ROW_REFUSED			/* somebody's trigger would not have it */
} OutboxRowResult;

/* A search for one row by a unique index, seeing what is uncommitted. */
typedef struct OutboxProbe
{
	Relation	index;
	IndexScanDesc scan;
	SnapshotData snapshot;
	ScanKeyData key;
} OutboxProbe;

extern void outbox_table_init(void);
extern void outbox_table_xact_end(void);

extern void outbox_catalog_init(void);
extern const OutboxCatalog *outbox_catalog(void);

extern bool outbox_trigger_is_ours(const Trigger *trigger);
extern const TriggerDesc *outbox_table_triggers(const OutboxTable *table);
extern bool outbox_table_is_direct(Oid relid, int natts);
extern Relation outbox_relation_open(Oid relid, LOCKMODE lockmode);
extern const OutboxStore *outbox_store(OutboxStoreKind kind);
extern void outbox_store_open(OutboxTable *table, const OutboxStore *store);
extern void outbox_table_open(OutboxTable *table, Oid relid, int natts);
extern void outbox_table_open_to_read(OutboxTable *table, Oid relid);
extern void outbox_table_close(OutboxTable *table);
extern TupleTableSlot *outbox_table_slot(OutboxTable *table);
extern TupleTableSlot *outbox_table_new_row(OutboxTable *table);
extern TupleTableSlot *outbox_table_batch_row(OutboxTable *table, int i);
extern void outbox_new_row_from(TupleTableSlot *row, TupleTableSlot *old);

extern void outbox_table_insert(OutboxTable *table, TupleTableSlot *row);
extern void outbox_table_multi_insert(OutboxTable *table,
									  TupleTableSlot **rows, int nrows);
extern OutboxRowResult outbox_table_update(OutboxTable *table,
										   TupleTableSlot *old,
										   TupleTableSlot *row, bool wait,
										   TransactionId *blocker);
extern OutboxRowResult outbox_table_delete(OutboxTable *table,
										   TupleTableSlot *old, bool wait,
										   TransactionId *blocker);

extern void outbox_probe_begin(OutboxProbe *probe, OutboxTable *table,
							   Oid index);
extern bool outbox_probe(OutboxProbe *probe, Datum key, TupleTableSlot *slot,
						 TransactionId *blocker);
extern void outbox_probe_seek(OutboxProbe *probe, Datum key);
extern bool outbox_probe_next(OutboxProbe *probe, TupleTableSlot *slot,
							  TransactionId *writer);
extern void outbox_probe_end(OutboxProbe *probe);

extern TransactionId outbox_row_writer(const SnapshotData *snapshot);
extern bool outbox_row_is_own(TupleTableSlot *slot, TransactionId *xid);
extern bool outbox_row_is_update(TupleTableSlot *slot);

/* Read an attribute that is never null. */
static inline Datum
outbox_row_get(TupleTableSlot *slot, AttrNumber attnum)
{
	bool		isnull;

	return slot_getattr(slot, attnum, &isnull);
}

static inline void
outbox_row_set(TupleTableSlot *row, AttrNumber attnum, Datum value)
{
	row->tts_values[attnum - 1] = value;
	row->tts_isnull[attnum - 1] = false;
}

static inline void
outbox_row_set_null(TupleTableSlot *row, AttrNumber attnum)
{
	row->tts_values[attnum - 1] = (Datum) 0;
	row->tts_isnull[attnum - 1] = true;
}

#endif							/* OUTBOX_TABLE_H */
