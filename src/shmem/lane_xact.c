/*
 * lane_xact.c
 *	  What a transaction has done to lanes, and what its end means for them.
 *
 * Three lists, in local memory, each forgotten with the transaction:
 *
 *	changes		keys that rows were moved away from, or deleted at
 *	claims		lanes with holes that a commit closes
 *	watches		scans under way, to be called off if they end in an error
 *
 * That a transaction has aborted need not be told to anybody: its holes are
 * there, and whoever finds it ended looks into them.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"

#include "outbox.h"
#include "shmem/lane_directory.h"
#include "shmem/lane_state.h"
#include "shmem/lane_xact.h"
#include "shmem/wake.h"
#include "util/grow.h"

/* How far back to look for a range that a key can be added to. */
#define LOOK_BACK 8

/* Keys that rows were moved away from. */
typedef struct OwnChange
{
	Oid			relid;
	int64		lane;
	OutboxKey	lo;
	OutboxKey	hi;
	TransactionId xid;
	bool		published;		/* there is a hole for it */
} OwnChange;

/* A lane in which we have claimed. */
typedef struct OwnClaim
{
	OutboxLane *slot;
	Oid			relid;
	int64		lane;
	TransactionId xid;
} OwnClaim;

/* A watch, and the transaction depth that opened it. */
typedef struct HeldWatch
{
	OutboxLane *slot;
	int			watch;
	int			nest_level;
} HeldWatch;

static OwnChange *changes = NULL;
static int	nchanges = 0;
static int	max_changes = 0;

static OwnClaim *claims = NULL;
static int	nclaims = 0;
static int	max_claims = 0;

static HeldWatch *watches = NULL;
static int	nwatches = 0;
static int	max_watches = 0;

/* ---------------------------------------------------------------------- */
/* Changes                                                                */
/* ---------------------------------------------------------------------- */

/* The current transaction has moved a row away from this key. */
void
outbox_lane_note_change(Oid relid, int64 lane, OutboxKey key)
{
	TransactionId xid = GetCurrentTransactionId();

	for (int i = nchanges - 1; i >= 0 && i >= nchanges - LOOK_BACK; i--)
	{
		OwnChange  *have = &changes[i];

		if (have->lane == lane && have->xid == xid && have->relid == relid &&
			!have->published)
		{
			have->lo = outbox_key_min(have->lo, key);
			have->hi = outbox_key_max(have->hi, key);
			return;
		}
	}
	changes = outbox_grow_in(TopMemoryContext, changes, nchanges, &max_changes,
							 sizeof(OwnChange));
	changes[nchanges++] = OUTBOX_MAKE(OwnChange, relid, lane, key, key, xid, false);
}

/*
 * Read the changes to a lane that have not been read yet, one a call: a scan
 * of ours cannot see what they left, and must leave holes for them.  *next
 * counts up from 0.  False when there are no more.
 */
bool
outbox_lane_own_change(Oid relid, int64 lane, int *next, OutboxHole *hole)
{
	while (*next < nchanges)
	{
		OwnChange  *change = &changes[(*next)++];

		if (change->lane != lane || change->relid != relid ||
			change->published)
			continue;
		change->published = true;
		*hole = OUTBOX_MAKE(OutboxHole, change->lo, change->hi, change->xid,
							true);
		return true;
	}
	return false;
}

/* ---------------------------------------------------------------------- */
/* Claims                                                                 */
/* ---------------------------------------------------------------------- */

/* When we commit, the claimed holes of xid in this lane are closed. */
void
outbox_lane_remember_claim(OutboxLane *slot, Oid relid, int64 lane,
						   TransactionId xid)
{
	for (int i = 0; i < nclaims; i++)
	{
		if (claims[i].slot == slot && claims[i].xid == xid)
			return;
	}
	/* if we roll back, those who wait for the lane are told then */
	outbox_wake_prepare();
	claims = outbox_grow_in(TopMemoryContext, claims, nclaims, &max_claims,
							sizeof(OwnClaim));
	claims[nclaims++] = OUTBOX_MAKE(OwnClaim, slot, relid, lane, xid);
}

static void
close_holes(const OwnClaim *claim)
{
	OutboxLane *slot = claim->slot;

	/* not if that was a savepoint which was rolled back */
	if (!TransactionIdDidCommit(claim->xid))
		return;
	LWLockAcquire(&slot->lock, LW_EXCLUSIVE);
	if (outbox_directory_is_lane(slot, claim->relid, claim->lane))
	{
		for (int i = slot->nholes - 1; i >= 0; i--)
		{
			if (slot->holes[i].claimed && slot->holes[i].xid == claim->xid)
				slot->holes[i] = slot->holes[--slot->nholes];
		}
		outbox_lane_set_wake_at(slot);
	}
	LWLockRelease(&slot->lock);
}

/* ---------------------------------------------------------------------- */
/* Watches                                                                */
/* ---------------------------------------------------------------------- */

/*
 * Make room for one more.  Not later: an error between taking a watch and
 * noting it would leave the watch behind.
 */
void
outbox_lane_reserve_watch(void)
{
	watches = outbox_grow_in(TopMemoryContext, watches, nwatches, &max_watches,
							 sizeof(HeldWatch));
}

void
outbox_lane_hold_watch(OutboxLane *slot, int watch)
{
	Assert(nwatches < max_watches);
	watches[nwatches++] =
		OUTBOX_MAKE(HeldWatch, slot, watch, GetCurrentTransactionNestLevel());
}

/* It has been given back. */
void
outbox_lane_drop_watch(OutboxLane *slot, int watch)
{
	for (int i = nwatches - 1; i >= 0; i--)
	{
		if (watches[i].slot == slot && watches[i].watch == watch)
		{
			watches[i] = watches[--nwatches];
			return;
		}
	}
}

/* Give back the watches opened at this transaction depth, or deeper. */
static void
call_off(int nest_level)
{
	for (int i = nwatches - 1; i >= 0; i--)
	{
		HeldWatch  *held = &watches[i];

		if (held->nest_level < nest_level)
			continue;
		LWLockAcquire(&held->slot->lock, LW_EXCLUSIVE);
		held->slot->watch[held->watch].used = false;
		LWLockRelease(&held->slot->lock);
		watches[i] = watches[--nwatches];
	}
}

/* ---------------------------------------------------------------------- */
/* The end                                                                */
/* ---------------------------------------------------------------------- */

/* The transaction has committed; or it has aborted, or was prepared. */
void
outbox_lane_xact_end(bool committed)
{
	if (nwatches > 0)
		call_off(0);
	for (int i = 0; i < nclaims; i++)
	{
		if (committed)
			close_holes(&claims[i]);
		else
			outbox_wake_note(claims[i].relid, claims[i].lane);
	}
	nclaims = 0;
	nchanges = 0;
}

void
outbox_lane_subxact_abort(void)
{
	if (nwatches > 0)
		call_off(GetCurrentTransactionNestLevel());
	/* others may not wait until our end for what is free again */
	if (nclaims > 0)
	{
		for (int i = 0; i < nclaims; i++)
			outbox_wake_note(claims[i].relid, claims[i].lane);
		outbox_wake_now();
	}
}
