/*
 * claim.c
 *	  Handing out messages.
 *
 * A claim visits the lanes of the requested topics (merge.c), decides for each
 * message that is due whether the caller may have it, and leases it by
 * updating its row without waiting, which is FOR UPDATE SKIP LOCKED and the
 * lease in one step.  The update is HOT, because no index contains a column
 * that it changes.
 *
 * When a message of a stream has been taken, the next one of the stream can be
 * taken as well: it is visited in its order among the others, whatever its
 * lane.
 *
 * A claim moves messages that are out of attempts or have expired to dead as
 * it comes across them, up to MAX_BURIED in one call.  Apart from that, it
 * writes nothing but leases.
 */
#include "postgres.h"

#include "access/tableam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "core/claim.h"
#include "outbox.h"
#include "queue/count.h"
#include "queue/handler.h"
#include "queue/history.h"
#include "queue/merge.h"
#include "queue/policy.h"
#include "queue/queue.h"
#include "queue/stream.h"
#include "queue/subscriber.h"
#include "queue/walk.h"
#include "shmem/claimers.h"
#include "shmem/lane_xact.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/probe.h"
#include "table/table.h"
#include "table/tidcache.h"
#include "trace.h"
#include "util/guc.h"
#include "util/hash.h"
#include "util/uuid.h"

/* Maximum number of messages that one claim moves to dead. */
#define MAX_BURIED 1000

/* What to do with a message. */
typedef enum Decision
{
	CLAIM_TAKE,
	CLAIM_BURY,					/* as its fate says */
	CLAIM_LEAVE,				/* for others */
	CLAIM_LEAVE_FOR,			/* only one owner may have it */
	CLAIM_PREFER,				/* another owner is preferred */
	CLAIM_PASS,					/* an earlier one of its stream comes first */
	CLAIM_UNDECIDED				/* until a transaction has ended */
} Decision;

/* A decision, with its details. */
typedef struct Verdict
{
	Decision	decision;
	OutboxFate	fate;			/* CLAIM_BURY */
	uint64		token;			/* CLAIM_LEAVE_FOR, CLAIM_PREFER */
	TransactionId writer;		/* CLAIM_UNDECIDED */
	bool		first;			/* CLAIM_TAKE: in its stream */
} Verdict;

/* What was done with a message. */
typedef enum Outcome
{
	CLAIM_TAKEN,
	CLAIM_BURIED,
	CLAIM_NOTHING,				/* as the verdict says */
	CLAIM_LOCKED,				/* another transaction has locked it */
	CLAIM_REFUSED				/* by a trigger of the user */
} Outcome;

/* State of a claim. */
typedef struct Claimer
{
	const OutboxClaim *claim;
	OutboxClaimSink sink;
	void	   *arg;
	OutboxLaneFilter filter;
	const text **topics;		/* in order, each once */
	int			ntopics;
	uint32		wait_topic;		/* hash of the topic of waits */
	TimestampTz now;
	TimestampTz locked_until;
	OutboxMerge merge;
	OutboxTable queue;
	bool		is_open;
	OutboxHistory history;
	TupleTableSlot *row;		/* the next version of a message */
	TupleTableSlot *follower;
	bool		streams_open;
	OutboxStreamScan streams;
	int			ntaken;
	int64		last_lane;		/* of the message last taken */
	int			nburied;
	bool		skips_reserved; /* lanes that must be named, by others */
} Claimer;

/* ---------------------------------------------------------------------- */
/* Which messages are wanted                                              */
/* ---------------------------------------------------------------------- */

static int
cmp_text(const void *a, const void *b)
{
	const text *ta = *(const text *const *) a;
	const text *tb = *(const text *const *) b;
	int			la = VARSIZE_ANY_EXHDR(ta);
	int			lb = VARSIZE_ANY_EXHDR(tb);
	int			cmp = memcmp(VARDATA_ANY(ta), VARDATA_ANY(tb), Min(la, lb));

	return cmp != 0 ? cmp : la - lb;
}

static int
cmp_hash(const void *a, const void *b)
{
	uint32		ha = *(const uint32 *) a;
	uint32		hb = *(const uint32 *) b;

	return ha < hb ? -1 : ha > hb;
}

/* Set the filter for the lanes that a claim visits. */
void
outbox_claim_filter(const OutboxClaim *claim, OutboxLaneFilter *filter)
{
	memset(filter, 0, sizeof(OutboxLaneFilter));
	if (claim->namespace != NULL)
	{
		uint32	   *hash = palloc_object(uint32);

		*hash = outbox_namespace_hash(claim->namespace);
		filter->namespace_hash = hash;
	}
	if (claim->tenant != NULL)
	{
		uint64	   *hash = palloc_object(uint64);

		*hash = outbox_tenant_hash(claim->tenant);
		filter->tenant_hash = hash;
	}
	if (claim->topics != NULL)
	{
		uint32	   *hashes = palloc_array(uint32, claim->ntopics + 1);
		int			n = 0;

		for (int i = 0; i < claim->ntopics; i++)
			hashes[i] = outbox_topic_hash(claim->topics[i]);
		qsort(hashes, claim->ntopics, sizeof(uint32), cmp_hash);
		for (int i = 0; i < claim->ntopics; i++)
		{
			if (n == 0 || hashes[i] != hashes[n - 1])
				hashes[n++] = hashes[i];
		}
		filter->topic_hashes = hashes;
		filter->ntopics = n;
	}
	filter->subscribers = claim->subscribers;
	filter->nsubscribers = claim->nsubscribers;
}

/* Sort the names of the topics, for bsearch. */
static void
sort_topics(Claimer *claimer)
{
	const OutboxClaim *claim = claimer->claim;

	if (claim->topics == NULL)
		return;
	claimer->ntopics = claim->ntopics;
	claimer->topics = palloc_array(const text *, claim->ntopics + 1);
	memcpy(claimer->topics, claim->topics, claim->ntopics * sizeof(text *));
	qsort(claimer->topics, claimer->ntopics, sizeof(text *), cmp_text);
}

/* OutboxMerge callback: must the claim skip this lane? */
static bool
skips_lane(const OutboxPlace *place, void *arg)
{
	Claimer    *claimer = arg;
	int64		topic_key = outbox_place_topic_key(place);

	OutboxStoreKind kind = claimer->claim->store->kind;

	if (place->subscriber != 0)
		return outbox_policy_subscriber_is_paused(place->subscriber);
	if (kind == OUTBOX_QUEUE && claimer->claim->topics == NULL &&
		(place->topic_hash == claimer->wait_topic ||
		 outbox_handler_serves(topic_key, NULL)))
	{
		claimer->skips_reserved = true;
		return true;
	}
	return outbox_policy_topic_is_paused(kind, topic_key);
}

/*
 * Is the topic given only to claims that name it?  The topic of waits is, and
 * so are those that have a handler.
 */
static bool
topic_reserved(const text *namespace, const text *topic)
{
	const char *wait_topic = outbox_join_wait_topic;
	int			len = strlen(wait_topic);

	return (VARSIZE_ANY_EXHDR(topic) == len &&
			memcmp(VARDATA_ANY(topic), wait_topic, len) == 0) ||
		(outbox_handlers_of_topics() &&
		 outbox_handler_serves(outbox_topic_key(namespace, topic), topic));
}

static bool
topic_wanted(const Claimer *claimer, const text *namespace, const text *topic)
{
	if (claimer->topics == NULL)
		return claimer->claim->store->kind != OUTBOX_QUEUE ||
			claimer->claim->subscribers != NULL ||
			!topic_reserved(namespace, topic);
	return bsearch(&topic, claimer->topics, claimer->ntopics, sizeof(text *),
				   cmp_text) != NULL;
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

/*
 * A claim that names a subscription gets only its deliveries; any other claim
 * gets no deliveries.
 */
static bool
subscriber_wanted(const OutboxClaim *claim, TupleTableSlot *message)
{
	bool		isnull;
	Datum		value = slot_getattr(message, Q_SUBSCRIBER, &isnull);

	if (isnull || claim->subscribers == NULL)
		return isnull && claim->subscribers == NULL;
	return outbox_int32s_have(claim->subscribers, claim->nsubscribers,
							  DatumGetInt32(value));
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
		claimer->streams_open = true;
	}
	return &claimer->streams;
}

/* Decide as far as the order of the stream is concerned. */
static void
consider_stream(Claimer *claimer, TupleTableSlot *message, int64 held_to,
				Verdict *verdict)
{
	OutboxStreamScan *streams;
	OutboxStreamView view;

	verdict->decision = CLAIM_TAKE;
	verdict->first = false;
	if (slot_attisnull(message, Q_STREAM_ID))
		return;
	streams = open_streams(claimer);
	outbox_stream_look_before(streams, message, &claimer->claim->owner, held_to,
							  claimer->now, &view);
	switch (view.verdict)
	{
		case OUTBOX_STREAM_CLEAR:
			verdict->first = view.first;
			if (DatumGetInt32(outbox_row_get(message, Q_ATTEMPTS)) > 0 &&
				!outbox_stream_is_free_behind(streams, message, &verdict->writer))
				verdict->decision = CLAIM_UNDECIDED;
			break;
		case OUTBOX_STREAM_BLOCKED:
			verdict->decision = CLAIM_PASS;
			break;
		case OUTBOX_STREAM_HELD:
			verdict->decision = CLAIM_LEAVE_FOR;
			verdict->token = outbox_token_hash(&view.holder);
			break;
		case OUTBOX_STREAM_UNDECIDED:
			verdict->decision = CLAIM_UNDECIDED;
			verdict->writer = view.writer;
			break;
	}
}

/*
 * Decide what to do with this message, which is due.  Its stream is known to
 * be leased to the claimer up to held_to.
 */
static void
consider(Claimer *claimer, TupleTableSlot *message, int64 held_to,
		 Verdict *verdict)
{
	const OutboxClaim *claim = claimer->claim;
	const text *namespace = DatumGetTextPP(outbox_row_get(message, Q_NAMESPACE));
	const text *topic = DatumGetTextPP(outbox_row_get(message, Q_TOPIC));
	const pg_uuid_t *preferred;
	OutboxPolicy policy;

	verdict->decision = CLAIM_LEAVE;
	if ((claim->namespace != NULL &&
		 !outbox_text_equal(claim->namespace, namespace)) ||
		!subscriber_wanted(claim, message) ||
		!topic_wanted(claimer, namespace, topic) ||
		!tenant_wanted(claim, message))
		return;
	outbox_policy_of(claim->store, message, &policy);
	if (policy.paused)
		return;

	verdict->fate = outbox_queue_fate(message, &policy, claim->max_attempts,
									  claimer->now);
	if (verdict->fate != OUTBOX_FATE_LIVE)
	{
		if (claimer->nburied < MAX_BURIED)
			verdict->decision = CLAIM_BURY;
		return;
	}
	consider_stream(claimer, message, held_to, verdict);
	if (verdict->decision != CLAIM_TAKE || claim->preference == NULL)
		return;
	preferred = claim->preference(message, claim->preference_arg);
	if (preferred != NULL)
	{
		verdict->decision = CLAIM_PREFER;
		verdict->token = outbox_token_hash(preferred);
	}
}

/* ---------------------------------------------------------------------- */
/* Deeds                                                                  */
/* ---------------------------------------------------------------------- */

static bool
is_leased(TupleTableSlot *message)
{
	return DatumGetInt16(outbox_row_get(message, Q_STATUS)) == OUTBOX_IN_PROGRESS;
}

/*
 * Make the version of the row in which the message is leased to the claimer.
 */
static void
make_leased_row(Claimer *claimer, TupleTableSlot *message)
{
	TupleTableSlot *row = claimer->row;

	outbox_new_row_from(row, message);
	outbox_row_set(row, Q_STATUS, Int16GetDatum(OUTBOX_IN_PROGRESS));
	outbox_row_set(row, Q_OWNER_TOKEN, UUIDPGetDatum(&claimer->claim->owner));
	outbox_row_set(row, Q_LEASED_AT, TimestampTzGetDatum(claimer->now));
	outbox_row_set(row, Q_LOCKED_UNTIL,
				   TimestampTzGetDatum(claimer->locked_until));
	outbox_row_set(row, Q_ATTEMPTS,
				   Int32GetDatum(DatumGetInt32(outbox_row_get(message, Q_ATTEMPTS)) + 1));
	/* a lease that is taken away because of its stream does not count */
	if (is_leased(message) &&
		DatumGetTimestampTz(outbox_row_get(message, Q_LOCKED_UNTIL)) > claimer->now)
		outbox_row_set(row, Q_WAIVED,
					   Int32GetDatum(DatumGetInt32(outbox_row_get(message, Q_WAIVED)) + 1));
	outbox_row_set(row, Q_UPDATED_AT, TimestampTzGetDatum(claimer->now));
}

/*
 * Tell claimers.c about this claim, once for consecutive messages of one lane.
 */
static void
note_topic(Claimer *claimer, TupleTableSlot *message)
{
	int64		lane = DatumGetInt64(outbox_row_get(message, Q_LANE));
	const OutboxSubscriber *subscriber;
	const text *namespace;
	const text *topic;

	if (claimer->ntaken > 0 && lane == claimer->last_lane)
		return;
	claimer->last_lane = lane;
	namespace = DatumGetTextPP(outbox_row_get(message, Q_NAMESPACE));
	if (!slot_attisnull(message, Q_SUBSCRIBER))
	{
		subscriber = outbox_subscriber_get(DatumGetInt32(outbox_row_get(message, Q_SUBSCRIBER)));
		if (subscriber != NULL)
			outbox_claimers_note_topic(namespace, subscriber->name, true,
									   outbox_subscriber_key(subscriber->id),
									   claimer->now);
		return;
	}
	topic = DatumGetTextPP(outbox_row_get(message, Q_TOPIC));
	outbox_claimers_note_topic(namespace, topic, false,
							   outbox_topic_key(namespace, topic), claimer->now);
}

/*
 * Lease a message to the claimer.  "walked": it is the current row of a walk,
 * which will report the change itself.  "first": it is known to be the first of
 * its stream.
 */
static OutboxRowResult
take(Claimer *claimer, TupleTableSlot *message, bool walked, bool first,
	 TransactionId *blocker)
{
	TupleTableSlot *row = claimer->row;
	OutboxRowResult result;
	pg_uuid_t	stream;
	int64		seq = 0;

	make_leased_row(claimer, message);
	if (walked)
		result = outbox_table_update(&claimer->queue, message, row, false,
									 blocker);
	else
		result = outbox_queue_update(&claimer->queue, message, row, false,
									 blocker);
	if (result != OUTBOX_ROW_OK)
		return result;

	OUTBOX_TRACE_ROW(slot_attisnull(message, Q_STREAM_ID) ? "row.claim" : "row.take",
					 claimer, message, row, -1);
	if (first)
		(void) outbox_stream_of(message, &stream, &seq);
	outbox_tid_remember(RelationGetRelid(claimer->queue.rel),
						DatumGetInt64(outbox_row_get(message, Q_ID)),
						&row->tts_tid, seq);
	claimer->sink(row, is_leased(message), claimer->arg);
	outbox_count_claimed(claimer->claim->store->kind, message, claimer->now);
	if (claimer->claim->store->kind == OUTBOX_QUEUE)
		note_topic(claimer, message);
	claimer->ntaken++;
	Assert(claimer->ntaken <= claimer->claim->batch_size);
	return OUTBOX_ROW_OK;
}

/* Is the current row due, or does it have a lease that is void? */
static bool
can_follow(Claimer *claimer, TupleTableSlot *message)
{
	return is_leased(message) ||
		DatumGetTimestampTz(outbox_row_get(message, Q_NEXT_ATTEMPT_AT)) <= claimer->now;
}

/*
 * A message of a stream is ours, or gone: have the next one visited, too.  If
 * that is leased, the lease is void.
 */
static void
add_follower(Claimer *claimer, TupleTableSlot *message)
{
	OutboxFollower *follower;
	TransactionId writer;
	pg_uuid_t	stream;
	int64		seq;
	TupleTableSlot *next;

	if (!outbox_stream_of(message, &stream, &seq))
		return;
	if (!outbox_stream_look_behind(open_streams(claimer), &stream, seq, &writer) ||
		TransactionIdIsValid(writer))
		return;
	next = claimer->streams.slot;
	if (!can_follow(claimer, next))
		return;
	follower = palloc_object(OutboxFollower);
	follower->tuple = ExecCopySlotHeapTuple(next);
	follower->behind = seq;
	outbox_merge_add_follower(&claimer->merge, outbox_queue_ready_key(next),
							  outbox_queue_priority(next), follower);
}

/* Decide what to do with a message, and do it. */
static Outcome
deal_with(Claimer *claimer, TupleTableSlot *message, bool walked, int64 held_to,
		  Verdict *verdict)
{
	OutboxRowResult result;

	consider(claimer, message, held_to, verdict);
	if (verdict->decision == CLAIM_TAKE)
		result = take(claimer, message, walked, verdict->first, &verdict->writer);
	else if (verdict->decision == CLAIM_BURY)
		result = outbox_queue_bury(&claimer->queue, &claimer->history, message,
								   verdict->fate, &verdict->writer);
	else
		return CLAIM_NOTHING;

	if (result == OUTBOX_ROW_REFUSED)
		return CLAIM_REFUSED;
	if (result != OUTBOX_ROW_OK)
		return CLAIM_LOCKED;
	if (verdict->decision == CLAIM_TAKE)
	{
		add_follower(claimer, message);
		return CLAIM_TAKEN;
	}
	claimer->nburied++;
	OUTBOX_TRACE_ROW("row.bury", claimer, message, NULL, -1);
	if (!slot_attisnull(message, Q_STREAM_ID))
		outbox_stream_ended(open_streams(claimer), message);
	add_follower(claimer, message);
	return CLAIM_BURIED;
}

/* ---------------------------------------------------------------------- */
/* Visits                                                                 */
/* ---------------------------------------------------------------------- */

/* Tell the walk why its current message stays as it is. */
static void
note_nothing(OutboxWalk *walk, const Verdict *verdict)
{
	switch (verdict->decision)
	{
		case CLAIM_LEAVE_FOR:
			outbox_walk_left_for(walk, verdict->token, false);
			break;
		case CLAIM_PREFER:
			outbox_walk_left_for(walk, verdict->token, true);
			break;
		case CLAIM_PASS:
			outbox_walk_passed(walk);
			break;
		case CLAIM_UNDECIDED:
			outbox_walk_undecided(walk, verdict->writer);
			break;
		default:
			outbox_walk_left(walk);
			break;
	}
}

/* OutboxMerge callback: visit the current message of a walk. */
static void
visits_walk(OutboxWalk *walk, void *arg)
{
	Claimer    *claimer = arg;
	Verdict		verdict = {.writer = InvalidTransactionId};

	/* it has already been taken, as a follower */
	if (outbox_row_is_outdated(walk->slot))
	{
		outbox_walk_changed(walk, claimer->locked_until);
		return;
	}
	switch (deal_with(claimer, walk->slot, true, PG_INT64_MIN, &verdict))
	{
		case CLAIM_TAKEN:
			outbox_walk_changed(walk, claimer->locked_until);
			break;
		case CLAIM_BURIED:
			outbox_walk_changed(walk, 0);
			break;
		case CLAIM_LOCKED:
			outbox_walk_blocked(walk, verdict.writer);
			break;
		case CLAIM_REFUSED:
			outbox_walk_left(walk);
			break;
		case CLAIM_NOTHING:
			note_nothing(walk, &verdict);
			break;
	}
}

/*
 * The message behind one that is ours was not taken.  If it is leased, remove
 * the lease.  Report it to its lane, because the claimer may take it later
 * although it may be below the cursor of its lane.
 */
static void
leave_follower(Claimer *claimer, const OutboxFollower *follower)
{
	TupleTableSlot *message = claimer->follower;
	OutboxPlace place;
	pg_uuid_t	stream;
	int64		seq;

	ExecStoreHeapTuple(follower->tuple, message, false);
	(void) outbox_stream_of(message, &stream, &seq);
	if (is_leased(message))
		outbox_stream_revoke_behind(open_streams(claimer), &stream,
									follower->behind, claimer->now);
	outbox_queue_place(message, &place);
	outbox_lane_note_part(RelationGetRelid(claimer->queue.rel), &place,
						  outbox_token_hash(&claimer->claim->owner),
						  outbox_queue_ready_key(message));
	ExecClearTuple(message);
}

/* Has a walk reached the follower in the meantime, and taken it? */
static bool
follower_is_taken(Claimer *claimer, const OutboxFollower *follower)
{
	TupleTableSlot *slot = open_streams(claimer)->slot;
	bool		taken;

	if (!table_tuple_fetch_row_version(claimer->queue.rel,
									   &follower->tuple->t_self, SnapshotAny,
									   slot))
		return false;
	taken = outbox_row_is_outdated(slot);
	ExecClearTuple(slot);
	return taken;
}

static void
visits_follower(OutboxFollower *follower, void *arg)
{
	Claimer    *claimer = arg;
	Verdict		verdict;
	Outcome		outcome;

	if (!follower_is_taken(claimer, follower))
	{
		ExecStoreHeapTuple(follower->tuple, claimer->follower, false);
		outcome = deal_with(claimer, claimer->follower, false,
							follower->behind, &verdict);
		ExecClearTuple(claimer->follower);
		if (outcome != CLAIM_TAKEN && outcome != CLAIM_BURIED)
			leave_follower(claimer, follower);
	}
	heap_freetuple(follower->tuple);
	pfree(follower);
}

static bool
has_enough(void *arg)
{
	const Claimer *claimer = arg;

	return claimer->ntaken == claimer->claim->batch_size;
}

/* OutboxMerge callback: the first message is about to be visited. */
static void
opens(void *arg)
{
	Claimer    *claimer = arg;

	if (claimer->is_open)
		return;
	claimer->is_open = true;
	outbox_store_open(&claimer->queue, claimer->claim->store);
	claimer->row = outbox_table_new_row(&claimer->queue);
	claimer->follower = MakeSingleTupleTableSlot(RelationGetDescr(claimer->queue.rel),
												 &TTSOpsHeapTuple);
	outbox_history_begin(&claimer->history, &claimer->queue, claimer->now);
	claimer->history.ended.must_not_wait = true;
}

/* ---------------------------------------------------------------------- */
/* The call                                                               */
/* ---------------------------------------------------------------------- */

/*
 * Set up a claim.  The table is not opened before there is a message to visit.
 */
static void
begin_claimer(Claimer *claimer)
{
	const OutboxClaim *claim = claimer->claim;

	claimer->now = GetCurrentTimestamp();
	claimer->locked_until = claimer->now +
		(TimestampTz) claim->lease_seconds * USECS_PER_SEC;
	outbox_claim_filter(claim, &claimer->filter);
	sort_topics(claimer);
	if (claim->topics == NULL && claim->store->kind == OUTBOX_QUEUE)
		claimer->wait_topic =
			outbox_topic_hash(cstring_to_text(outbox_join_wait_topic));
	claimer->merge = OUTBOX_MAKE(OutboxMerge,.store = claim->store,
								 .filter = &claimer->filter,
								 .token = outbox_token_hash(&claim->owner),
								 .only_own = claim->preference != NULL,
								 .now = claimer->now,.arg = claimer,
								 .skips = skips_lane,.opens = opens,
								 .visits_walk = visits_walk,
								 .visits_follower = visits_follower,
								 .has_enough = has_enough,
								 .queue = &claimer->queue);
}

/*
 * Release the followers that were not taken, and everything that was opened.
 */
static void
end_claimer(Claimer *claimer)
{
	const OutboxFollower *follower;

	while ((follower = outbox_merge_take_follower(&claimer->merge)) != NULL)
	{
		if (!follower_is_taken(claimer, follower))
			leave_follower(claimer, follower);
	}
	outbox_merge_end(&claimer->merge);
	if (!claimer->is_open)
		return;
	if (claimer->streams_open)
		outbox_stream_scan_end(&claimer->streams);
	ExecDropSingleTupleTableSlot(claimer->follower);
	ExecDropSingleTupleTableSlot(claimer->row);
	outbox_history_end(&claimer->history);
	if (claimer->ntaken > 0 || claimer->nburied > 0)
		outbox_table_close(&claimer->queue);
	else
		outbox_table_close_unchanged(&claimer->queue);
}

/*
 * Lease due messages to an owner, and pass each to the sink.  Returns how
 * many.  *for_others, which may be NULL, is set if the claim has left work that
 * other claims might do.
 */
int
outbox_claim(const OutboxClaim *claim, OutboxClaimSink sink, void *arg,
			 bool *for_others)
{
	Claimer		claimer = {.claim = claim,.sink = sink,.arg = arg};

	Assert(claim->batch_size >= 1 && claim->batch_size <= OUTBOX_MAX_BATCH);
	Assert(claim->lease_seconds >= 1);
	/* see earlier changes of this transaction; they can be claimed, too */
	CommandCounterIncrement();

	/*
	 * policies may have changed; with all locks held already, nothing else
	 * would process the invalidation
	 */
	AcceptInvalidationMessages();
	begin_claimer(&claimer);
	outbox_merge_run(&claimer.merge);
	end_claimer(&claimer);
	if (for_others != NULL)
		*for_others = claimer.merge.nvisited > 0 || claimer.skips_reserved;
	if (claimer.ntaken > 0)
	{
		outbox_claimers_note_owner(&claim->owner, claimer.ntaken, claimer.now);
		outbox_log("outbox claim: count %d", claimer.ntaken);
	}
	return claimer.ntaken;
}
