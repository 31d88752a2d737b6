/*
 * instance.c
 *	  Instances: which ones are alive, and which of them takes which streams.
 *
 * Every instance sends heartbeats.  One that has been silent for too long is
 * removed by the next instance that checks, and its leases end.  None of this
 * waits: a row that another transaction has locked is skipped.  Only
 * outbox_instance_remove, which removes an instance by name, waits for the row
 * of the instance and for those of its leases.
 *
 * A heartbeat in the future was sent before the clock was set back.  Whichever
 * instance finds one corrects it to the present time; otherwise an instance
 * that has died would count as alive until the clock is there again.
 *
 * Streams belong to partitions, and each partition to one instance: to the one
 * whose hash together with the partition's number is the largest (rendezvous
 * hashing).  So all that see the same instances agree without communicating,
 * and one that joins or leaves moves only its own share.  Two that do not see
 * the same instances may both want a message; then leases decide, as always.
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

/* A heartbeat as recent as this need not be renewed. */
#define FRESH_USECS (INT64CONST(100) * 1000)

/*
 * A heartbeat may be later than our time, since others read the clock after
 * us, but only by less than this.
 */
#define EARLY_USECS (INT64CONST(10) * USECS_PER_SEC)

static bool
same_text(TupleTableSlot *row, AttrNumber attnum, const text *value)
{
	return outbox_text_equal(DatumGetTextPP(outbox_row_get(row, attnum)), value);
}

/* Does the row contain all this already, with a recent heartbeat? */
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

/*
 * Insert the row of an instance, unless another transaction has just done so.
 */
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

/*
 * Record a heartbeat of an instance at time "now", and what it reports of
 * itself.  Skips a row that another transaction has locked: that transaction is
 * a sign of life, too.
 */
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
		/* a concurrent insertion is a heartbeat as well */
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

/* Was the last heartbeat sent before the clock was set back? */
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
 * Set the heartbeats of these instances, which are in the future, to now.
 * Rows that another transaction has locked are left to the next call.
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
 * End the leases of an instance that is gone.  They are not released: the
 * attempts count, because the messages may be what made it crash.  False if
 * another transaction has locked one of them.
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

/*
 * Remove an instance, if it is still silent and no other transaction has
 * locked its row.
 */
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

/*
 * If the set of live instances has changed, messages that were left for one of
 * them may be for another now.
 */
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
 * List the instances that are alive, ourselves included, and remove those that
 * have been silent for too long, after ending their leases.  An instance with
 * a message that another transaction has locked is kept: it is at work, or
 * will be removed after the end of that transaction.
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

		/* two versions are seen of a row that is being changed */
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
 * Deregister an instance, and release its leases; returns how many there were.
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

/* The instance that owns this partition. */
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
