/*
 * lane_publish.c
 *	  Publishing to lanes what a transaction has done, when it has ended.
 *
 * A transaction notes locally where it has made something claimable, and what
 * it has leased outside of a scan.  None of it matters to others before the
 * commit, so it is published then: each lane is changed once, and the claims
 * that wait for it are called.  A transaction that is prepared publishes at
 * PREPARE, because no code of the extension runs when it commits; what it has
 * noted is visited when its commit or rollback is detected.
 *
 * All of this runs in transaction callbacks, which must not fail, and must not
 * allocate memory except for shared memory.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "storage/procarray.h"
#include "utils/timestamp.h"

#include "shmem/agenda.h"
#include "shmem/blocker.h"
#include "shmem/directory.h"
#include "shmem/lane_memory.h"
#include "shmem/lane_publish.h"
#include "shmem/lane_state.h"
#include "shmem/sleepers.h"
#include "trace.h"
#include "util/hash.h"

/*
 * Has this transaction ended?  True for ids that are so old that they may be
 * reused, and for ids of another server, which a dump has brought.
 */
bool
outbox_xact_is_over(FullTransactionId xid)
{
	FullTransactionId next = ReadNextFullTransactionId();
	TransactionId plain = XidFromFullTransactionId(xid);

	if (!FullTransactionIdPrecedes(xid, next) ||
		U64FromFullTransactionId(next) - U64FromFullTransactionId(xid) >
		PG_INT32_MAX / 2)
		return true;
	if (TransactionIdIsCurrentTransactionId(plain))
		return false;
	return !TransactionIdIsInProgress(plain);
}

/*
 * Find the lane of a note, or make it.  The lock is released and acquired
 * again if other lanes must be evicted for it.  If all lanes with messages are
 * known, a new lane has nothing below the note.
 */
static int
lane_of_note(OutboxAgenda **agenda, const OutboxLaneNote *note)
{
	bool		is_new;
	int			lane = outbox_lane_make(*agenda, &note->place, 0, &is_new);

	if (lane == OUTBOX_NIL)
	{
		LWLockRelease(&(*agenda)->lock);
		(void) outbox_lanes_make_room();
		*agenda = outbox_agenda_lock_to_report(note->relid);
		if (*agenda == NULL)
			return OUTBOX_NIL;
		lane = outbox_lane_make(*agenda, &note->place, 0, &is_new);
	}
	if (lane == OUTBOX_NIL)
		outbox_agenda_miss(*agenda, &note->place);
	else if (is_new && outbox_agenda_is_complete(*agenda))
	{
		OUTBOX_TRACE_RANGE("raise", outbox_lane_at(lane), note, true);
		outbox_lane_raise_cursor(outbox_lane_at(lane), note->lo, note->lo.at);
		outbox_lane_at(lane)->leases_known = true;
	}
	return lane;
}

/* Record a note in a part of the lane; false if there is no memory for it. */
static bool
record_in_part(OutboxAgenda *agenda, const OutboxLaneNote *note,
			   const OutboxRecord *record, TimestampTz now)
{
	bool		is_new;
	int			part = outbox_lane_make(agenda, &note->place, note->token,
										&is_new);

	if (part == OUTBOX_NIL ||
		!outbox_lane_record(outbox_lane_at(part), record))
		return false;
	outbox_agenda_update(agenda, part, now);
	outbox_sleepers_call_lane(agenda, part, note->nmessages);
	return true;
}

/*
 * Publish one note.  The agenda must be locked; *agenda may be changed to
 * NULL.
 */
static void
publish_note(OutboxAgenda **agenda, const OutboxLaneNote *note,
			 FullTransactionId prepared, TimestampTz now)
{
	OutboxRecord record = {
		.lo = note->lo,.hi = note->hi,.xid = prepared,
		.at = note->kind == OUTBOX_NOTE_LEASE ? note->at : DT_NOBEGIN
	};
	int			lane;

	if (note->kind == OUTBOX_NOTE_PART &&
		(FullTransactionIdIsValid(prepared) ||
		 record_in_part(*agenda, note, &record, now)))
		return;
	lane = lane_of_note(agenda, note);
	if (lane == OUTBOX_NIL)
		return;
	outbox_lane_at(lane)->used = true;
	outbox_lane_at(lane)->used_at = now;
	(void) outbox_lane_record(outbox_lane_at(lane), &record);
	if (FullTransactionIdIsValid(prepared))
		outbox_agenda_block(*agenda, lane, prepared, true);
	outbox_agenda_update(*agenda, lane, now);
	if (outbox_lane_at(lane)->due)
		outbox_sleepers_call_lane(*agenda, lane, note->nmessages);
}

/*
 * Publish the notes of a transaction that has committed, or was prepared with
 * this id.
 */
void
outbox_lane_publish(const OutboxLaneNote *notes, int nnotes,
					FullTransactionId prepared)
{
	TimestampTz now = GetCurrentTimestamp();
	OutboxAgenda *agenda = NULL;

	for (int i = 0; i < nnotes; i++)
	{
		if (agenda == NULL || agenda->relid != notes[i].relid)
		{
			if (agenda != NULL)
			{
				outbox_sleepers_note_time(agenda);
				LWLockRelease(&agenda->lock);
			}
			agenda = outbox_agenda_lock_to_report(notes[i].relid);
		}
		if (agenda != NULL)
			publish_note(&agenda, &notes[i], prepared, now);
	}
	if (agenda != NULL)
	{
		outbox_sleepers_note_time(agenda);
		LWLockRelease(&agenda->lock);
	}
}

/*
 * Update the marks that a transaction xid, which has ended, has left for
 * leases in this lane.  If it has committed, they now stand for the end of the
 * leases; if it has aborted, the messages can be claimed.  "top" is its
 * top-level transaction.
 */
void
outbox_lane_end_claim(Oid relid, const OutboxPlace *place, uint64 token,
					  FullTransactionId xid, FullTransactionId top,
					  int nmessages, OutboxXactEnd end)
{
	TimestampTz now = GetCurrentTimestamp();
	OutboxAgenda *agenda = outbox_agenda_lock_to_report(relid);
	int			lane;

	if (agenda == NULL)
		return;
	lane = outbox_lane_find(agenda->number, place, token);
	if (lane != OUTBOX_NIL)
	{
		OutboxLane *claimed = outbox_lane_at(lane);

		if (end == OUTBOX_XACT_COMMITTED)
			outbox_lane_decide(claimed, xid);
		else if (end == OUTBOX_XACT_ABORTED)
			outbox_lane_call(claimed);
		else
			outbox_agenda_block(agenda, lane, top, true);
		outbox_agenda_update(agenda, lane, now);
		if (end == OUTBOX_XACT_ABORTED)
			outbox_sleepers_call_lane(agenda, lane, nmessages);
		outbox_sleepers_note_time(agenda);
	}
	LWLockRelease(&agenda->lock);
}

/* Call the lanes that wait for a transaction. */
static void
call_blocked(OutboxAgenda *agenda, FullTransactionId xid)
{
	TimestampTz now = GetCurrentTimestamp();
	int			cell = OUTBOX_NIL;
	int			lane;

	while ((lane = outbox_agenda_next_blocked(agenda, xid, &cell)) != OUTBOX_NIL)
	{
		if (outbox_lane_at(lane)->store != agenda->number)
			continue;
		outbox_lane_call(outbox_lane_at(lane));
		outbox_agenda_update(agenda, lane, now);
		outbox_sleepers_call_lane(agenda, lane, 1);
	}
}

/*
 * Call the lanes of a table that wait for a transaction that has ended, or
 * that has rolled back to a savepoint ("ended" is false).
 */
void
outbox_lanes_unblock(Oid relid, FullTransactionId xid, bool ended)
{
	OutboxAgenda *agenda = outbox_agenda_lock_to_report(relid);

	if (agenda == NULL)
		return;
	if (pg_atomic_read_u32(&agenda->nblockers) > 0)
	{
		call_blocked(agenda, xid);
		if (ended)
			outbox_agenda_unblock(agenda, xid);
	}
	LWLockRelease(&agenda->lock);
}

/*
 * Check whether one of the transactions that end silently has ended.  The
 * caller must hold the agenda's lock exclusively.
 */
void
outbox_lanes_look_at_silent(OutboxAgenda *agenda)
{
	FullTransactionId xid;
	int			next = 0;

	while (outbox_agenda_next_silent(agenda, &next, &xid))
	{
		if (!outbox_xact_is_over(xid))
			continue;
		call_blocked(agenda, xid);
		outbox_agenda_unblock(agenda, xid);
		next = 0;
	}
}
