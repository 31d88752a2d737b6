/*
 * claim.c
 *	  Handing out messages.
 *
 * A claim walks the lanes of the topics that were asked for side by side
 * (walk.c), always going on where the key is smallest.  Where a message of a
 * stream was taken, the next of its stream becomes another place to go on
 * from: it lies parked outside the lanes.  A message that is to be handed out
 * is updated without waiting, which is FOR UPDATE SKIP LOCKED and the lease in
 * one; while it stays in its lane the update is HOT.
 *
 * A message that has had its attempts, or has expired, is moved to the dead
 * on the way.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "core/claim.h"
#include "outbox.h"
#include "queue/handler.h"
#include "queue/history.h"
#include "queue/policy.h"
#include "queue/queue.h"
#include "queue/stream.h"
#include "queue/walk.h"
#include "shmem/lane.h"
#include "shmem/lane_directory.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/table.h"
#include "table/tidcache.h"
#include "util/grow.h"
#include "util/guc.h"
#include "util/hash.h"
#include "util/uuid.h"

/* More walks than this do not keep their scans open. */
#define MAX_OPEN_WALKS 64

/* A place where a claim can go on: a lane, or the rest of a stream. */
typedef struct Source
{
	OutboxKey	key;			/* of the message there */
	OutboxWalk *walk;			/* the lane; NULL: */
	HeapTuple	follower;		/* next message of its stream */
} Source;

/* What was done with a message. */
typedef enum Deed
{
	TAKEN,
	BURIED,
	LEFT,						/* for others */
	BLOCKED						/* somebody else has his hand on it */
} Deed;

/* What to do with a message. */
typedef enum Decision
{
	TAKE,
	LEAVE,						/* not for this claim */
	BURY,						/* as its fate says */
	WAIT_FOR_STREAM,			/* something before it is not finished */
	WAIT_FOR_WRITER				/* nor decided */
} Decision;

/* A claim under way. */
typedef struct Claimer
{
	const OutboxClaim *claim;
	OutboxClaimSink sink;
	void	   *arg;
	TimestampTz now;
	TimestampTz locked_until;
	OutboxTable queue;
	OutboxHistory history;
	Source	   *sources;
	int			nsources;
	int			max_sources;
	int			nopen;
	TupleTableSlot *row;		/* the next version of a message */
	TupleTableSlot *next;		/* looking along a stream */
	TupleTableSlot *follower;	/* a message that was waiting in one */
	bool		streams_open;
	OutboxStreamScan streams;
	OutboxStreamSet touched;	/* streams to be arranged at the end */
	int			ntaken;
} Claimer;

/* ---------------------------------------------------------------------- */
/* Sources                                                                */
/* ---------------------------------------------------------------------- */

/*
 * The sources form a heap with the smallest key on top.  (There is no bound
 * to their number to be known beforehand, as lib/binaryheap wants it.)
 */
static void
add_source(Claimer *claimer, OutboxKey key, OutboxWalk *walk,
		   HeapTuple follower)
{
	int			at;

	outbox_grow(claimer->sources, claimer->nsources, claimer->max_sources);
	at = claimer->nsources++;
	while (at > 0 &&
		   outbox_key_lt(key, claimer->sources[(at - 1) / 2].key))
	{
		claimer->sources[at] = claimer->sources[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	claimer->sources[at] = OUTBOX_MAKE(Source, key, walk, follower);
}

static Source
first_source(Claimer *claimer)
{
	Source	   *sources = claimer->sources;
	Source		first = sources[0];
	Source		last = sources[--claimer->nsources];
	int			at = 0;

	for (;;)
	{
		int			child = 2 * at + 1;

		if (child + 1 < claimer->nsources &&
			outbox_key_lt(sources[child + 1].key, sources[child].key))
			child++;
		if (child >= claimer->nsources ||
			!outbox_key_lt(sources[child].key, last.key))
			break;
		sources[at] = sources[child];
		at = child;
	}
	sources[at] = last;
	return first;
}

/* ---------------------------------------------------------------------- */
/* Decisions                                                              */
/* ---------------------------------------------------------------------- */

static OutboxStreamScan *
open_streams(Claimer *claimer)
{
	if (!claimer->streams_open)
	{
		outbox_stream_scan_begin(&claimer->streams, &claimer->queue);
		claimer->next = outbox_table_slot(&claimer->queue);
		claimer->streams_open = true;
	}
	return &claimer->streams;
}

/* Only who names it gets the topic of waits, or one that a handler serves. */
static bool
topic_reserved(const text *namespace, const text *topic)
{
	const char *wait_topic = outbox_join_wait_topic;
	int			len = strlen(wait_topic);

	return (VARSIZE_ANY_EXHDR(topic) == len &&
			memcmp(VARDATA_ANY(topic), wait_topic, len) == 0) ||
		(outbox_handlers() != NIL &&
		 outbox_handler_serves(outbox_topic_lane(namespace, topic), topic));
}

static bool
topic_wanted(const OutboxClaim *claim, const text *namespace,
			 const text *topic)
{
	if (claim->topics == NULL)
		return claim->store->kind != OUTBOX_QUEUE ||
			!topic_reserved(namespace, topic);
	for (int i = 0; i < claim->ntopics; i++)
	{
		if (outbox_text_equal(claim->topics[i], topic))
			return true;
	}
	return false;
}

static bool
tenant_wanted(const OutboxClaim *claim, TupleTableSlot *message)
{
	bool		isnull;
	Datum		tenant;

	if (claim->tenant == NULL)
		return true;
	tenant = slot_getattr(message, Q_TENANT_ID, &isnull);
	return !isnull &&
		outbox_uuid_equal(DatumGetUUIDP(tenant), claim->tenant);
}

static Decision
consider_stream(Claimer *claimer, TupleTableSlot *message,
				TransactionId *writer)
{
	OutboxStreamScan *streams;

	if (slot_attisnull(message, Q_STREAM_ID))
		return TAKE;
	streams = open_streams(claimer);
	switch (outbox_stream_check(streams, message, claimer->next,
								&claimer->claim->owner, claimer->now, writer))
	{
		case OUTBOX_STREAM_CLEAR:
			return TAKE;
		case OUTBOX_STREAM_BLOCKED:
			return WAIT_FOR_STREAM;
		case OUTBOX_STREAM_DOUBT:
			return WAIT_FOR_WRITER;
	}
	pg_unreachable();
}

/* What is to be done with this message, which is due? */
static Decision
consider(Claimer *claimer, TupleTableSlot *message, OutboxFate *fate,
		 TransactionId *writer)
{
	const OutboxClaim *claim = claimer->claim;
	const text *namespace = DatumGetTextPP(outbox_row_get(message, Q_NAMESPACE));
	const text *topic = DatumGetTextPP(outbox_row_get(message, Q_TOPIC));
	OutboxPolicy policy;

	if ((claim->namespace != NULL &&
		 !outbox_text_equal(claim->namespace, namespace)) ||
		!topic_wanted(claim, namespace, topic) ||
		!tenant_wanted(claim, message) ||
		(claim->may_take != NULL &&
		 !claim->may_take(message, claim->may_take_arg)))
		return LEAVE;
	outbox_policy_get(claimer->claim->store, namespace, topic, &policy);
	if (policy.paused)
		return LEAVE;

	*fate = outbox_queue_fate(message, &policy, claim->max_attempts,
							  claimer->now);
	if (*fate != OUTBOX_FATE_LIVE)
		return BURY;
	return consider_stream(claimer, message, writer);
}

/* ---------------------------------------------------------------------- */
/* Deeds                                                                  */
/* ---------------------------------------------------------------------- */

/*
 * Lease a message to the claimer.  One that does not lie in its topic's lane,
 * among the due, is put there: leases are looked for nowhere else.  If it is
 * a walk that stands on the message, the walk knows of the lease.
 */
static OutboxRowResult
take(Claimer *claimer, TupleTableSlot *message, bool walked,
	 TransactionId *blocker)
{
	TupleTableSlot *row = claimer->row;
	bool		moves;
	OutboxRowResult result;

	moves =
		!outbox_lane_is_topic(DatumGetInt64(outbox_row_get(message, Q_LANE))) ||
		DatumGetTimestampTz(outbox_row_get(message, Q_READY_AT)) > claimer->now;
	outbox_new_row_from(row, message);
	if (moves)
	{
		outbox_row_set(row, Q_LANE,
					   Int64GetDatum(outbox_queue_topic_lane(message)));
		outbox_row_set(row, Q_READY_AT, TimestampTzGetDatum(claimer->now));
	}
	outbox_row_set(row, Q_STATUS, Int16GetDatum(OUTBOX_IN_PROGRESS));
	outbox_row_set(row, Q_OWNER_TOKEN, UUIDPGetDatum(&claimer->claim->owner));
	outbox_row_set(row, Q_LOCKED_UNTIL,
				   TimestampTzGetDatum(claimer->locked_until));
	outbox_row_set(row, Q_ATTEMPTS,
				   Int32GetDatum(DatumGetInt32(outbox_row_get(message, Q_ATTEMPTS)) + 1));
	outbox_row_set(row, Q_UPDATED_AT, TimestampTzGetDatum(claimer->now));
	if (walked && !moves)
		result = outbox_table_update(&claimer->queue, message, row, false,
									 blocker);
	else
		result = outbox_queue_update(&claimer->queue, message, row, false,
									 blocker);
	if (result != OUTBOX_ROW_OK)
		return result;

	outbox_tid_remember(RelationGetRelid(claimer->queue.rel),
						DatumGetInt64(outbox_row_get(message, Q_ID)),
						&row->tts_tid);
	claimer->sink(row, DatumGetInt16(outbox_row_get(message, Q_STATUS)) ==
				  OUTBOX_IN_PROGRESS, claimer->arg);
	claimer->ntaken++;
	Assert(claimer->ntaken <= claimer->claim->batch_size);
	return OUTBOX_ROW_OK;
}

/* Is this message waiting, or its lease over? */
static bool
may_be_taken(Claimer *claimer, TupleTableSlot *message)
{
	if (DatumGetInt16(outbox_row_get(message, Q_STATUS)) == OUTBOX_IN_PROGRESS)
		return DatumGetTimestampTz(outbox_row_get(message,
												  Q_LOCKED_UNTIL)) <= claimer->now;
	return DatumGetTimestampTz(outbox_row_get(message,
											  Q_NEXT_ATTEMPT_AT)) <= claimer->now;
}

/*
 * A message of a stream is ours, or gone.  If the next one may be taken, it is
 * a place to go on from; if we do not take it, it is still to be put where it
 * belongs now.
 */
static void
look_behind(Claimer *claimer, TupleTableSlot *message)
{
	bool		isnull;
	Datum		stream = slot_getattr(message, Q_STREAM_ID, &isnull);
	TransactionId writer;
	OutboxKey	key;

	if (isnull)
		return;
	outbox_stream_seek_after(open_streams(claimer), DatumGetUUIDP(stream),
							 DatumGetInt64(outbox_row_get(message, Q_STREAM_SEQ)));
	if (!outbox_stream_next(&claimer->streams, claimer->next, &writer))
		return;
	key = OUTBOX_MAKE(OutboxKey,
					  DatumGetTimestampTz(outbox_row_get(claimer->next, Q_NEXT_ATTEMPT_AT)),
					  DatumGetInt64(outbox_row_get(claimer->next, Q_ID)));
	if (!TransactionIdIsValid(writer) && may_be_taken(claimer, claimer->next))
		add_source(claimer, key, NULL, ExecCopySlotHeapTuple(claimer->next));
	else
		outbox_stream_set_add(&claimer->touched, DatumGetUUIDP(stream));
	ExecClearTuple(claimer->next);
}

static void
touch_stream(Claimer *claimer, TupleTableSlot *message)
{
	bool		isnull;
	Datum		stream = slot_getattr(message, Q_STREAM_ID, &isnull);

	if (!isnull)
		outbox_stream_set_add(&claimer->touched, DatumGetUUIDP(stream));
}

/* Do with a message what has to be done. */
static Deed
deal_with(Claimer *claimer, TupleTableSlot *message, bool walked,
		  TransactionId *blocker)
{
	OutboxRowResult result;
	Deed		deed = BURIED;
	OutboxFate	fate;

	*blocker = InvalidTransactionId;
	switch (consider(claimer, message, &fate, blocker))
	{
		case TAKE:
			result = take(claimer, message, walked, blocker);
			deed = TAKEN;
			break;
		case BURY:
			result = outbox_queue_bury(&claimer->queue, &claimer->history,
									   message, fate, blocker);
			break;
		case LEAVE:
			result = OUTBOX_ROW_REFUSED;
			break;
		case WAIT_FOR_STREAM:
			/* it does not lie where it should */
			touch_stream(claimer, message);
			result = OUTBOX_ROW_LOCKED;
			break;
		case WAIT_FOR_WRITER:
			result = OUTBOX_ROW_LOCKED;
			break;
	}
	if (result == OUTBOX_ROW_OK)
	{
		look_behind(claimer, message);
		return deed;
	}
	return result == OUTBOX_ROW_REFUSED ? LEFT : BLOCKED;
}

/* ---------------------------------------------------------------------- */
/* Going on                                                               */
/* ---------------------------------------------------------------------- */

/* Walk to the next message of a lane; if there is one, it is a source. */
static void
walk_on(Claimer *claimer, OutboxWalk *walk)
{
	if (!outbox_walk_next(walk))
	{
		claimer->nopen--;
		return;
	}
	add_source(claimer, walk->key, walk, NULL);
	if (claimer->nopen > MAX_OPEN_WALKS)
	{
		outbox_walk_put_aside(walk);
		claimer->nopen--;
	}
}

static void
visit_lane(Claimer *claimer, OutboxWalk *walk, OutboxKey key)
{
	TransactionId blocker;

	if (walk->scan == NULL)
	{
		/* much can have happened to a message whose walk was put aside */
		if (!outbox_walk_next(walk))
			return;
		claimer->nopen++;
		if (outbox_key_cmp(key, walk->key) != 0)
		{
			add_source(claimer, walk->key, walk, NULL);
			return;
		}
	}
	switch (deal_with(claimer, walk->slot, true, &blocker))
	{
		case TAKEN:
			outbox_walk_changed(walk, claimer->locked_until);
			break;
		case BURIED:
			outbox_walk_changed(walk, 0);
			break;
		case LEFT:
			outbox_walk_left(walk);
			break;
		case BLOCKED:
			outbox_walk_blocked(walk, blocker);
			break;
	}
	walk_on(claimer, walk);
}

static void
visit_follower(Claimer *claimer, HeapTuple tuple)
{
	TransactionId blocker;
	Deed		deed;

	ExecStoreHeapTuple(tuple, claimer->follower, true);
	deed = deal_with(claimer, claimer->follower, false, &blocker);
	if (deed == LEFT || deed == BLOCKED)
		touch_stream(claimer, claimer->follower);
	ExecClearTuple(claimer->follower);
}

/* Take messages from the sources until there are enough, or no more. */
static void
visit_sources(Claimer *claimer)
{
	while (claimer->nsources > 0 &&
		   claimer->ntaken < claimer->claim->batch_size)
	{
		Source		source = first_source(claimer);

		CHECK_FOR_INTERRUPTS();
		if (source.walk != NULL)
			visit_lane(claimer, source.walk, source.key);
		else
			visit_follower(claimer, source.follower);
	}
	/* what would have followed is now the first that waits in its stream */
	for (int i = 0; i < claimer->nsources; i++)
	{
		if (claimer->sources[i].walk == NULL)
		{
			ExecStoreHeapTuple(claimer->sources[i].follower, claimer->follower,
							   true);
			touch_stream(claimer, claimer->follower);
			ExecClearTuple(claimer->follower);
		}
	}
}

/* ---------------------------------------------------------------------- */
/* Which lanes                                                            */
/* ---------------------------------------------------------------------- */

static void
lanes_of_topics(const OutboxClaim *claim, int64 *lanes, int *nlanes)
{
	*nlanes = 0;
	for (int i = 0; i < claim->ntopics; i++)
	{
		int64		lane = outbox_topic_lane(claim->namespace, claim->topics[i]);
		bool		known = false;

		for (int k = 0; k < *nlanes; k++)
			known |= lanes[k] == lane;
		if (!known)
			lanes[(*nlanes)++] = lane;
	}
}

/* Drop the lanes that this claim must not touch. */
static int
admit_lanes(const OutboxClaim *claim, int64 *lanes, int nlanes)
{
	uint32		reserved;
	int			n = 0;

	/* topics are the queue's alone */
	if (claim->store->kind != OUTBOX_QUEUE)
		return nlanes;
	reserved = outbox_topic_hash(cstring_to_text(outbox_join_wait_topic));
	for (int i = 0; i < nlanes; i++)
	{
		if (claim->topics == NULL &&
			(outbox_lane_topic(lanes[i]) == reserved ||
			 outbox_handler_serves(lanes[i], NULL)))
			continue;
		if (!outbox_policy_lane_is_paused(lanes[i]))
			lanes[n++] = lanes[i];
	}
	return n;
}

static void
open_queue(Claimer *claimer)
{
	if (claimer->queue.rel == NULL)
		outbox_store_open(&claimer->queue, claimer->claim->store);
}

/* Which lanes a claim looks into; namespace_hash is where the filter points. */
void
outbox_claim_filter(const OutboxClaim *claim, OutboxLaneFilter *filter,
					uint32 *namespace_hash)
{
	memset(filter, 0, sizeof(OutboxLaneFilter));
	if (claim->namespace != NULL)
	{
		*namespace_hash = outbox_namespace_hash(claim->namespace);
		filter->namespace_hash = namespace_hash;
	}
	if (claim->topics != NULL)
	{
		uint32	   *hashes = palloc_array(uint32, claim->ntopics + 1);

		for (int i = 0; i < claim->ntopics; i++)
			hashes[i] = outbox_topic_hash(claim->topics[i]);
		filter->topic_hashes = hashes;
		filter->ntopics = claim->ntopics;
	}
}

/* The lanes in which there may be something for this claim. */
static int64 *
choose_lanes(Claimer *claimer, int *nlanes)
{
	const OutboxClaim *claim = claimer->claim;
	Oid			relid = claimer->claim->store->table;
	OutboxLaneFilter filter;
	uint32		namespace_hash;
	int64	   *lanes;
	int64	   *listed;
	int			nlisted;

	outbox_claim_filter(claim, &filter, &namespace_hash);
	if (claim->namespace != NULL && claim->topics != NULL)
	{
		lanes = palloc_array(int64, claim->ntopics + 1);
		lanes_of_topics(claim, lanes, nlanes);
		if (outbox_lanes_need_listing(relid))
		{
			open_queue(claimer);
			outbox_walk_lanes(&claimer->queue, &filter, &listed, &nlisted);
		}
	}
	else if (!outbox_lanes_list(relid, &filter, claimer->now,
								OUTBOX_SCAN_CLAIM, &lanes, nlanes))
	{
		open_queue(claimer);
		outbox_walk_lanes(&claimer->queue, &filter, &lanes, nlanes);
	}
	*nlanes = admit_lanes(claim, lanes, *nlanes);
	return lanes;
}

/* ---------------------------------------------------------------------- */
/* The call                                                               */
/* ---------------------------------------------------------------------- */

/* Begin the walks where there is something to look at. */
static int
begin_walks(Claimer *claimer, OutboxWalk **walks)
{
	Oid			relid = claimer->claim->store->table;
	int64		owner_lane = outbox_owner_lane(&claimer->claim->owner);
	int64	   *lanes;
	int			nlanes;
	int			n = 0;

	lanes = choose_lanes(claimer, &nlanes);
	*walks = palloc_array(OutboxWalk, nlanes + 1);
	for (int i = 0; i < nlanes; i++)
	{
		if (outbox_walk_begin(&(*walks)[n], relid, lanes[i], claimer->now,
							  OUTBOX_SCAN_CLAIM))
			n++;
	}
	if (outbox_owner_lane_may_exist(relid, owner_lane) &&
		outbox_walk_begin(&(*walks)[n], relid, owner_lane, claimer->now,
						  OUTBOX_SCAN_CLAIM))
		n++;
	return n;
}

static void
run_walks(Claimer *claimer, OutboxWalk *walks, int nwalks)
{
	Relation	index = index_open(claimer->claim->store->ready,
								   AccessShareLock);

	claimer->row = outbox_table_new_row(&claimer->queue);
	claimer->follower = MakeSingleTupleTableSlot(RelationGetDescr(claimer->queue.rel),
												 &TTSOpsHeapTuple);
	outbox_history_begin(&claimer->history, &claimer->queue, claimer->now);
	claimer->history.ended.must_not_wait = true;

	for (int i = 0; i < nwalks; i++)
	{
		outbox_walk_open(&walks[i], &claimer->queue, index);
		claimer->nopen++;
		walk_on(claimer, &walks[i]);
	}
	visit_sources(claimer);
	for (int i = 0; i < nwalks; i++)
		outbox_walk_end(&walks[i]);

	if (claimer->streams_open)
	{
		outbox_stream_scan_end(&claimer->streams);
		ExecDropSingleTupleTableSlot(claimer->next);
	}
	ExecDropSingleTupleTableSlot(claimer->follower);
	ExecDropSingleTupleTableSlot(claimer->row);
	index_close(index, NoLock);
	outbox_stream_arrange(&claimer->queue, &claimer->touched, claimer->now,
						  true);
	outbox_history_end(&claimer->history);
}

/*
 * Lease due messages to an owner, and give each to the sink.  Returns how
 * many.
 */
int
outbox_claim(const OutboxClaim *claim, OutboxClaimSink sink, void *arg)
{
	Claimer		claimer = {.claim = claim,.sink = sink,.arg = arg};
	OutboxWalk *walks;
	int			nwalks;
	uint32		seen;

	Assert(claim->batch_size >= 1 && claim->batch_size <= OUTBOX_MAX_BATCH);
	Assert(claim->lease_seconds >= 1);
	/* what this transaction did before is to be seen, and can be claimed */
	CommandCounterIncrement();
	claimer.now = GetCurrentTimestamp();
	claimer.locked_until = claimer.now +
		(TimestampTz) claim->lease_seconds * USECS_PER_SEC;

	if (outbox_doubts_may_exist(claim->store->table, &seen))
	{
		open_queue(&claimer);
		outbox_stream_settle_doubts(&claimer.queue, claimer.now);
	}
	nwalks = begin_walks(&claimer, &walks);
	if (nwalks > 0)
	{
		open_queue(&claimer);
		run_walks(&claimer, walks, nwalks);
	}
	if (claimer.queue.rel != NULL)
		outbox_table_close(&claimer.queue);
	if (claimer.ntaken > 0)
		outbox_log("outbox claim: count %d", claimer.ntaken);
	return claimer.ntaken;
}
