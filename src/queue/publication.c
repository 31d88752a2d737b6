/*
 * publication.c
 *	  Publications that are kept, and their pending deliveries.
 *
 * A publication is stored only as a row in the queue for each subscription,
 * unless it must be found again: for future subscriptions, because its
 * deliveries share its payload, because it has a dedupe key or a given id, or
 * because deliveries are pending.  Then it also has a row in
 * outbox.publications, which is partitioned by day.  Deliveries that share its
 * payload, or whose publication has a key or a given id, contain the time when
 * it was published, which determines the partition, unless it is in the one
 * for unsorted publications.  Maintenance creates the partitions, as it does
 * for the archive (archive.c), and drops one when no pending delivery and no
 * such time refers to it any more.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/date.h"
#include "utils/datetime.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "compat.h"
#include "queue/archive.h"
#include "queue/publication.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/probe.h"
#include "table/table.h"
#include "util/grow.h"
#include "util/hash.h"
#include "util/uuid.h"

/* outbox.publications */
enum
{
	P_DAY = 1,
	P_SEQ,
	P_PUBLISHED_AT,
	P_PUBLISHED_ID,
	P_XID,
	P_KEPT,
	P_GIVEN,
	P_PRIORITY,
	P_DUE_TIME,
	P_EXPIRES_AT,
	P_TENANT_ID,
	P_STREAM_ID,
	P_NAMESPACE,
	P_TOPIC,
	P_CORRELATION_ID,
	P_DEDUPE_KEY,
	P_SUBSCRIBERS,
	P_HEADERS,
	P_PAYLOAD,
	P_NATTS = P_PAYLOAD
};

/* outbox.expansions */
enum
{
	X_SEQ = 1,
	X_PUBLISHED_AT,
	X_PUBLISHED_ID,
	X_STREAM_ID,
	X_SUBSCRIBERS,
	X_NATTS = X_SUBSCRIBERS
};

/* ---------------------------------------------------------------------- */
/* Partitions                                                             */
/* ---------------------------------------------------------------------- */

static DateADT
day_of(TimestampTz at)
{
	int64		day = at / USECS_PER_DAY;

	if (at < 0 && at % USECS_PER_DAY != 0)
		day--;
	return (DateADT) day;
}

/*
 * The partition of a day; if there is none, the unsorted one, and *day is
 * changed.
 */
static Oid
find_partition(DateADT *day)
{
	char		name[NAMEDATALEN];
	int			year;
	int			month;
	int			dom;
	Oid			relid;

	j2date(*day + POSTGRES_EPOCH_JDATE, &year, &month, &dom);
	snprintf(name, sizeof(name), "publications_%04d%02d%02d", year, month, dom);
	relid = get_relname_relid(name, outbox_catalog()->namespace);
	/* a table that is being restored is not attached yet */
	if (OidIsValid(relid) && get_rel_relispartition(relid))
		return relid;
	DATE_NOBEGIN(*day);
	return outbox_catalog()->publications_unsorted;
}

/* ---------------------------------------------------------------------- */
/* Writing                                                                */
/* ---------------------------------------------------------------------- */

static Datum
array_of(const int32 *subscribers, int n)
{
	Datum	   *elements = palloc_array(Datum, n + 1);

	for (int i = 0; i < n; i++)
		elements[i] = Int32GetDatum(subscribers[i]);
	return PointerGetDatum(construct_array(elements, n, INT4OID, sizeof(int32),
										   true, TYPALIGN_INT));
}

static void
set_pointer(TupleTableSlot *row, AttrNumber attnum, const void *value)
{
	if (value != NULL)
		outbox_row_set(row, attnum, PointerGetDatum(value));
}

static void
set_time(TupleTableSlot *row, AttrNumber attnum, const TimestampTz *value)
{
	if (value != NULL)
		outbox_row_set(row, attnum, TimestampTzGetDatum(*value));
}

/* Make a row of outbox.publications. */
static void
make_row(TupleTableSlot *row, const OutboxPublication *publication, DateADT day)
{
	outbox_row_set(row, P_DAY, DateADTGetDatum(day));
	outbox_row_set(row, P_SEQ, Int64GetDatum(publication->seq));
	outbox_row_set(row, P_PUBLISHED_AT,
				   TimestampTzGetDatum(publication->published_at));
	outbox_row_set(row, P_PUBLISHED_ID, UUIDPGetDatum(&publication->published_id));
	outbox_row_set(row, P_XID,
				   FullTransactionIdGetDatum(GetTopFullTransactionId()));
	outbox_row_set(row, P_KEPT, BoolGetDatum(publication->kept));
	outbox_row_set(row, P_GIVEN, BoolGetDatum(publication->given));
	if (publication->priority != 0)
		outbox_row_set(row, P_PRIORITY, Int16GetDatum(publication->priority));
	set_time(row, P_DUE_TIME, publication->due_time);
	set_time(row, P_EXPIRES_AT, publication->expires_at);
	set_pointer(row, P_TENANT_ID, publication->tenant_id);
	set_pointer(row, P_STREAM_ID, publication->stream_id);
	set_pointer(row, P_NAMESPACE, publication->namespace);
	set_pointer(row, P_TOPIC, publication->topic);
	set_pointer(row, P_CORRELATION_ID, publication->correlation_id);
	set_pointer(row, P_DEDUPE_KEY, publication->dedupe_key);
	outbox_row_set(row, P_SUBSCRIBERS, array_of(publication->subscribers,
												publication->nsubscribers));
	set_pointer(row, P_HEADERS, publication->headers);
	set_pointer(row, P_PAYLOAD, publication->payload);
}

/* Insert publications, which must all be of one day. */
void
outbox_publication_add(OutboxPublication **publications, int n)
{
	DateADT		day;
	Oid			relid;
	OutboxTable table;

	if (n == 0)
		return;
	Assert(day_of(publications[0]->published_at) ==
		   day_of(publications[n - 1]->published_at));
	day = day_of(publications[0]->published_at);
	relid = find_partition(&day);
	outbox_partition_open(&table, relid, outbox_catalog()->publications, P_NATTS);
	for (int i = 0; i < n; i++)
	{
		TupleTableSlot *row = outbox_table_new_row(&table);

		CHECK_FOR_INTERRUPTS();
		make_row(row, publications[i], day);
		outbox_table_insert(&table, row);
		ExecDropSingleTupleTableSlot(row);
	}
	outbox_table_close(&table);
}

/* ---------------------------------------------------------------------- */
/* Reading                                                                */
/* ---------------------------------------------------------------------- */

/* Called with the row of a publication that was found. */
typedef void (*FoundPublication) (TupleTableSlot *slot, void *arg);

/*
 * Fetch a publication from a partition into the slot; false if there is none.
 */
static bool
scan_for(Relation partition, const pg_uuid_t *published_id, TupleTableSlot *slot)
{
	Snapshot	snapshot = outbox_snapshot_now();
	TableScanDesc scan = table_beginscan(partition, snapshot, 0, NULL);
	bool		found = false;

	while (!found && table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();
		found = outbox_uuid_equal(DatumGetUUIDP(outbox_row_get(slot, P_PUBLISHED_ID)),
								  published_id);
	}
	/* the slot refers to the scan */
	if (found)
		ExecMaterializeSlot(slot);
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	return found;
}

/*
 * Look for a publication in a partition.  A partition that is being restored
 * may not have its index yet.
 */
static bool
find_in(Oid relid, const pg_uuid_t *published_id, FoundPublication found,
		void *arg)
{
	Relation	partition = try_table_open(relid, AccessShareLock);
	OutboxTable table = {.rel = partition};
	TransactionId blocker;
	TupleTableSlot *slot;
	Oid			index;
	bool		is_found;

	if (partition == NULL)
		return false;			/* dropped concurrently */
	index = outbox_partition_index(partition, P_PUBLISHED_ID);
	slot = outbox_table_slot(&table);
	if (OidIsValid(index))
		is_found = outbox_find_row(&table, index, UUIDPGetDatum(published_id),
								   slot, &blocker) ||
			TransactionIdIsValid(blocker);
	else
		is_found = scan_for(partition, published_id, slot);
	if (is_found && found != NULL && !TTS_EMPTY(slot))
		found(slot, arg);
	ExecDropSingleTupleTableSlot(slot);
	table_close(partition, AccessShareLock);
	return is_found;
}

/* Find a publication, given the time when it was published. */
static bool
find_publication(TimestampTz published_at, const pg_uuid_t *published_id,
				 FoundPublication found, void *arg)
{
	DateADT		day = day_of(published_at);
	Oid			relid = find_partition(&day);
	Oid			unsorted = outbox_catalog()->publications_unsorted;

	return find_in(relid, published_id, found, arg) ||
		(relid != unsorted && find_in(unsorted, published_id, found, arg));
}

/* Is there a publication with this id, or is one being inserted? */
bool
outbox_publication_is_kept(const pg_uuid_t *published_id)
{
	List	   *partitions = find_inheritance_children(outbox_catalog()->publications,
													   NoLock);
	ListCell   *lc;

	foreach(lc, partitions)
	{
		CHECK_FOR_INTERRUPTS();
		if (find_in(lfirst_oid(lc), published_id, NULL, NULL))
			return true;
	}
	return false;
}

static const void *
copy_of(TupleTableSlot *slot, AttrNumber attnum)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, attnum, &isnull);

	return isnull ? NULL : PG_DETOAST_DATUM_COPY(value);
}

static const pg_uuid_t *
copy_of_uuid(TupleTableSlot *slot, AttrNumber attnum)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, attnum, &isnull);
	pg_uuid_t  *copy;

	if (isnull)
		return NULL;
	copy = palloc_object(pg_uuid_t);
	*copy = *DatumGetUUIDP(value);
	return copy;
}

static const TimestampTz *
copy_of_time(TupleTableSlot *slot, AttrNumber attnum)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, attnum, &isnull);
	TimestampTz *copy;

	if (isnull)
		return NULL;
	copy = palloc_object(TimestampTz);
	*copy = DatumGetTimestampTz(value);
	return copy;
}

/* FoundPublication callback: copy the row to an OutboxPublication. */
static void
read_publication(TupleTableSlot *slot, void *arg)
{
	OutboxPublication *publication = arg;
	bool		isnull;
	Datum		priority = slot_getattr(slot, P_PRIORITY, &isnull);

	memset(publication, 0, sizeof(OutboxPublication));
	publication->priority = isnull ? 0 : DatumGetInt16(priority);
	publication->seq = DatumGetInt64(outbox_row_get(slot, P_SEQ));
	publication->published_at =
		DatumGetTimestampTz(outbox_row_get(slot, P_PUBLISHED_AT));
	publication->published_id = *DatumGetUUIDP(outbox_row_get(slot, P_PUBLISHED_ID));
	publication->given = DatumGetBool(outbox_row_get(slot, P_GIVEN));
	publication->kept = DatumGetBool(outbox_row_get(slot, P_KEPT));
	publication->due_time = copy_of_time(slot, P_DUE_TIME);
	publication->expires_at = copy_of_time(slot, P_EXPIRES_AT);
	publication->tenant_id = copy_of_uuid(slot, P_TENANT_ID);
	publication->stream_id = copy_of_uuid(slot, P_STREAM_ID);
	publication->namespace = copy_of(slot, P_NAMESPACE);
	publication->topic = copy_of(slot, P_TOPIC);
	publication->correlation_id = copy_of(slot, P_CORRELATION_ID);
	publication->dedupe_key = copy_of(slot, P_DEDUPE_KEY);
	publication->headers = copy_of(slot, P_HEADERS);
	publication->payload = copy_of(slot, P_PAYLOAD);
}

/* Read a publication, without its subscribers; false if it is not kept. */
bool
outbox_publication_read(TimestampTz published_at, const pg_uuid_t *published_id,
						OutboxPublication *publication)
{
	return find_publication(published_at, published_id, read_publication,
							publication);
}

/* Is there a publication that outbox_publication_read would find? */
bool
outbox_publication_exists(TimestampTz published_at, const pg_uuid_t *published_id)
{
	return find_publication(published_at, published_id, NULL, NULL);
}

static void
read_payload(TupleTableSlot *slot, void *arg)
{
	*(const text **) arg = copy_of(slot, P_PAYLOAD);
}

/*
 * The payload of a message in the queue.  A delivery may share that of its
 * publication; its own is empty then.  NULL if the publication is missing,
 * which means that a user has deleted it.
 */
const text *
outbox_publication_payload(TupleTableSlot *message)
{
	const text *payload = DatumGetTextPP(outbox_row_get(message, Q_PAYLOAD));
	bool		isnull;
	Datum		published_at = slot_getattr(message, Q_PUBLISHED_AT, &isnull);
	Datum		published_id;

	if (isnull || VARSIZE_ANY_EXHDR(payload) > 0)
		return payload;
	published_id = slot_getattr(message, Q_PUBLISHED_ID, &isnull);
	payload = NULL;
	if (isnull ||
		!find_publication(DatumGetTimestampTz(published_at),
						  DatumGetUUIDP(published_id), read_payload, &payload))
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("the publication that has the payload of message %lld is missing",
						(long long) DatumGetInt64(outbox_row_get(message, Q_ID)))));
	return payload;
}

/* ---------------------------------------------------------------------- */
/* Expansions                                                             */
/* ---------------------------------------------------------------------- */

/* Open outbox.expansions. */
void
outbox_expansions_open(OutboxTable *table)
{
	outbox_table_open(table, outbox_catalog()->expansions, X_NATTS);
}

/* Record that these subscriptions must still get a publication, at this place of this stream. */
void
outbox_expansion_add(const OutboxPublication *publication, int64 seq,
					 const pg_uuid_t *stream, const int32 *subscribers,
					 int nsubscribers)
{
	OutboxTable table;
	TupleTableSlot *row;

	Assert(nsubscribers > 0);
	outbox_expansions_open(&table);
	row = outbox_table_new_row(&table);
	outbox_row_set(row, X_SEQ, Int64GetDatum(seq));
	outbox_row_set(row, X_PUBLISHED_AT,
				   TimestampTzGetDatum(publication->published_at));
	outbox_row_set(row, X_PUBLISHED_ID, UUIDPGetDatum(&publication->published_id));
	set_pointer(row, X_STREAM_ID, stream);
	outbox_row_set(row, X_SUBSCRIBERS, array_of(subscribers, nsubscribers));
	outbox_table_insert(&table, row);
	ExecDropSingleTupleTableSlot(row);
	outbox_table_close(&table);
}

/* Append the subscribers of a row of outbox.expansions to a list. */
static void
add_subscribers(TupleTableSlot *slot, int32 **subscribers, int *n, int *max)
{
	Datum	   *elements;
	int			nelements;

	deconstruct_array(DatumGetArrayTypeP(outbox_row_get(slot, X_SUBSCRIBERS)),
					  INT4OID, sizeof(int32), true, TYPALIGN_INT, &elements, NULL,
					  &nelements);
	for (int i = 0; i < nelements; i++)
	{
		outbox_grow(*subscribers, *n, *max);
		(*subscribers)[(*n)++] = DatumGetInt32(elements[i]);
	}
}

static void
sort_subscribers(int32 *subscribers, int n)
{
	if (n > 1)
		qsort(subscribers, n, sizeof(int32), outbox_int32_cmp);
}

/* Read a row of outbox.expansions. */
void
outbox_expansion_read(TupleTableSlot *row, OutboxExpansion *expansion)
{
	bool		isnull;
	Datum		stream = slot_getattr(row, X_STREAM_ID, &isnull);
	int			max = 0;

	memset(expansion, 0, sizeof(OutboxExpansion));
	expansion->seq = DatumGetInt64(outbox_row_get(row, X_SEQ));
	expansion->published_at =
		DatumGetTimestampTz(outbox_row_get(row, X_PUBLISHED_AT));
	expansion->published_id = *DatumGetUUIDP(outbox_row_get(row, X_PUBLISHED_ID));
	expansion->has_stream = !isnull;
	if (!isnull)
		expansion->stream = *DatumGetUUIDP(stream);
	add_subscribers(row, &expansion->subscribers, &expansion->nsubscribers, &max);
	sort_subscribers(expansion->subscribers, expansion->nsubscribers);
}

/*
 * Reduce a row of outbox.expansions to these subscribers, or delete it if
 * there are none.  False if another transaction has locked it; this never
 * waits.
 */
bool
outbox_expansion_shorten(OutboxTable *table, TupleTableSlot *row,
						 const int32 *subscribers, int nsubscribers)
{
	TransactionId blocker;
	OutboxRowResult result;
	TupleTableSlot *shorter;

	if (nsubscribers == 0)
		return outbox_table_delete(table, row, false, &blocker) == OUTBOX_ROW_OK;
	shorter = outbox_table_new_row(table);
	outbox_new_row_from(shorter, row);
	outbox_row_set(shorter, X_SUBSCRIBERS, array_of(subscribers, nsubscribers));
	result = outbox_table_update(table, row, shorter, false, &blocker);
	ExecDropSingleTupleTableSlot(shorter);
	return result == OUTBOX_ROW_OK;
}

/*
 * List, in order, the subscribers to which something of this stream published
 * before "seq" has not been delivered yet; returns the number of publications.
 * If it is more than OUTBOX_MANY_EXPANSIONS, the list is incomplete.  *writer
 * is set to a transaction in progress, if any, that may change the result;
 * then the list must not be used.
 */
int
outbox_expansions_before(const pg_uuid_t *stream, int64 seq, int32 **subscribers,
						 int *nsubscribers, TransactionId *writer)
{
	OutboxTable table;
	OutboxProbe probe;
	TupleTableSlot *slot;
	int			max = 0;
	int			n = 0;

	*subscribers = NULL;
	*nsubscribers = 0;
	*writer = InvalidTransactionId;
	outbox_table_open_to_read(&table, outbox_catalog()->expansions);
	slot = outbox_table_slot(&table);
	outbox_probe_begin(&probe, &table, outbox_catalog()->expansions_stream);
	outbox_probe_seek(&probe, UUIDPGetDatum(stream));
	while (n <= OUTBOX_MANY_EXPANSIONS && outbox_probe_next(&probe, slot, writer))
	{
		/* the index returns them in order, so earlier ones come first */
		if (DatumGetInt64(outbox_row_get(slot, X_SEQ)) >= seq)
		{
			*writer = InvalidTransactionId;
			break;
		}
		if (TransactionIdIsValid(*writer))
			break;
		add_subscribers(slot, subscribers, nsubscribers, &max);
		n++;
	}
	outbox_probe_end(&probe);
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&table);
	sort_subscribers(*subscribers, *nsubscribers);
	return n;
}

/*
 * Which of these subscribers must still get something of this stream that is kept apart
 * for them?  *writer is as above; then what was found does not count.
 */
void
outbox_expansions_apart(const pg_uuid_t *stream, const int32 *subscribers,
						int nsubscribers, bool *has, TransactionId *writer)
{
	OutboxTable table;
	OutboxProbe probe;
	TupleTableSlot *slot;

	*writer = InvalidTransactionId;
	outbox_table_open_to_read(&table, outbox_catalog()->expansions);
	slot = outbox_table_slot(&table);
	outbox_probe_begin(&probe, &table, outbox_catalog()->expansions_stream);
	for (int i = 0; i < nsubscribers && !TransactionIdIsValid(*writer); i++)
	{
		pg_uuid_t	own;

		CHECK_FOR_INTERRUPTS();
		outbox_subscriber_stream(stream, subscribers[i], &own);
		outbox_probe_seek(&probe, UUIDPGetDatum(&own));
		has[i] = outbox_probe_next(&probe, slot, writer);
	}
	outbox_probe_end(&probe);
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&table);
}
