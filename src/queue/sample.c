/*
 * sample.c
 *	  Counting the messages of each lane, up to a limit.
 *
 * For views and checks, which must be cheap whatever there is: they see the
 * first messages of each lane, in the order of delivery.  Many lanes share a
 * total, so each gets fewer.
 *
 * Under an old snapshot the index still has the entries of all messages that
 * were finished since, before those that wait.  SQL would read all of them.
 * Here only so many entries are visited; then the search continues at the
 * cursor of the lane, if shared memory has one, below which nothing is
 * claimable.  What is leased below it is in the marks of the lane; what waits
 * behind others of its stream there is not counted.
 *
 * Rows are read with the snapshot of the query.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/itup.h"
#include "access/relscan.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "outbox.h"
#include "queue/lease_walk.h"
#include "queue/sample.h"
#include "queue/walk.h"
#include "shmem/agenda.h"
#include "shmem/directory.h"
#include "shmem/lane_memory.h"
#include "shmem/stream_cursor.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/table.h"
#include "util/grow.h"
#include "util/hash.h"
#include "util/uuid.h"

/* Messages to count: in all, and in each lane at most and at least. */
#define TOTAL_ROWS 200000
#define MOST_ROWS 10000
#define LEAST_ROWS 2

/* Entries of the index to visit in vain, in all and in each lane at most. */
#define TOTAL_DEAD 200000
#define MOST_DEAD 1000

/*
 * The same for a message before one of a stream; and for the first of a stream,
 * if there are many streams.
 */
#define DEAD_IN_STREAM 16

/* Streams to return in any case. */
#define MOST_STREAMS 5000

/* Messages of all lanes whose streams are returned besides. */
#define TOTAL_STREAM_ROWS 20000
#define MOST_STREAM_ROWS 1000

/* State of sampling a live table. */
typedef struct Sampler
{
	OutboxTable queue;
	Relation	ready;
	Relation	stream;
	IndexScanDesc scan;			/* of the ready index */
	IndexScanDesc stream_scan;
	TupleTableSlot *slot;
	TupleTableSlot *stream_slot;
	TimestampTz now;
	int64	   *lanes;
	int			nlanes;
	int			max_lanes;
	int			most;			/* rows of each lane */
	int			most_dead;
	MemoryContext context;		/* of the current lane */
	bool		has_streams;	/* has the current lane messages in streams? */
	OutboxLaneCounts *groups;	/* of the current lane, usually one */
	int			ngroups;
	int			max_groups;
	/* the lanes in shared memory, once they are needed */
	bool		has_tracked;
	OutboxLane *tracked;
	int			ntracked;
} Sampler;

/* ---------------------------------------------------------------------- */
/* Beginning and end                                                      */
/* ---------------------------------------------------------------------- */

/*
 * Begin a scan by so many columns of an index, with the snapshot of the query,
 * that also says what is in the entries.
 */
static IndexScanDesc
begin_scan(Sampler *sampler, Relation index, int nkeys)
{
	IndexScanDesc scan = outbox_index_beginscan(sampler->queue.rel, index,
												GetActiveSnapshot(), nkeys);

	scan->xs_want_itup = true;
	return scan;
}

/* Open the table and its indexes, for reading. */
static void
begin_sampler(Sampler *sampler, const OutboxStore *store)
{
	memset(sampler, 0, sizeof(Sampler));
	outbox_table_open_to_read(&sampler->queue, store->table);
	sampler->queue.store = store;
	sampler->ready = index_open(store->ready, AccessShareLock);
	sampler->stream = index_open(store->stream, AccessShareLock);
	sampler->scan = begin_scan(sampler, sampler->ready, 2);
	sampler->stream_scan = begin_scan(sampler, sampler->stream, 2);
	sampler->slot = table_slot_create(sampler->queue.rel, NULL);
	sampler->stream_slot = table_slot_create(sampler->queue.rel, NULL);
	sampler->now = GetCurrentTransactionStartTimestamp();
	sampler->context = AllocSetContextCreate(CurrentMemoryContext,
											 "outbox sample of a lane",
											 ALLOCSET_SMALL_SIZES);
}

static void
end_sampler(Sampler *sampler)
{
	MemoryContextDelete(sampler->context);
	ExecDropSingleTupleTableSlot(sampler->slot);
	ExecDropSingleTupleTableSlot(sampler->stream_slot);
	index_endscan(sampler->scan);
	index_endscan(sampler->stream_scan);
	index_close(sampler->ready, AccessShareLock);
	index_close(sampler->stream, AccessShareLock);
	outbox_table_close(&sampler->queue);
}

/* ---------------------------------------------------------------------- */
/* Lanes                                                                  */
/* ---------------------------------------------------------------------- */

/* Does the lane that was found hold deliveries, by the first of its messages? */
static bool
has_deliveries(Sampler *sampler, IndexScanDesc scan)
{
	ItemPointer tid = &scan->xs_heaptid;

	for (int i = 0; tid != NULL && i < DEAD_IN_STREAM; i++)
	{
		if (index_fetch_heap(scan, sampler->slot))
			return !slot_attisnull(sampler->slot, Q_SUBSCRIBER);
		tid = index_getnext_tid(scan, ForwardScanDirection);
	}
	return true;				/* not known */
}

/*
 * List the lanes in the index, or only those that hold deliveries, and determine
 * how much each of them may take.  An entry of a dead row is as good as another.
 */
static void
list_lanes(Sampler *sampler, bool deliveries)
{
	IndexScanDesc scan = begin_scan(sampler, sampler->ready, 1);
	int64		lane = PG_INT64_MIN;
	bool		first = true;

	for (;;)
	{
		ScanKeyData key;
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		ScanKeyInit(&key, 1,
					first ? BTGreaterEqualStrategyNumber : BTGreaterStrategyNumber,
					first ? F_INT8GE : F_INT8GT, Int64GetDatum(lane));
		first = false;
		index_rescan(scan, &key, 1, NULL, 0);
		if (index_getnext_tid(scan, ForwardScanDirection) == NULL)
			break;
		lane = DatumGetInt64(index_getattr(scan->xs_itup, 1, scan->xs_itupdesc, &isnull));
		if (deliveries && !has_deliveries(sampler, scan))
			continue;
		outbox_grow(sampler->lanes, sampler->nlanes, sampler->max_lanes);
		sampler->lanes[sampler->nlanes++] = lane;
	}
	index_endscan(scan);
	sampler->most = Max(LEAST_ROWS, Min(MOST_ROWS, TOTAL_ROWS / Max(sampler->nlanes, 1)));
	sampler->most_dead = Min(MOST_DEAD, TOTAL_DEAD / Max(sampler->nlanes, 1));
}

static int
cmp_lane(const void *a, const void *b)
{
	const OutboxLane *la = a;
	const OutboxLane *lb = b;

	if (la->place.lane != lb->place.lane)
		return la->place.lane < lb->place.lane ? -1 : 1;
	return la->token < lb->token ? -1 : la->token > lb->token;
}

/*
 * What shared memory knows of a lane, whose cursor is behind this key; NULL if
 * there is nothing to gain.
 */
static const OutboxLane *
lane_to_jump(Sampler *sampler, int64 lane, OutboxReadyKey from)
{
	OutboxLane	key;
	const OutboxLane *found;

	if (!sampler->has_tracked)
	{
		OutboxAgenda agenda;

		sampler->ntracked = outbox_walk_uses_memory(RelationGetRelid(sampler->queue.rel)) ?
			outbox_agenda_copy(RelationGetRelid(sampler->queue.rel), &agenda,
							   &sampler->tracked) : 0;
		if (sampler->ntracked > 0)
			qsort(sampler->tracked, sampler->ntracked, sizeof(OutboxLane), cmp_lane);
		sampler->has_tracked = true;
	}
	if (sampler->ntracked <= 0)
		return NULL;
	key.place.lane = lane;
	key.token = 0;
	found = bsearch(&key, sampler->tracked, sampler->ntracked, sizeof(OutboxLane), cmp_lane);
	Assert(found == NULL || found->place.lane == lane);
	return found != NULL && outbox_ready_key_lt(from, found->cursor) ? found : NULL;
}

/* ---------------------------------------------------------------------- */
/* Counting                                                               */
/* ---------------------------------------------------------------------- */

static const text *
copy_text(Sampler *sampler, const text *value)
{
	Size		size = VARSIZE_ANY(value);
	text	   *copy = MemoryContextAlloc(sampler->context, size);

	memcpy(copy, value, size);
	return copy;
}

/*
 * The numbers of the topic of this message.  A lane has others only if their
 * hashes collide.
 */
static OutboxLaneCounts *
group_of(Sampler *sampler, TupleTableSlot *message)
{
	const text *namespace = DatumGetTextPP(outbox_row_get(message, Q_NAMESPACE));
	const text *topic = DatumGetTextPP(outbox_row_get(message, Q_TOPIC));
	bool		isnull;
	Datum		value = slot_getattr(message, Q_SUBSCRIBER, &isnull);
	int32		subscriber = isnull ? 0 : DatumGetInt32(value);

	for (int i = 0; i < sampler->ngroups; i++)
	{
		OutboxLaneCounts *group = &sampler->groups[i];

		if (group->subscriber == subscriber &&
			outbox_text_equal(group->topic, topic) &&
			outbox_text_equal(group->namespace, namespace))
			return group;
	}
	outbox_grow(sampler->groups, sampler->ngroups, sampler->max_groups);
	sampler->groups[sampler->ngroups] = (OutboxLaneCounts)
	{
		.namespace = copy_text(sampler, namespace),
			.topic = copy_text(sampler, topic),
			.subscriber = subscriber,
			.oldest_ready = DT_NOEND
	};
	return &sampler->groups[sampler->ngroups++];
}

/* Is there an unfinished message before this one in its stream? */
static bool
is_behind(Sampler *sampler, TupleTableSlot *message)
{
	bool		isnull;
	Datum		stream = slot_getattr(message, Q_STREAM_ID, &isnull);
	ScanKeyData keys[2];

	if (isnull)
		return false;
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_UUID_EQ, stream);
	ScanKeyInit(&keys[1], 2, BTLessStrategyNumber, F_INT8LT,
				outbox_row_get(message, Q_STREAM_SEQ));
	index_rescan(sampler->stream_scan, keys, 2, NULL, 0);
	/* the finished ones of a stream come first, so begin with the last one */
	for (int i = 0; i < DEAD_IN_STREAM; i++)
	{
		if (index_getnext_tid(sampler->stream_scan, BackwardScanDirection) == NULL)
			return false;
		if (index_fetch_heap(sampler->stream_scan, sampler->stream_slot))
			return true;
	}
	return false;
}

/* Count the current row. */
static void
count_row(Sampler *sampler, TupleTableSlot *message)
{
	OutboxLaneCounts *group = group_of(sampler, message);
	TimestampTz at = DatumGetTimestampTz(outbox_row_get(message, Q_NEXT_ATTEMPT_AT));
	bool		isnull;
	Datum		locked_until = slot_getattr(message, Q_LOCKED_UNTIL, &isnull);

	sampler->has_streams |= !slot_attisnull(message, Q_STREAM_ID);
	if (DatumGetInt32(outbox_row_get(message, Q_RETRY_COUNT)) >= 3)
		group->failing++;
	if (DatumGetInt16(outbox_row_get(message, Q_STATUS)) != OUTBOX_READY)
	{
		group->leased++;
		if (!isnull && DatumGetTimestampTz(locked_until) <= sampler->now)
			group->expired++;
	}
	else if (at > sampler->now)
		group->delayed++;
	else if (is_behind(sampler, message))
		group->behind++;
	else
	{
		group->ready++;
		group->oldest_ready = Min(group->oldest_ready, at);
	}
}

/* The key of the entry that a scan of the ready index is at. */
static OutboxReadyKey
entry_key(Sampler *sampler)
{
	IndexTuple	entry = sampler->scan->xs_itup;
	TupleDesc	desc = sampler->scan->xs_itupdesc;
	bool		isnull;

	return OUTBOX_MAKE(OutboxReadyKey,
					   DatumGetTimestampTz(index_getattr(entry, 2, desc, &isnull)),
					   DatumGetInt64(index_getattr(entry, 3, desc, &isnull)));
}

/* For visit_from: false ends the visit. */
typedef bool (*RowVisit) (Sampler *sampler, TupleTableSlot *message, void *arg);

/*
 * Pass the visible rows of a lane from a key on to the visitor.  Returns false
 * if this was ended, by the visitor or by too many dead entries, at the key *end.
 */
static bool
visit_from(Sampler *sampler, int64 lane, OutboxReadyKey from, int most_dead,
		   RowVisit visit, void *arg, OutboxReadyKey *end)
{
	ScanKeyData keys[2];
	int			ndead = 0;

	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(lane));
	ScanKeyInit(&keys[1], 2, BTGreaterEqualStrategyNumber, F_TIMESTAMPTZ_GE,
				TimestampTzGetDatum(from.at));
	index_rescan(sampler->scan, keys, 2, NULL, 0);
	while (index_getnext_tid(sampler->scan, ForwardScanDirection) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		*end = entry_key(sampler);
		if (outbox_ready_key_lt(*end, from))
			continue;
		if (index_fetch_heap(sampler->scan, sampler->slot))
		{
			if (!visit(sampler, sampler->slot, arg))
				return false;
		}
		else if (++ndead > most_dead)
			return false;
	}
	return true;
}

/* For visit_from: count so many rows. */
static bool
count_some(Sampler *sampler, TupleTableSlot *message, void *arg)
{
	int		   *left = arg;

	Assert(*left > 0);
	count_row(sampler, message);
	(*left)--;
	return *left > 0;
}

/* Where leases of a lane are to be counted. */
typedef struct LeaseRange
{
	Sampler    *sampler;
	OutboxReadyKey from;
	OutboxReadyKey to;
	int			left;
} LeaseRange;

static bool
count_lease(OutboxWalk *walk, void *arg)
{
	LeaseRange *range = arg;

	Assert(range->left > 0);
	if (!outbox_ready_key_lt(walk->key, range->from) &&
		outbox_ready_key_lt(walk->key, range->to))
	{
		count_row(range->sampler, walk->slot);
		range->left--;
	}
	return range->left > 0;
}

/*
 * Count the messages of a lane.  If the index has too many dead entries, go on
 * at the cursor, and count the leases before it.
 */
static void
sample_lane(Sampler *sampler, int64 lane)
{
	int			left = sampler->most;
	OutboxReadyKey end = OUTBOX_READY_KEY_MIN;
	bool		complete;

	sampler->ngroups = 0;
	sampler->has_streams = false;
	MemoryContextReset(sampler->context);
	complete = visit_from(sampler, lane, OUTBOX_READY_KEY_MIN, sampler->most_dead,
						  count_some, &left, &end);
	if (!complete && left > 0)
	{
		const OutboxLane *tracked = lane_to_jump(sampler, lane, end);

		if (tracked != NULL && tracked->leases_known)
		{
			LeaseRange	range = {
				.sampler = sampler,.from = end,.to = tracked->cursor,.left = left
			};

			outbox_walk_lane_leases(&sampler->queue, &tracked->place, sampler->now,
									count_lease, &range);
			left = range.left;
		}
		if (left > 0)
			complete = visit_from(sampler, lane, tracked != NULL ? tracked->cursor : end,
								  PG_INT32_MAX, count_some, &left, &end);
		/* what is not counted is behind other messages, or leased */
		if (tracked != NULL && (sampler->has_streams || !tracked->leases_known))
			complete = false;
	}
	Assert(left >= 0 && left <= sampler->most);
	for (int i = 0; i < sampler->ngroups; i++)
		sampler->groups[i].more = !complete;
}

/*
 * Count the messages of all lanes of a live table, or only of those that hold
 * deliveries.
 */
void
outbox_sample_lanes(const OutboxStore *store, bool deliveries,
					OutboxLaneCountsSink sink, void *arg)
{
	Sampler		sampler;

	begin_sampler(&sampler, store);
	list_lanes(&sampler, deliveries);
	for (int i = 0; i < sampler.nlanes; i++)
	{
		CHECK_FOR_INTERRUPTS();
		sample_lane(&sampler, sampler.lanes[i]);
		for (int g = 0; g < sampler.ngroups; g++)
			sink(&sampler.groups[g], arg);
	}
	end_sampler(&sampler);
}

/* ---------------------------------------------------------------------- */
/* Streams                                                                */
/* ---------------------------------------------------------------------- */

typedef struct StreamList
{
	pg_uuid_t  *streams;
	int			n;
	int			max;
	int			left;			/* rows of the current lane */
} StreamList;

static void
add_stream(StreamList *list, const pg_uuid_t *stream)
{
	outbox_grow(list->streams, list->n, list->max);
	list->streams[list->n++] = *stream;
}

/* List the first streams of the index; false if there are more. */
static bool
list_streams(Sampler *sampler, StreamList *list)
{
	IndexScanDesc scan = begin_scan(sampler, sampler->stream, 1);
	bool		at_end = false;
	pg_uuid_t	stream;

	memset(&stream, 0, sizeof(stream));
	for (int i = 0; i < MOST_STREAMS; i++)
	{
		ScanKeyData key;
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		ScanKeyInit(&key, 1,
					i == 0 ? BTGreaterEqualStrategyNumber : BTGreaterStrategyNumber,
					i == 0 ? F_UUID_GE : F_UUID_GT, UUIDPGetDatum(&stream));
		index_rescan(scan, &key, 1, NULL, 0);
		at_end = index_getnext_tid(scan, ForwardScanDirection) == NULL;
		if (at_end)
			break;
		stream = *DatumGetUUIDP(index_getattr(scan->xs_itup, 1, scan->xs_itupdesc, &isnull));
		add_stream(list, &stream);
	}
	index_endscan(scan);
	return at_end;
}

/* For visit_from: list the stream of a row. */
static bool
list_stream_of(Sampler *sampler, TupleTableSlot *message, void *arg)
{
	StreamList *list = arg;
	bool		isnull;
	Datum		stream = slot_getattr(message, Q_STREAM_ID, &isnull);

	if (!isnull)
		add_stream(list, DatumGetUUIDP(stream));
	return --list->left > 0;
}

/* List the streams of the messages that have been due for the longest time. */
static void
list_oldest_streams(Sampler *sampler, StreamList *list)
{
	OutboxReadyKey end;

	list_lanes(sampler, false);
	for (int i = 0; i < sampler->nlanes; i++)
	{
		CHECK_FOR_INTERRUPTS();
		list->left = Max(LEAST_ROWS, Min(MOST_STREAM_ROWS, TOTAL_STREAM_ROWS / sampler->nlanes));
		if (!visit_from(sampler, sampler->lanes[i], OUTBOX_READY_KEY_MIN,
						sampler->most_dead, list_stream_of, list, &end) &&
			list->left > 0)
		{
			const OutboxLane *tracked = lane_to_jump(sampler, sampler->lanes[i], end);

			(void) visit_from(sampler, sampler->lanes[i],
							  tracked != NULL ? tracked->cursor : end, PG_INT32_MAX,
							  list_stream_of, list, &end);
		}
	}
}

/*
 * The id of the first unfinished message of a stream; 0 if there are more dead
 * entries before it.
 */
static int64
first_of_stream(Sampler *sampler, const pg_uuid_t *stream, int most_dead)
{
	OutboxStreamTicket ticket;
	ScanKeyData keys[2];

	outbox_stream_cursor_get(RelationGetRelid(sampler->queue.rel), stream, &ticket);
	ScanKeyInit(&keys[0], 1, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(stream));
	ScanKeyInit(&keys[1], 2, BTGreaterEqualStrategyNumber, F_INT8GE,
				Int64GetDatum(ticket.valid ? ticket.low : PG_INT64_MIN));
	index_rescan(sampler->stream_scan, keys, 2, NULL, 0);
	for (int i = 0; i <= most_dead; i++)
	{
		if (index_getnext_tid(sampler->stream_scan, ForwardScanDirection) == NULL)
			break;
		if (index_fetch_heap(sampler->stream_scan, sampler->stream_slot))
			return DatumGetInt64(outbox_row_get(sampler->stream_slot, Q_ID));
	}
	return 0;
}

/*
 * The streams to examine for one that does not move on: some, and, if there are
 * more, those of the messages that have been due for the longest time in each
 * lane, which is where messages wait behind such a one.
 */
void
outbox_sample_streams(const OutboxStore *store, OutboxStreamSink sink, void *arg)
{
	Sampler		sampler;
	StreamList	list = {0};
	int			most_dead;

	begin_sampler(&sampler, store);
	if (!list_streams(&sampler, &list))
	{
		list_oldest_streams(&sampler, &list);
		qsort(list.streams, list.n, sizeof(pg_uuid_t), outbox_uuid_qsort_cmp);
	}
	most_dead = Max(DEAD_IN_STREAM, Min(MOST_DEAD, TOTAL_DEAD / Max(list.n, 1)));
	for (int i = 0; i < list.n; i++)
	{
		int64		first;

		CHECK_FOR_INTERRUPTS();
		if (i > 0 && outbox_uuid_equal(&list.streams[i], &list.streams[i - 1]))
			continue;
		first = first_of_stream(&sampler, &list.streams[i], most_dead);
		if (first != 0)
			sink(&list.streams[i], first, arg);
	}
	end_sampler(&sampler);
}
