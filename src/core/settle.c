/*
 * settle.c
 *	  Settling leases: ack, nack, fail, renew, release.
 *
 * The caller names messages by id.  They are looked up and changed in the
 * order of their ids, so that two calls cannot deadlock; if another
 * transaction is changing a message, the call waits for its end, because only
 * then is it known whether the lease still stands.  Messages that are not
 * leased to the caller are skipped.
 */
#include "postgres.h"

#include <math.h>

#include "access/xact.h"
#include "common/pg_prng.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "core/settle.h"
#include "outbox.h"
#include "queue/count.h"
#include "queue/errors.h"
#include "queue/history.h"
#include "queue/lease_walk.h"
#include "queue/policy.h"
#include "queue/queue.h"
#include "queue/stream.h"
#include "queue/walk.h"
#include "shmem/claimers.h"
#include "shmem/counters.h"
#include "shmem/lane.h"
#include "shmem/wake.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/keylock.h"
#include "table/probe.h"
#include "table/table.h"
#include "table/tidcache.h"
#include "trace.h"
#include "util/grow.h"
#include "util/hash.h"
#include "util/uuid.h"

/* Size of the cache of how far streams were checked; a power of 2. */
#define CHECKED_STREAMS 64

/* Up to where the leases of a stream are known to stand. */
typedef struct CheckedStream
{
	pg_uuid_t	stream;
	int64		to;				/* 0: none */
} CheckedStream;

/* State of one call. */
typedef struct Settler
{
	OutboxSettle *settle;
	const OutboxLeaseRef *lease;	/* the current one */
	OutboxTable queue;
	TimestampTz now;
	OutboxProbe probe;
	BlockNumber hint_end;
	TupleTableSlot *slot;		/* the current message */
	TupleTableSlot *row;		/* its next version */
	bool		goes_back;		/* it becomes ready again */
	OutboxHistory history;
	bool		streams_open;
	OutboxStreamScan streams;
	CheckedStream checked[CHECKED_STREAMS];
	OutboxGoneBack gone_back;
	MemoryContext errors;		/* of the current message */
	int			nended;			/* by ack, nack and fail */
	int			nreleased;
	int64		service_usecs;	/* for which the owner had those that ended */
} Settler;

/* ---------------------------------------------------------------------- */
/* Finding leases                                                         */
/* ---------------------------------------------------------------------- */

static int
cmp_lease(const void *a, const void *b)
{
	const OutboxLeaseRef *la = a;
	const OutboxLeaseRef *lb = b;

	if (la->id != lb->id)
		return la->id < lb->id ? -1 : 1;
	if (la->rank != lb->rank)
		return la->rank < lb->rank ? -1 : 1;
	return la->attempts < lb->attempts ? -1 : la->attempts > lb->attempts;
}

/* Does the current message have the lease that the caller names? */
static bool
lease_stands(Settler *settler, const OutboxLeaseRef *lease)
{
	TupleTableSlot *slot = settler->slot;
	bool		isnull;
	Datum		owner;

	if (DatumGetInt16(outbox_row_get(slot, Q_STATUS)) != OUTBOX_IN_PROGRESS)
		return false;
	if (lease->attempts >= 0 &&
		DatumGetInt32(outbox_row_get(slot, Q_ATTEMPTS)) != lease->attempts)
		return false;
	owner = slot_getattr(slot, Q_OWNER_TOKEN, &isnull);
	return !isnull && outbox_uuid_equal(DatumGetUUIDP(owner),
										&settler->settle->owner);
}

static OutboxStreamScan *
open_streams(Settler *settler)
{
	if (!settler->streams_open)
	{
		outbox_stream_scan_begin(&settler->streams, &settler->queue);
		settler->streams_open = true;
	}
	return &settler->streams;
}

/*
 * Is this id one of those that the call settles?  The leases must be sorted.
 */
static bool
is_named(int64 id, void *arg)
{
	const Settler *settler = arg;
	const OutboxSettle *settle = settler->settle;
	int			lo = 0;
	int			hi = settle->nleases;

	while (lo < hi)
	{
		int			mid = lo + (hi - lo) / 2;

		if (settle->leases[mid].id == id)
			return true;
		if (settle->leases[mid].id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return false;
}

/*
 * Does the lease of the current message stand as far as its stream is
 * concerned?  It does not if an earlier message of the stream has become ready
 * again.  What is known is cached, so that a call that settles a whole stream
 * checks each message only once.
 */
static bool
lease_stands_in_stream(Settler *settler)
{
	CheckedStream *checked;
	pg_uuid_t	stream;
	int64		seq;
	bool		known;

	if (!outbox_stream_of(settler->slot, &stream, &seq) ||
		outbox_tid_was_first(RelationGetRelid(settler->queue.rel),
							 DatumGetInt64(outbox_row_get(settler->slot, Q_ID)),
							 seq))
		return true;
	checked = &settler->checked[outbox_uuid_hash(&stream) % CHECKED_STREAMS];
	known = checked->to != 0 && checked->to < seq &&
		outbox_uuid_equal(&checked->stream, &stream);
	if (!outbox_stream_lease_stands(open_streams(settler), settler->slot,
									&settler->settle->owner,
									known ? checked->to : PG_INT64_MIN,
									is_named, settler))
		return false;
	*checked = OUTBOX_MAKE(CheckedStream, stream, seq);
	return true;
}

/* ---------------------------------------------------------------------- */
/* Settling one                                                           */
/* ---------------------------------------------------------------------- */

/* How to settle the current message. */
static OutboxSettlement
what_to_do(Settler *settler)
{
	return settler->settle->what == OUTBOX_EACH_ITS_OWN ?
		settler->lease->what : settler->settle->what;
}

static const text *
what_was_wrong(Settler *settler)
{
	return settler->lease->error != NULL ? settler->lease->error :
		settler->settle->error;
}

/* The progress bits that the message will have. */
static int
progress_so_far(Settler *settler)
{
	return DatumGetInt32(outbox_row_get(settler->slot, Q_PROGRESS)) |
		settler->lease->progress;
}

/* The errors of all attempts of the current message, including this one. */
static const ArrayType *
errors_so_far(Settler *settler)
{
	bool		isnull;
	Datum		errors = slot_getattr(settler->slot, Q_ERRORS, &isnull);
	MemoryContext old;
	const ArrayType *result;

	/* those of the previous message have been written */
	if (settler->errors == NULL)
		settler->errors = AllocSetContextCreate(CurrentMemoryContext,
												"outbox errors of a message",
												ALLOCSET_SMALL_SIZES);
	MemoryContextReset(settler->errors);
	old = MemoryContextSwitchTo(settler->errors);
	result = outbox_errors_add(isnull ? NULL : DatumGetArrayTypeP(errors),
							   outbox_queue_counted_attempts(settler->slot),
							   settler->now, what_was_wrong(settler));
	MemoryContextSwitchTo(old);
	return result;
}

/* Move the current message to its history, as done or dead. */
static OutboxRowResult
finish(Settler *settler, OutboxStatus status, OutboxReason reason)
{
	OutboxOutcome outcome = {
		.status = status,
		.reason = reason,
		.error = what_was_wrong(settler),
		/* for a run that is done, this is its output */
		.forget_error = status == OUTBOX_DONE &&
		settler->settle->store->kind == OUTBOX_RUNS,
		.errors = status == OUTBOX_DEAD ? errors_so_far(settler) : NULL,
		.processed_by = &settler->settle->owner,
		.progress = settler->lease->progress,
		.keep = settler->settle->keep && status == OUTBOX_DONE
	};
	OutboxRowResult result;

	result = outbox_queue_finish(&settler->queue, &settler->history,
								 settler->slot, &outcome, true, NULL);
	if (result != OUTBOX_ROW_OK)
		return result;
	OUTBOX_TRACE_END(status == OUTBOX_DONE, settler, settler->lease->attempts);
	if (!slot_attisnull(settler->slot, Q_STREAM_ID))
		outbox_stream_ended(open_streams(settler), settler->slot);
	return result;
}

/* The time of the next attempt of the current message. */
static TimestampTz
retry_at(Settler *settler, const OutboxPolicy *policy)
{
	int			retries = DatumGetInt32(outbox_row_get(settler->slot,
													   Q_RETRY_COUNT));
	double		delay;

	if (settler->settle->delay != NULL)
		return DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval,
													   TimestampTzGetDatum(settler->now),
													   IntervalPGetDatum(settler->settle->delay)));
	delay = Min(ldexp(policy->backoff_base, Min(retries, 62)),
				policy->backoff_max);
	/* a policy that was not set by configure_topic may have any value */
	delay = Min(Max(delay, 0), (double) OUTBOX_MAX_DELAY_DAYS * USECS_PER_DAY);
	if (policy->backoff_jitter)
		delay *= 0.5 + 0.5 * pg_prng_double(&pg_global_prng_state);
	return settler->now + (TimestampTz) delay;
}

/*
 * Schedule a retry of the current message, or move it to dead if it is out of
 * attempts or has expired.
 */
static OutboxRowResult
nack(Settler *settler)
{
	OutboxSettle *settle = settler->settle;
	TupleTableSlot *slot = settler->slot;
	OutboxPolicy policy;
	OutboxFate	fate;
	TimestampTz at;

	outbox_policy_of(settler->settle->store, slot, &policy);
	fate = outbox_queue_fate(slot, &policy, settle->max_attempts, settler->now);
	if (fate != OUTBOX_FATE_LIVE)
		return finish(settler, OUTBOX_DEAD, outbox_fate_reason(fate));

	at = retry_at(settler, &policy);
	settler->goes_back = true;
	outbox_queue_make_ready(settler->row, slot, at, settler->now);
	outbox_row_set(settler->row, Q_RETRY_COUNT,
				   Int32GetDatum(DatumGetInt32(outbox_row_get(slot, Q_RETRY_COUNT)) + 1));
	outbox_row_set(settler->row, Q_FAILURE_REASON,
				   Int16GetDatum(settler->lease->reason != 0 ?
								 settler->lease->reason : settle->reason));
	outbox_row_set(settler->row, Q_PROGRESS,
				   Int32GetDatum(progress_so_far(settler)));
	if (what_was_wrong(settler) != NULL)
		outbox_row_set(settler->row, Q_LAST_ERROR,
					   PointerGetDatum(what_was_wrong(settler)));
	outbox_row_set(settler->row, Q_ERRORS, PointerGetDatum(errors_so_far(settler)));
	return outbox_queue_update(&settler->queue, slot, settler->row, true,
							   NULL);
}

static OutboxRowResult
release(Settler *settler)
{
	const TimestampTz *not_before = settler->settle->not_before;

	settler->goes_back = true;
	outbox_queue_make_ready(settler->row, settler->slot,
							not_before != NULL ? *not_before : settler->now,
							settler->now);
	outbox_row_set(settler->row, Q_PROGRESS,
				   Int32GetDatum(progress_so_far(settler)));
	/* a released attempt does not count */
	outbox_row_set(settler->row, Q_WAIVED,
				   Int32GetDatum(DatumGetInt32(outbox_row_get(settler->slot,
															  Q_WAIVED)) + 1));
	return outbox_queue_update(&settler->queue, settler->slot, settler->row,
							   true, NULL);
}

/* Have the lease of the current message end later, or now. */
static OutboxRowResult
renew(Settler *settler)
{
	TupleTableSlot *slot = settler->slot;
	TimestampTz until;

	until = settler->now +
		(TimestampTz) settler->settle->lease_seconds * USECS_PER_SEC;
	outbox_new_row_from(settler->row, slot);
	outbox_row_set(settler->row, Q_LOCKED_UNTIL, TimestampTzGetDatum(until));
	/* if the clock was set back, claims must come across it when it ends */
	if (DatumGetTimestampTz(outbox_row_get(slot, Q_NEXT_ATTEMPT_AT)) > settler->now)
		outbox_row_set(settler->row, Q_NEXT_ATTEMPT_AT,
					   TimestampTzGetDatum(settler->now));
	outbox_row_set(settler->row, Q_UPDATED_AT,
				   TimestampTzGetDatum(settler->now));
	OUTBOX_TRACE_BACK("row.renew", settler, settler->lease->attempts);
	return outbox_queue_update(&settler->queue, slot, settler->row,
							   !settler->settle->skip_locked, NULL);
}

/* Settle the current message, whose lease stands, as the caller wants it. */
static OutboxRowResult
settle_message(Settler *settler)
{
	settler->goes_back = false;
	/* only leases that stand are settled */
	Assert(DatumGetInt16(outbox_row_get(settler->slot, Q_STATUS)) ==
		   OUTBOX_IN_PROGRESS);
	switch (what_to_do(settler))
	{
		case OUTBOX_ACK:
			return finish(settler, OUTBOX_DONE, OUTBOX_REASON_NONE);
		case OUTBOX_FAIL:
			return finish(settler, OUTBOX_DEAD, settler->settle->reason);
		case OUTBOX_NACK:
			return nack(settler);
		case OUTBOX_RELEASE:
			return release(settler);
		case OUTBOX_RENEW:
			return renew(settler);
		case OUTBOX_ADVANCE:
			if ((progress_so_far(settler) & settler->settle->done_bits) != 0)
				return finish(settler, OUTBOX_DONE, OUTBOX_REASON_NONE);
			return release(settler);
		case OUTBOX_EACH_ITS_OWN:
			break;
	}
	pg_unreachable();
}

/* Count what was done to the current message, and how long it was leased. */
static void
count_settled(Settler *settler)
{
	OutboxStoreKind kind = settler->settle->store->kind;
	OutboxSettlement what = what_to_do(settler);

	if (what == OUTBOX_RELEASE || (what == OUTBOX_ADVANCE && settler->goes_back))
		settler->nreleased++;
	switch (what)
	{
		case OUTBOX_NACK:
			outbox_count_message(kind, settler->slot, OUTBOX_COUNT_NACKED);
			break;
		case OUTBOX_FAIL:
			outbox_count_message(kind, settler->slot, OUTBOX_COUNT_FAILED);
			break;
		case OUTBOX_ACK:
			break;
		case OUTBOX_ADVANCE:
			if (settler->goes_back)
				return;
			break;
		default:
			return;
	}
	settler->nended++;
	settler->service_usecs += outbox_count_served(kind, settler->slot, settler->now);
}

/* Settle one lease; false if it does not stand. */
static bool
settle_lease(Settler *settler, const OutboxLeaseRef *lease)
{
	settler->lease = lease;
	for (;;)
	{
		TransactionId blocker;

		CHECK_FOR_INTERRUPTS();
		if (outbox_tid_fetch(&settler->queue, settler->hint_end, lease->id,
							 settler->slot))
			blocker = InvalidTransactionId;
		else if (!outbox_probe(&settler->probe, Int64GetDatum(lease->id),
							   settler->slot, &blocker))
			return false;
		if (!lease_stands(settler, lease))
			return false;
		if (TransactionIdIsValid(blocker))
		{
			ExecClearTuple(settler->slot);
			if (settler->settle->skip_locked)
			{
				settler->settle->nskipped++;
				return false;
			}
			outbox_xact_wait(blocker);
			continue;
		}
		if (!lease_stands_in_stream(settler))
			return false;
		switch (settle_message(settler))
		{
			case OUTBOX_ROW_OK:
				count_settled(settler);
				if (settler->goes_back)
				{
					OUTBOX_TRACE_BACK("row.back", settler, lease->attempts);
					outbox_stream_gone_back(&settler->gone_back, settler->slot);
				}
				return true;
			case OUTBOX_ROW_REFUSED:
				return false;
			default:
				if (settler->settle->skip_locked)
				{
					settler->settle->nskipped++;
					return false;
				}
				/* changed concurrently: look again */
				break;
		}
	}
}

/* ---------------------------------------------------------------------- */
/* The call                                                               */
/* ---------------------------------------------------------------------- */

static void
report_lost(const OutboxLeaseRef *lost, int nlost)
{
	StringInfoData ids;

	initStringInfo(&ids);
	for (int i = 0; i < nlost; i++)
		appendStringInfo(&ids, "%s" INT64_FORMAT, i > 0 ? ", " : "",
						 lost[i].id);
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg_plural("lease lost on %d message",
						   "lease lost on %d messages", nlost, nlost),
			 errdetail("No longer leased to this owner: %s.", ids.data)));
}

static void
begin_settler(Settler *settler, OutboxSettle *settle)
{
	/* see earlier changes of this transaction; they can be changed, too */
	CommandCounterIncrement();
	memset(settler, 0, sizeof(Settler));
	settler->settle = settle;
	settler->now = GetCurrentTimestamp();
	outbox_store_open(&settler->queue, settle->store);
	settler->slot = outbox_table_slot(&settler->queue);
	settler->row = outbox_table_new_row(&settler->queue);
	settler->hint_end = outbox_tid_end(&settler->queue);
	outbox_probe_begin(&settler->probe, &settler->queue,
					   settle->store->pkey);
	outbox_history_begin(&settler->history, &settler->queue, settler->now);
	settler->history.ended.must_not_wait = settle->must_not_wait;
}

static void
end_settler(Settler *settler)
{
	outbox_probe_end(&settler->probe);
	ExecDropSingleTupleTableSlot(settler->row);
	ExecDropSingleTupleTableSlot(settler->slot);
	if (settler->streams_open)
		outbox_stream_scan_end(&settler->streams);
	outbox_stream_revoke_all(&settler->queue, &settler->gone_back,
							 settler->now);
	outbox_history_end(&settler->history);
	outbox_table_close(&settler->queue);
}

/*
 * Settle leases; returns how many of them stood.  Sorts settle->leases.
 */
int
outbox_settle(OutboxSettle *settle)
{
	Settler		settler;
	OutboxLeaseRef *lost;
	int			nlost = 0;
	int			nsettled = 0;
	int64		settled = 0;

	if (settle->nleases == 0)
		return 0;
	qsort(settle->leases, settle->nleases, sizeof(OutboxLeaseRef), cmp_lease);
	lost = palloc_array(OutboxLeaseRef, settle->nleases);

	begin_settler(&settler, settle);
	for (int i = 0; i < settle->nleases; i++)
	{
		OutboxLeaseRef *lease = &settle->leases[i];

		if (nsettled > 0 && lease->id == settled)
			continue;			/* named twice */
		if (settle_lease(&settler, lease))
		{
			settled = lease->id;
			nsettled++;
			/* named with another attempt before */
			if (nlost > 0 && lost[nlost - 1].id == settled)
				nlost--;
		}
		else if (nlost == 0 || lost[nlost - 1].id != lease->id)
			lost[nlost++] = *lease;
	}
	Assert(nsettled + nlost <= settle->nleases);
	Assert(settler.nended + settler.nreleased <= nsettled);
	if (settle->strict && nlost > 0)
		report_lost(lost, nlost);
	if (settler.nended + settler.nreleased > 0)
		outbox_claimers_note_ended(&settle->owner, settler.nended, settler.nreleased,
								   settler.service_usecs, settler.now);
	end_settler(&settler);
	pfree(lost);
	return nsettled;
}

/* The leases of one owner, while they are collected. */
typedef struct OwnerLeases
{
	const pg_uuid_t *owner;
	OutboxLeaseRef *leases;
	int			nleases;
	int			max;
} OwnerLeases;

static bool
collect_lease(OutboxWalk *walk, void *arg)
{
	OwnerLeases *found = arg;
	Datum		owner = outbox_row_get(walk->slot, Q_OWNER_TOKEN);

	if (outbox_uuid_equal(DatumGetUUIDP(owner), found->owner))
	{
		outbox_grow(found->leases, found->nleases, found->max);
		found->leases[found->nleases++] =
			OUTBOX_MAKE(OutboxLeaseRef,.id = walk->key.id,.attempts = -1);
	}
	outbox_walk_left(walk);
	return true;
}

/* Settle all leases of an owner; returns how many there were. */
static int
settle_all(OutboxSettle *settle)
{
	OwnerLeases found = {.owner = &settle->owner};
	OutboxTable queue;

	CommandCounterIncrement();
	outbox_store_open(&queue, settle->store);
	outbox_walk_leases(&queue, GetCurrentTimestamp(), OUTBOX_SCAN_LEASES,
					   collect_lease, &found);
	outbox_table_close(&queue);

	settle->leases = found.leases;
	settle->nleases = found.nleases;
	return outbox_settle(settle);
}

/*
 * Release all leases of an owner; the attempts do not count.  Waiting claims
 * of this owner end when the transaction has committed.
 */
int
outbox_release_all(const OutboxStore *store, const pg_uuid_t *owner)
{
	OutboxSettle settle = {.store = store,.what = OUTBOX_RELEASE,.owner = *owner};

	outbox_wake_note_release(store->table, outbox_token_hash(owner));
	return settle_all(&settle);
}

/*
 * End the leases of an owner now, as if they had timed out; except for those
 * that another transaction has locked, since it may stay in progress for a
 * long time.  False if there were any.
 */
bool
outbox_expire_all(const OutboxStore *store, const pg_uuid_t *owner)
{
	OutboxSettle settle = {.store = store,.what = OUTBOX_RENEW,.owner = *owner,.skip_locked = true};

	(void) settle_all(&settle);
	return settle.nskipped == 0;
}
