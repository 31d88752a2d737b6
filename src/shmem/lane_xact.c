/*
 * lane_xact.c
 *	  What a transaction has done to lanes, and the actions at its end.
 *
 * Lists in local memory, each forgotten with the transaction:
 *
 *	notes		what to publish to lanes when it commits
 *	moves		keys that rows were moved away from, or deleted at
 *	claims		lanes that have marks of its own
 *	watches		scans in progress, to cancel if they end in an error
 *	tables		all tables of the extension that it has changed
 *
 * A table is doubtful in a transaction that has changed it in a way which
 * cannot be reported to lanes: TRUNCATE, or writing rows without access to
 * shared memory.  Scans of a doubtful table in this transaction do not use
 * shared memory, and the table's epoch is raised at the end of the
 * transaction, commit or abort, and at a rollback to a savepoint.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "utils/timestamp.h"

#include "outbox.h"
#include "shmem/agenda.h"
#include "shmem/directory.h"
#include "shmem/epoch.h"
#include "shmem/expiry.h"
#include "shmem/lane_memory.h"
#include "shmem/lane_publish.h"
#include "shmem/lane_state.h"
#include "shmem/lane_xact.h"
#include "shmem/wake.h"
#include "util/grow.h"
#include "util/hash.h"

/* Number of entries to check for one that a key can be added to. */
#define LOOK_BACK 8

/* Keys that rows were moved away from. */
typedef struct Move
{
	Oid			relid;
	OutboxPlace place;
	OutboxReadyKey lo;
	OutboxReadyKey hi;
	TransactionId xid;
} Move;

/* A lane in which this transaction has claimed. */
typedef struct Claim
{
	Oid			relid;
	OutboxPlace place;
	uint64		token;
	TransactionId xid;
	int			nmessages;
} Claim;

/*
 * A scan in progress, and the nesting level of the transaction that began it.
 */
typedef struct Watch
{
	Oid			relid;
	OutboxPlace place;
	uint32		resets;
	int			phase;
	int			nest_level;
} Watch;

typedef struct Table
{
	Oid			relid;
	bool		doubtful;
	TimestampTz expires_at;		/* the earliest among rows written */
} Table;

static OutboxLaneNote *notes = NULL;
static int	nnotes = 0;
static int	max_notes = 0;

static Move *moves = NULL;
static int	nmoves = 0;
static int	max_moves = 0;

static Claim *claims = NULL;
static int	nclaims = 0;
static int	max_claims = 0;

static Watch *watches = NULL;
static int	nwatches = 0;
static int	max_watches = 0;

static Table *tables = NULL;
static int	ntables = 0;
static int	max_tables = 0;

/* Make room for one more element in a list. */
#define MAKE_ROOM(list, n, max) \
	((list) = outbox_grow_in(TopMemoryContext, (list), (n), &(max), \
							 sizeof(*(list))))

/* ---------------------------------------------------------------------- */
/* Tables                                                                 */
/* ---------------------------------------------------------------------- */

/* Note that this transaction changes a table of the extension. */
static Table *
note_table(Oid relid)
{
	for (int i = 0; i < ntables; i++)
	{
		if (tables[i].relid == relid)
			return &tables[i];
	}
	MAKE_ROOM(tables, ntables, max_tables);
	tables[ntables] = OUTBOX_MAKE(Table, relid, false, DT_NOEND);
	/* prepare for the end of the transaction while that is possible */
	if (outbox_lane_memory() != NULL)
		outbox_directory_prepare();
	else
	{
		tables[ntables].doubtful = true;
		outbox_epoch_be_stranger();
	}
	return &tables[ntables++];
}

/* Note a change of the table that cannot be reported to lanes. */
void
outbox_lane_note_doubtful(Oid relid)
{
	note_table(relid)->doubtful = true;
	outbox_epoch_raise(relid);
}

/* Is the table doubtful in this transaction? */
bool
outbox_lane_is_doubtful(Oid relid)
{
	for (int i = 0; i < ntables; i++)
	{
		if (tables[i].relid == relid)
			return tables[i].doubtful;
	}
	return false;
}

/* Note that a message was written that expires at this time. */
void
outbox_lane_note_expiry(Oid relid, TimestampTz expires_at)
{
	Table	   *table = note_table(relid);

	table->expires_at = Min(table->expires_at, expires_at);
}

/*
 * The earliest of these times in this transaction; DT_NOEND if there is none.
 */
TimestampTz
outbox_lane_noted_expiry(Oid relid)
{
	for (int i = 0; i < ntables; i++)
	{
		if (tables[i].relid == relid)
			return tables[i].expires_at;
	}
	return DT_NOEND;
}

/* ---------------------------------------------------------------------- */
/* Notes                                                                  */
/* ---------------------------------------------------------------------- */

/* Add a note, merging it with a recent one if possible. */
static void
add_note(const OutboxLaneNote *note)
{
	(void) note_table(note->relid);
	if (note->kind != OUTBOX_NOTE_LEASE)
		outbox_wake_note_topic(outbox_place_topic_key(&note->place));
	for (int i = nnotes - 1; i >= 0 && i >= nnotes - LOOK_BACK; i--)
	{
		OutboxLaneNote *have = &notes[i];

		if (have->kind == note->kind && have->relid == note->relid &&
			have->token == note->token && have->at == note->at &&
			have->lo.at == note->lo.at && have->hi.at == note->hi.at &&
			outbox_place_equal(&have->place, &note->place))
		{
			have->lo = outbox_ready_key_min(have->lo, note->lo);
			have->hi = outbox_ready_key_max(have->hi, note->hi);
			have->nmessages += note->nmessages;
			return;
		}
	}
	MAKE_ROOM(notes, nnotes, max_notes);
	notes[nnotes++] = *note;
}

/*
 * Note that the keys lo..hi, which are in the ready index, may be claimable
 * when this transaction has committed; they are so many messages.
 */
void
outbox_lane_note_new(Oid relid, const OutboxPlace *place, OutboxReadyKey lo,
					 OutboxReadyKey hi, int nmessages)
{
	OutboxLaneNote note = {
		.kind = OUTBOX_NOTE_NEW,.relid = relid,.place = *place,
		.lo = lo,.hi = hi,.nmessages = nmessages
	};

	Assert(!outbox_ready_key_lt(hi, lo));
	add_note(&note);
}

/*
 * Note that the message with this key was leased, other than by a scan that
 * records it.
 */
void
outbox_lane_note_lease(Oid relid, const OutboxPlace *place, OutboxReadyKey key,
					   TimestampTz locked_until)
{
	OutboxLaneNote note = {
		.kind = OUTBOX_NOTE_LEASE,.relid = relid,.place = *place,
		.lo = key,.hi = key,.at = locked_until
	};

	add_note(&note);
}

/* Note that the message with this key can be claimed by one owner only. */
void
outbox_lane_note_part(Oid relid, const OutboxPlace *place, uint64 token,
					  OutboxReadyKey key)
{
	OutboxLaneNote note = {
		.kind = OUTBOX_NOTE_PART,.relid = relid,.place = *place,
		.token = token,.lo = key,.hi = key,.nmessages = 1
	};

	add_note(&note);
}

/*
 * Iterate over what this transaction has noted of a table as claimable, or as
 * leased until "until" at most: its own scans must visit that, although it is
 * not published yet.  *next must be 0 at first.  False at the end.
 */
bool
outbox_lane_next_noted(Oid relid, TimestampTz until, int *next,
					   OutboxPlace *place, OutboxReadyKey *lo, OutboxReadyKey *hi)
{
	while (*next < nnotes)
	{
		const OutboxLaneNote *note = &notes[(*next)++];

		if (note->relid != relid ||
			(note->kind == OUTBOX_NOTE_LEASE && note->at > until))
			continue;
		*place = note->place;
		*lo = note->lo;
		*hi = note->hi;
		return true;
	}
	return false;
}

/* ---------------------------------------------------------------------- */
/* Moves and claims                                                       */
/* ---------------------------------------------------------------------- */

/*
 * Note that the current transaction has moved a row away from this key, or has
 * deleted it.  Its own scans do not see the row there, but it is back if the
 * transaction aborts.
 */
void
outbox_lane_note_moved(Oid relid, const OutboxPlace *place, OutboxReadyKey key)
{
	TransactionId xid = GetCurrentTransactionId();

	(void) note_table(relid);
	for (int i = nmoves - 1; i >= 0 && i >= nmoves - LOOK_BACK; i--)
	{
		Move	   *have = &moves[i];

		if (have->xid == xid && have->relid == relid &&
			outbox_place_equal(&have->place, place))
		{
			have->lo = outbox_ready_key_min(have->lo, key);
			have->hi = outbox_ready_key_max(have->hi, key);
			return;
		}
	}
	MAKE_ROOM(moves, nmoves, max_moves);
	moves[nmoves++] = OUTBOX_MAKE(Move, relid, *place, key, key, xid);
}

/* Has this transaction moved or deleted any row of the table? */
bool
outbox_lane_has_moved(Oid relid)
{
	for (int i = 0; i < nmoves; i++)
	{
		if (moves[i].relid == relid)
			return true;
	}
	return false;
}

/*
 * Iterate over the moves in a lane, as outbox_lane_next_noted does over notes.
 */
bool
outbox_lane_next_moved(Oid relid, const OutboxPlace *place, int *next,
					   OutboxRecord *record)
{
	while (*next < nmoves)
	{
		const Move *move = &moves[(*next)++];

		if (move->relid != relid || !outbox_place_equal(&move->place, place))
			continue;
		*record = OUTBOX_MAKE(OutboxRecord, move->lo, move->hi,
							  outbox_full_xid(move->xid), DT_NOEND);
		return true;
	}
	return false;
}

/*
 * Iterate over the lanes that have moves; a lane may be returned several
 * times.
 */
bool
outbox_lane_next_moved_place(Oid relid, int *next, OutboxPlace *place)
{
	while (*next < nmoves)
	{
		const Move *move = &moves[(*next)++];

		if (move->relid != relid)
			continue;
		*place = move->place;
		return true;
	}
	return false;
}

/* Note that the current transaction has left marks of its own in a lane. */
void
outbox_lane_note_claim(Oid relid, const OutboxPlace *place, uint64 token,
					   int nmessages)
{
	TransactionId xid = GetCurrentTransactionId();

	(void) note_table(relid);
	outbox_wake_prepare();
	for (int i = nclaims - 1; i >= 0 && i >= nclaims - LOOK_BACK; i--)
	{
		if (claims[i].xid == xid && claims[i].relid == relid &&
			claims[i].token == token &&
			outbox_place_equal(&claims[i].place, place))
		{
			claims[i].nmessages += nmessages;
			return;
		}
	}
	MAKE_ROOM(claims, nclaims, max_claims);
	claims[nclaims++] = OUTBOX_MAKE(Claim, relid, *place, token, xid, nmessages);
}

/*
 * Iterate over the lanes in which it has claimed; a lane may be returned
 * several times.
 */
bool
outbox_lane_next_claimed_place(Oid relid, int *next, OutboxPlace *place)
{
	while (*next < nclaims)
	{
		const Claim *claim = &claims[(*next)++];

		if (claim->relid != relid)
			continue;
		*place = claim->place;
		return true;
	}
	return false;
}

/* ---------------------------------------------------------------------- */
/* Watches                                                                */
/* ---------------------------------------------------------------------- */

/*
 * Make room for one more watch.  This must precede outbox_lane_hold_watch,
 * because an error between taking a watch and noting it would leak the watch.
 */
void
outbox_lane_reserve_watch(void)
{
	MAKE_ROOM(watches, nwatches, max_watches);
}

/* Note that a scan has taken a watch.  Does not fail. */
void
outbox_lane_hold_watch(Oid relid, const OutboxPlace *place, uint32 resets,
					   int phase)
{
	Assert(nwatches < max_watches);
	watches[nwatches++] = OUTBOX_MAKE(Watch, relid, *place, resets, phase,
									  GetCurrentTransactionNestLevel());
}

/* Forget a watch that has been released. */
void
outbox_lane_drop_watch(Oid relid, const OutboxPlace *place, int phase)
{
	for (int i = nwatches - 1; i >= 0; i--)
	{
		if (watches[i].relid == relid && watches[i].phase == phase &&
			outbox_place_equal(&watches[i].place, place))
		{
			watches[i] = watches[--nwatches];
			return;
		}
	}
}

/* Release the watches taken at this nesting level, or deeper. */
static void
call_off(int nest_level)
{
	for (int i = nwatches - 1; i >= 0; i--)
	{
		const Watch *watch = &watches[i];
		OutboxAgenda *agenda;
		int			lane;

		if (watch->nest_level < nest_level)
			continue;
		agenda = outbox_agenda_lock_to_report(watch->relid);
		if (agenda != NULL && agenda->resets == watch->resets)
		{
			lane = outbox_lane_find(agenda->number, &watch->place, 0);
			if (lane != OUTBOX_NIL)
			{
				outbox_lane_unwatch(outbox_lane_at(lane), watch->phase);
				/* what the scan was called for must still be done */
				outbox_lane_call(outbox_lane_at(lane));
				outbox_agenda_update(agenda, lane, GetCurrentTimestamp());
			}
		}
		if (agenda != NULL)
			LWLockRelease(&agenda->lock);
		watches[i] = watches[--nwatches];
	}
}

/* ---------------------------------------------------------------------- */
/* The end                                                                */
/* ---------------------------------------------------------------------- */

/*
 * Extend the id of a recent transaction to 64 bits.
 */
FullTransactionId
outbox_full_xid(TransactionId xid)
{
	FullTransactionId next = ReadNextFullTransactionId();
	uint32		epoch = EpochFromFullTransactionId(next);

	Assert(TransactionIdIsNormal(xid));
	if (xid > XidFromFullTransactionId(next))
		epoch--;
	return FullTransactionIdFromEpochAndXid(epoch, xid);
}

static void
end_claim(const Claim *claim, TransactionId top, OutboxXactEnd end)
{
	/* the savepoint of the claim may have been rolled back */
	if (end == OUTBOX_XACT_COMMITTED && !TransactionIdDidCommit(claim->xid))
		end = OUTBOX_XACT_ABORTED;
	if (end == OUTBOX_XACT_ABORTED)
		outbox_wake_note_topic(outbox_place_topic_key(&claim->place));
	outbox_lane_end_claim(claim->relid, &claim->place, claim->token,
						  outbox_full_xid(claim->xid), outbox_full_xid(top),
						  claim->nmessages, end);
}

/*
 * Raise the epochs of doubtful tables, since what others know may be wrong
 * now.
 */
static void
raise_doubtful(void)
{
	for (int i = 0; i < ntables; i++)
	{
		if (tables[i].doubtful)
			outbox_epoch_raise(tables[i].relid);
	}
}

/*
 * Publish everything at the end of the transaction, or when it was prepared.
 */
void
outbox_lane_xact_end(OutboxXactEnd end)
{
	TransactionId top = GetTopTransactionIdIfAny();

	if (nwatches > 0)
		call_off(0);
	raise_doubtful();
	/* if it was prepared, they detect that its end will not be reported */
	for (int i = 0; i < ntables && TransactionIdIsValid(top); i++)
		outbox_lanes_unblock(tables[i].relid, outbox_full_xid(top), true);
	for (int i = 0; i < nclaims; i++)
		end_claim(&claims[i], top, end);
	if (nnotes > 0 && end != OUTBOX_XACT_ABORTED)
		outbox_lane_publish(notes, nnotes,
							end == OUTBOX_XACT_PREPARED ? outbox_full_xid(top) :
							InvalidFullTransactionId);
	for (int i = 0; i < ntables && end != OUTBOX_XACT_ABORTED; i++)
	{
		if (tables[i].expires_at != DT_NOEND)
			outbox_expiry_report(tables[i].relid, tables[i].expires_at);
	}
	nnotes = nmoves = nclaims = ntables = 0;
}

/*
 * A savepoint was rolled back: what was claimed after it can be claimed again.
 */
void
outbox_lane_subxact_abort(void)
{
	TransactionId top = GetTopTransactionIdIfAny();
	int			n = 0;

	if (nwatches > 0)
		call_off(GetCurrentTransactionNestLevel());
	for (int i = 0; i < nclaims; i++)
	{
		if (TransactionIdIsCurrentTransactionId(claims[i].xid))
			claims[n++] = claims[i];
		else
			end_claim(&claims[i], top, OUTBOX_XACT_ABORTED);
	}
	nclaims = n;
	raise_doubtful();
	for (int i = 0; i < ntables && TransactionIdIsValid(top); i++)
		outbox_lanes_unblock(tables[i].relid, outbox_full_xid(top), false);
}
