/*
 * claim.c
 *	  Handing out messages.
 *
 * A claim visits the lanes of the topics that were asked for (merge.c), decides
 * of each message that is due whether the caller may have it, and leases it by
 * updating its row without waiting, which is FOR UPDATE SKIP LOCKED and the lease
 * in one.  The update is HOT, since nothing that it changes is in an index.
 *
 * Where a message of a stream was taken, the next one of the stream can be taken
 * as well: it is visited in its order among the others, wherever it lies.
 *
 * A message that has had its attempts, or has expired, is moved to the dead on the
 * way, but only so many of them in one call.  Apart from that, a claim writes
 * nothing but leases.
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
#include "queue/handler.h"
#include "queue/history.h"
#include "queue/merge.h"
#include "queue/policy.h"
#include "queue/queue.h"
#include "queue/stream.h"
#include "queue/walk.h"
#include "shmem/claimers.h"
#include "shmem/lane_xact.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/probe.h"
#include "table/table.h"
#include "table/tidcache.h"
#include "util/guc.h"
#include "util/hash.h"
#include "util/uuid.h"

/* Messages that one claim moves to the dead at most. */
#define MAX_BURIED 1000

/* What to do with a message. */
typedef enum Decision
{
	CLAIM_TAKE,
	CLAIM_BURY,					/* as its fate says */
	CLAIM_LEAVE,				/* for others */
	CLAIM_LEAVE_FOR,			/* for one owner, who alone may have it */
	CLAIM_PREFER,				/* for one owner, who should rather have it */
	CLAIM_PASS,					/* another one of its stream is before it */
	CLAIM_UNDECIDED				/* until a transaction has ended */
} Decision;

/* A decision, and what it is about. */
typedef struct Verdict
{
	Decision	decision;
	OutboxFate	fate;			/* CLAIM_BURY */
	uint64		token;			/* CLAIM_LEAVE_FOR, CLAIM_PREFER */
	TransactionId writer;		/* CLAIM_UNDECIDED */
	bool		first;			/* CLAIM_TAKE: in its stream */
} Verdict;

/* What became of a message. */
typedef enum Outcome
{
	CLAIM_TAKEN,
	CLAIM_BURIED,
	CLAIM_NOTHING,				/* as the verdict says */
	CLAIM_LOCKED,				/* another transaction has locked it */
	CLAIM_REFUSED				/* by a trigger of the user */
} Outcome;

/* A claim under way. */
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

/* In which lanes a claim looks. */
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
}

/* Put the names of the topics in order, to be searched. */
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

/* Must the claim not touch this lane? */
static bool
skips_lane(const OutboxPlace *place, void *arg)
{
	const Claimer *claimer = arg;
	int64		topic_key = outbox_place_topic_key(place);

	OutboxStoreKind kind = claimer->claim->store->kind;

	if (kind == OUTBOX_QUEUE && claimer->claim->topics == NULL &&
		(place->topic_hash == claimer->wait_topic ||
		 outbox_handler_serves(topic_key, NULL)))
		return true;
	return outbox_policy_topic_is_paused(kind, topic_key);
}

/* The topic of waits, and those that handlers serve, must be named. */
static bool
topic_reserved(const text *namespace, const text *topic)
{
	const char *wait_topic = outbox_join_wait_topic;
	int			len = strlen(wait_topic);

	return (VARSIZE_ANY_EXHDR(topic) == len &&
			memcmp(VARDATA_ANY(topic), wait_topic, len) == 0) ||
		(outbox_handlers() != NIL &&
		 outbox_handler_serves(outbox_topic_key(namespace, topic), topic));
}

static bool
topic_wanted(const Claimer *claimer, const text *namespace, const text *topic)
{
	if (claimer->topics == NULL)
		return claimer->claim->store->kind != OUTBOX_QUEUE ||
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

/* As far as its stream goes. */
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
 * What must be done with this message, which is due?  held_to: up to there its
 * stream is known to be the claimer's.
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
		!topic_wanted(claimer, namespace, topic) ||
		!tenant_wanted(claim, message))
		return;
	outbox_policy_get(claim->store, namespace, topic, &policy);
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

/* Make the version of the message in which it is leased to the claimer. */
static void
make_leased_row(Claimer *claimer, TupleTableSlot *message)
{
	TupleTableSlot *row = claimer->row;

	outbox_new_row_from(row, message);
	outbox_row_set(row, Q_STATUS, Int16GetDatum(OUTBOX_IN_PROGRESS));
	outbox_row_set(row, Q_OWNER_TOKEN, UUIDPGetDatum(&claimer->claim->owner));
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
 * Lease a message to the claimer.  If it is a walk that stands on the message, the
 * walk knows of the lease.
 */
/* Leave a note of this claim, once for the messages of a lane in a row. */
static void
note_topic(Claimer *claimer, TupleTableSlot *message)
{
	int64		lane = DatumGetInt64(outbox_row_get(message, Q_LANE));
	const text *namespace;
	const text *topic;

	if (claimer->ntaken > 0 && lane == claimer->last_lane)
		return;
	claimer->last_lane = lane;
	namespace = DatumGetTextPP(outbox_row_get(message, Q_NAMESPACE));
	topic = DatumGetTextPP(outbox_row_get(message, Q_TOPIC));
	outbox_claimers_note_topic(namespace, topic,
							   outbox_topic_key(namespace, topic), claimer->now);
}

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

	if (first)
		(void) outbox_stream_of(message, &stream, &seq);
	outbox_tid_remember(RelationGetRelid(claimer->queue.rel),
						DatumGetInt64(outbox_row_get(message, Q_ID)),
						&row->tts_tid, seq);
	claimer->sink(row, is_leased(message), claimer->arg);
	if (claimer->claim->store->kind == OUTBOX_QUEUE)
		note_topic(claimer, message);
	claimer->ntaken++;
	Assert(claimer->ntaken <= claimer->claim->batch_size);
	return OUTBOX_ROW_OK;
}

/* Is the row at hand due, or leased when it should not be? */
static bool
can_follow(Claimer *claimer, TupleTableSlot *message)
{
	return is_leased(message) ||
		DatumGetTimestampTz(outbox_row_get(message, Q_NEXT_ATTEMPT_AT)) <= claimer->now;
}

/*
 * A message of a stream is ours, or gone.  The next one can be visited, too.  If it
 * is leased, that lease is void.
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
	outbox_merge_add_follower(&claimer->merge, outbox_queue_key(next), follower);
}

/* Do with a message what must be done. */
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
	if (!slot_attisnull(message, Q_STREAM_ID))
		outbox_stream_ended(open_streams(claimer), message);
	add_follower(claimer, message);
	return CLAIM_BURIED;
}

/* ---------------------------------------------------------------------- */
/* Visits                                                                 */
/* ---------------------------------------------------------------------- */

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

static void
visits_walk(OutboxWalk *walk, void *arg)
{
	Claimer    *claimer = arg;
	Verdict		verdict = {.writer = InvalidTransactionId};

	/* a follower was taken, and it is this one */
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
 * The message behind one that is ours was not taken.  If it is leased, the lease is
 * taken away; and the claimer may have it later, though it can be below the cursor
 * of its lane.
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
						  outbox_queue_key(message));
	ExecClearTuple(message);
}

/* Has a walk come by the follower meanwhile, and taken it? */
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

/* The first message is about to be visited. */
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
 * Lease due messages to an owner, and give each to the sink.  Returns how many.
 * If there is something to do that this claim has not done, and others might do,
 * *for_others is set; it may be NULL.
 */
int
outbox_claim(const OutboxClaim *claim, OutboxClaimSink sink, void *arg,
			 bool *for_others)
{
	Claimer		claimer = {.claim = claim,.sink = sink,.arg = arg};

	Assert(claim->batch_size >= 1 && claim->batch_size <= OUTBOX_MAX_BATCH);
	Assert(claim->lease_seconds >= 1);
	/* what this transaction did before is to be seen, and can be claimed */
	CommandCounterIncrement();
	/* policies may have changed; nothing else notices if all locks are held */
	AcceptInvalidationMessages();
	begin_claimer(&claimer);
	outbox_merge_run(&claimer.merge);
	end_claimer(&claimer);
	if (for_others != NULL)
		*for_others = claimer.merge.nvisited > 0;
	if (claimer.ntaken > 0)
	{
		outbox_claimers_note_owner(&claim->owner, claimer.now);
		outbox_log("outbox claim: count %d", claimer.ntaken);
	}
	return claimer.ntaken;
}
