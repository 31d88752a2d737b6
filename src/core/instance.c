/*
 * instance.c
 *	  Who is at work, and who is to take which streams.
 *
 * Every instance tells that it is alive.  One that has been silent for too
 * long is removed by the next that comes by, and its leases end.  None of this
 * waits: a row that another transaction has locked is left to that one.  Only
 * an instance that is removed by name, outbox_instance_remove, is waited for,
 * and so are its leases.
 *
 * A sign of life from the future was given before the clock was set back.  It
 * counts as given now, by whoever finds it, so that an instance which has died is
 * not alive until the clock is there again.
 *
 * Streams belong to partitions, and each partition to one instance: to the one
 * whose hash together with the partition's number is the largest.  So all who
 * see the same instances agree without talking, and one that joins or leaves
 * moves only its own share.  Those who do not see the same may both want a
 * message; leases decide then, as always.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "utils/jsonb.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "core/instance.h"
#include "core/settle.h"
#include "shmem/directory.h"
#include "table/catalog.h"
#include "table/keylock.h"
#include "table/probe.h"
#include "table/table.h"
#include "util/grow.h"
#include "util/hash.h"
#include "util/uuid.h"

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

/* A sign of life that is as fresh as this need not be renewed. */
#define FRESH_USECS (INT64CONST(100) * 1000)

/* Others read the clock a moment later than we; but not by so much. */
#define EARLY_USECS (INT64CONST(10) * USECS_PER_SEC)

static bool
same_text(TupleTableSlot *row, AttrNumber attnum, const text *value)
{
	return outbox_text_equal(DatumGetTextPP(outbox_row_get(row, attnum)), value);
}

/* Does the row say all this already, and lately enough? */
static bool
is_fresh(TupleTableSlot *row, const OutboxInstance *instance, TimestampTz now)
{
	bool		isnull;
	Datum		metadata = slot_getattr(row, I_METADATA, &isnull);
	TimestampTz last = DatumGetTimestampTz(outbox_row_get(row, I_LAST_HEARTBEAT_AT));

	if (last < now - FRESH_USECS || last > now + FRESH_USECS ||
		DatumGetInt32(outbox_row_get(row, I_PROCESS_ID)) != instance->process_id ||
		!same_text(row, I_SERVICE_NAME, instance->service_name) ||
		!same_text(row, I_HOST_NAME, instance->host_name))
		return false;
	return instance->metadata == NULL ||
		(!isnull &&
		 compareJsonbContainers(&DatumGetJsonbP(metadata)->root,
								(JsonbContainer *) &instance->metadata->root) == 0);
}

static void
describe_instance(TupleTableSlot *row, const OutboxInstance *instance, TimestampTz now)
{
	outbox_row_set(row, I_SERVICE_NAME, PointerGetDatum(instance->service_name));
	outbox_row_set(row, I_HOST_NAME, PointerGetDatum(instance->host_name));
	outbox_row_set(row, I_PROCESS_ID, Int32GetDatum(instance->process_id));
	if (instance->metadata != NULL)
		outbox_row_set(row, I_METADATA, PointerGetDatum(instance->metadata));
	outbox_row_set(row, I_LAST_HEARTBEAT_AT, TimestampTzGetDatum(now));
}

/* A first sign of life; unless somebody else was just quicker. */
static void
insert_instance(OutboxTable *instances, OutboxProbe *probe,
				TupleTableSlot *slot, TupleTableSlot *row,
				const OutboxInstance *instance, TimestampTz now)
{
	Oid			relid = RelationGetRelid(instances->rel);
	uint32		hash = outbox_uuid_hash(&instance->id);
	TransactionId blocker;

	outbox_keylock_acquire(relid, hash);
	if (!outbox_probe(probe, UUIDPGetDatum(&instance->id), slot, &blocker) &&
		!TransactionIdIsValid(blocker))
	{
		outbox_row_set(row, I_ID, UUIDPGetDatum(&instance->id));
		outbox_row_set(row, I_STARTED_AT, TimestampTzGetDatum(now));
		describe_instance(row, instance, now);
		outbox_table_insert(instances, row);
	}
	outbox_keylock_release(relid, hash);
}

/* An instance is alive. */
void
outbox_instance_heartbeat(const OutboxInstance *instance, TimestampTz now)
{
	OutboxTable instances;
	OutboxProbe probe;
	TupleTableSlot *slot;
	TupleTableSlot *row;
	TransactionId blocker;

	outbox_table_open(&instances, outbox_catalog()->instances, I_NATTS);
	slot = outbox_table_slot(&instances);
	row = outbox_table_new_row(&instances);
	outbox_probe_begin(&probe, &instances, outbox_catalog()->instances_pkey);
	if (!outbox_probe(&probe, UUIDPGetDatum(&instance->id), slot, &blocker))
	{
		/* if it is being inserted, that is a sign of life as well */
		if (!TransactionIdIsValid(blocker))
			insert_instance(&instances, &probe, slot, row, instance, now);
	}
	else if (!is_fresh(slot, instance, now))
	{
		outbox_new_row_from(row, slot);
		describe_instance(row, instance, now);
		(void) outbox_table_update(&instances, slot, row, false, &blocker);
	}
	outbox_probe_end(&probe);
	ExecDropSingleTupleTableSlot(row);
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&instances);
}

/* Was the last sign of life given before the clock was set back? */
static bool
is_early(TupleTableSlot *row, TimestampTz now)
{
	return DatumGetTimestampTz(outbox_row_get(row, I_LAST_HEARTBEAT_AT)) > now + EARLY_USECS;
}

static void
add_alive(OutboxInstances *alive, const pg_uuid_t *id)
{
	outbox_grow(alive->ids, alive->n, alive->max);
	alive->ids[alive->n++] = *id;
}

/*
 * These instances have given a sign of life in what is the future now.  It counts
 * as given now; what another transaction has locked is left to the next call.
 */
static void
correct_heartbeats(const OutboxInstances *early, TimestampTz now)
{
	for (int i = 0; i < early->n; i++)
	{
		OutboxTable instances;
		TupleTableSlot *slot;
		TupleTableSlot *row;
		TransactionId blocker;

		outbox_table_open(&instances, outbox_catalog()->instances, I_NATTS);
		slot = outbox_table_slot(&instances);
		row = outbox_table_new_row(&instances);
		if (outbox_find_row(&instances, outbox_catalog()->instances_pkey,
							UUIDPGetDatum(&early->ids[i]), slot, &blocker) &&
			!TransactionIdIsValid(blocker) && is_early(slot, now))
		{
			outbox_new_row_from(row, slot);
			outbox_row_set(row, I_LAST_HEARTBEAT_AT, TimestampTzGetDatum(now));
			(void) outbox_table_update(&instances, slot, row, false, &blocker);
		}
		ExecDropSingleTupleTableSlot(row);
		ExecDropSingleTupleTableSlot(slot);
		outbox_table_close(&instances);
	}
}

/*
 * The leases of an instance that is gone end now.  They are not given back:
 * the attempts count, for it may have been the messages that took it down.
 * False if another transaction has locked one of them.
 */
static bool
end_leases(const pg_uuid_t *id)
{
	bool		queue = outbox_expire_all(outbox_store(OUTBOX_QUEUE), id);
	bool		inbox = outbox_expire_all(outbox_store(OUTBOX_INBOX), id);

	return queue && inbox;
}

/* Has an instance been silent since before that time? */
static bool
is_silent(TupleTableSlot *row, TimestampTz oldest)
{
	return DatumGetTimestampTz(outbox_row_get(row, I_LAST_HEARTBEAT_AT)) < oldest;
}

/* Remove an instance, if it is still silent and nobody is just at it. */
static bool
remove_silent(const pg_uuid_t *id, TimestampTz oldest)
{
	OutboxTable instances;
	TupleTableSlot *slot;
	TransactionId blocker;
	bool		removed;

	outbox_table_open(&instances, outbox_catalog()->instances, I_NATTS);
	slot = outbox_table_slot(&instances);
	removed = outbox_find_row(&instances, outbox_catalog()->instances_pkey,
							  UUIDPGetDatum(id), slot, &blocker) &&
		!TransactionIdIsValid(blocker) && is_silent(slot, oldest) &&
		outbox_table_delete(&instances, slot, false, &blocker) == OUTBOX_ROW_OK;
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&instances);
	return removed;
}

/* What was left for one instance may be for another, if others are alive now. */
static void
note_members(const OutboxInstances *alive)
{
	uint64		members = 0;

	for (int i = 0; i < alive->n; i++)
		members += outbox_token_hash(&alive->ids[i]);
	outbox_parts_note_members(outbox_store(OUTBOX_QUEUE)->table, members);
	outbox_parts_note_members(outbox_store(OUTBOX_INBOX)->table, members);
}

/*
 * List the instances that are alive, and remove those that have been silent
 * for too long, when their leases have ended.  One whose messages are
 * locked by a transaction is at work, or will be removed when that is over.
 */
void
outbox_instance_remove_stale(const pg_uuid_t *self, TimestampTz now,
							 int threshold_seconds, OutboxInstances *alive)
{
	TimestampTz oldest = now - (TimestampTz) threshold_seconds * USECS_PER_SEC;
	OutboxInstances silent = {0};
	OutboxInstances early = {0};
	OutboxTable instances;
	TupleTableSlot *slot;
	TableScanDesc scan;
	SnapshotData dirty;

	memset(alive, 0, sizeof(OutboxInstances));
	add_alive(alive, self);
	outbox_table_open(&instances, outbox_catalog()->instances, I_NATTS);
	slot = outbox_table_slot(&instances);
	InitDirtySnapshot(dirty);
	scan = table_beginscan(instances.rel, &dirty, 0, NULL);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		pg_uuid_t	id = *DatumGetUUIDP(outbox_row_get(slot, I_ID));

		/* of a row that is just being changed, two versions are seen */
		if (outbox_uuid_equal(&id, self) ||
			(TransactionIdIsValid(dirty.xmin) && outbox_row_is_update(slot)))
			continue;
		if (is_silent(slot, oldest) &&
			!TransactionIdIsValid(outbox_row_writer(&dirty)))
			add_alive(&silent, &id);
		else
			add_alive(alive, &id);
		if (is_early(slot, now) &&
			!TransactionIdIsValid(outbox_row_writer(&dirty)))
			add_alive(&early, &id);
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&instances);
	for (int i = 0; i < silent.n; i++)
	{
		if (!end_leases(&silent.ids[i]) ||
			!remove_silent(&silent.ids[i], oldest))
			add_alive(alive, &silent.ids[i]);
	}
	correct_heartbeats(&early, now);
	note_members(alive);
}

/*
 * An instance says good-bye: its leases are given back.  How many there were.
 */
int
outbox_instance_remove(const pg_uuid_t *id)
{
	OutboxTable instances;
	OutboxProbe probe;
	TupleTableSlot *slot;
	TransactionId blocker;

	CommandCounterIncrement();
	outbox_table_open(&instances, outbox_catalog()->instances, I_NATTS);
	slot = outbox_table_slot(&instances);
	outbox_probe_begin(&probe, &instances, outbox_catalog()->instances_pkey);
	while (outbox_probe(&probe, UUIDPGetDatum(id), slot, &blocker) &&
		   outbox_table_delete(&instances, slot, true, NULL) == OUTBOX_ROW_GONE)
		ExecClearTuple(slot);
	outbox_probe_end(&probe);
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&instances);
	return outbox_release_all(outbox_store(OUTBOX_QUEUE), id) +
		outbox_release_all(outbox_store(OUTBOX_INBOX), id);
}

/* Which of the instances owns this partition? */
const pg_uuid_t *
outbox_instance_owner(const OutboxInstances *alive, int partition)
{
	const pg_uuid_t *best = NULL;
	uint64		best_share = 0;

	Assert(alive->n > 0);
	for (int i = 0; i < alive->n; i++)
	{
		const pg_uuid_t *id = &alive->ids[i];
		uint64		share = outbox_share_hash(id, partition);

		if (best == NULL || share > best_share ||
			(share == best_share && outbox_uuid_cmp(id, best) > 0))
		{
			best = id;
			best_share = share;
		}
	}
	return best;
}
