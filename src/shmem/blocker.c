/*
 * blocker.c
 *	  Which lanes of a live table wait for the end of which transactions.
 *
 * A few chains of blockers record this; every transaction checks them when it
 * ends.  A prepared transaction ends without calling any extension, so such
 * transactions are in a list, and claims look whether they are over.  What does
 * not fit is polled.
 *
 * The caller must hold the agenda's lock, exclusively to change anything.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "shmem/agenda.h"
#include "shmem/blocker.h"
#include "shmem/lane_memory.h"
#include "shmem/lane_state.h"
#include "util/guc.h"

static int *
blockers_of(OutboxAgenda *agenda, FullTransactionId xid)
{
	return &agenda->blockers[XidFromFullTransactionId(xid) %
							 OUTBOX_BLOCKER_CHAINS];
}

/* Note a transaction that will end silently; false if there is no room. */
static bool
note_silent(OutboxAgenda *agenda, FullTransactionId xid)
{
	for (int i = 0; i < agenda->nsilent; i++)
	{
		if (FullTransactionIdEquals(agenda->silent[i], xid))
			return true;
	}
	if (agenda->nsilent == OUTBOX_MAX_SILENT)
		return false;
	agenda->silent[agenda->nsilent++] = xid;
	return true;
}

/* Iterate over these transactions; *next must be 0 at first. */
bool
outbox_agenda_next_silent(const OutboxAgenda *agenda, int *next,
						  FullTransactionId *xid)
{
	if (*next >= agenda->nsilent)
		return false;
	*xid = agenda->silent[(*next)++];
	return true;
}

static void
forget_silent(OutboxAgenda *agenda, FullTransactionId xid)
{
	for (int i = 0; i < agenda->nsilent; i++)
	{
		if (FullTransactionIdEquals(agenda->silent[i], xid))
		{
			agenda->silent[i] = agenda->silent[--agenda->nsilent];
			return;
		}
	}
}

static bool
is_blocked(OutboxAgenda *agenda, int lane, FullTransactionId xid)
{
	int			looked_at = 0;

	for (int cell = *blockers_of(agenda, xid);
		 cell != OUTBOX_NIL && looked_at < OUTBOX_MAX_PENDING;
		 cell = outbox_blocker_at(cell)->next)
	{
		const OutboxBlocker *blocker = outbox_blocker_at(cell);

		if (blocker->lane == lane && FullTransactionIdEquals(blocker->xid, xid))
			return true;
		looked_at++;
	}
	return false;
}

/* There is no cell to note what the lane waits for: poll it. */
static void
poll_lane(OutboxLane *lane)
{
	outbox_lane_call(lane);
	lane->recheck_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												   outbox_poll_interval);
}

/*
 * Have a lane called when a transaction, given by its top-level id, has ended.
 * The caller must then check whether it has ended already, and update the
 * lane.  Without a free cell, the lane is polled.
 */
void
outbox_agenda_block(OutboxAgenda *agenda, int lane, FullTransactionId xid,
					bool silent)
{
	int			cell;
	OutboxBlocker *blocker;

	if (silent && !note_silent(agenda, xid))
	{
		poll_lane(outbox_lane_at(lane));
		return;
	}
	if (is_blocked(agenda, lane, xid))
		return;
	cell = outbox_cell_new();
	if (cell == OUTBOX_NIL)
	{
		poll_lane(outbox_lane_at(lane));
		return;
	}
	blocker = outbox_blocker_at(cell);
	blocker->next = *blockers_of(agenda, xid);
	blocker->lane = lane;
	blocker->xid = xid;
	*blockers_of(agenda, xid) = cell;
	pg_atomic_fetch_add_u32(&agenda->nblockers, 1);
}

/*
 * Iterate over the lanes that wait for this transaction; *cell must be
 * OUTBOX_NIL at first.  Returns OUTBOX_NIL at the end.  A lane may have been
 * removed, and its number reused.
 */
int
outbox_agenda_next_blocked(const OutboxAgenda *agenda, FullTransactionId xid,
						   int *cell)
{
	*cell = *cell != OUTBOX_NIL ? outbox_blocker_at(*cell)->next :
		agenda->blockers[XidFromFullTransactionId(xid) % OUTBOX_BLOCKER_CHAINS];
	while (*cell != OUTBOX_NIL &&
		   !FullTransactionIdEquals(outbox_blocker_at(*cell)->xid, xid))
		*cell = outbox_blocker_at(*cell)->next;
	return *cell != OUTBOX_NIL ? outbox_blocker_at(*cell)->lane : OUTBOX_NIL;
}

/* Remove the blockers of a transaction that has ended. */
void
outbox_agenda_unblock(OutboxAgenda *agenda, FullTransactionId xid)
{
	int		   *link = blockers_of(agenda, xid);

	forget_silent(agenda, xid);
	while (*link != OUTBOX_NIL)
	{
		int			cell = *link;

		if (!FullTransactionIdEquals(outbox_blocker_at(cell)->xid, xid))
		{
			link = &outbox_blocker_at(cell)->next;
			continue;
		}
		*link = outbox_blocker_at(cell)->next;
		outbox_cell_free(cell);
		pg_atomic_fetch_sub_u32(&agenda->nblockers, 1);
	}
}

/* Remove all blockers. */
void
outbox_agenda_unblock_all(OutboxAgenda *agenda)
{
	for (int i = 0; i < OUTBOX_BLOCKER_CHAINS; i++)
	{
		while (agenda->blockers[i] != OUTBOX_NIL)
			outbox_agenda_unblock(agenda,
								  outbox_blocker_at(agenda->blockers[i])->xid);
	}
	agenda->nsilent = 0;
}
