/*
 * waiters.c
 *	  Claims that sleep, and which of them is to be called.
 *
 * A claim that waits is listed in the groups of lanes that it chooses by, and
 * in the group of its owner.  When something becomes claimable in a lane, as
 * many of those listed in the lane's groups are called as there are messages
 * for, those that have waited longest first.  One that has been called is listed
 * again before it looks, so it cannot miss what comes after.
 *
 * A call is not lost.  A claim that has been called and finds nothing, because
 * another one was faster or because it may not take what there is, calls the
 * next that has waited for a shorter time than itself, if there is something to
 * do in its lanes still; so does a claim that leaves, for whatever reason.
 *
 * One of those that sleep in an agenda keeps the time: it wakes when something
 * becomes due, and calls whoever that is for.  The others need no timer.  It is
 * the one that fell asleep last, since that is called last; when it leaves, it
 * wakes another to keep the time.
 *
 * A claim that must poll is among the waiters as well, for those who look, and for
 * its owner's release.
 *
 * The caller must hold the agenda's lock exclusively.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "shmem/agenda.h"
#include "shmem/lane_memory.h"
#include "shmem/shmem.h"
#include "shmem/waiters.h"
#include "util/hash.h"

/* Lanes that a claim looks at to find one that others should visit. */
#define PASS_ON_LANES 8

/* While the block of shared memory is made. */
void
outbox_waiters_init(OutboxWaiter *waiters, int nwaiters)
{
	memset(waiters, 0, nwaiters * sizeof(OutboxWaiter));
}

/* Waiters are numbered from 1, by the numbers of their processes. */
static OutboxWaiter *
waiter_at(int waiter)
{
	Assert(waiter > OUTBOX_NIL && waiter <= MaxBackends);
	return outbox_shmem_waiters() + (waiter - 1);
}

static int
own_number(void)
{
	return OUTBOX_MY_PROC_NUMBER + 1;
}

/* This session's; NULL if there is no shared memory. */
OutboxWaiter *
outbox_waiter_own(void)
{
	return outbox_lane_memory() == NULL ? NULL : waiter_at(own_number());
}

/* ---------------------------------------------------------------------- */
/* Lists of groups                                                        */
/* ---------------------------------------------------------------------- */

/* Enter a node into its group's list, which is ordered by tickets. */
static void
link_node(int cell, uint64 ticket)
{
	OutboxWaitNode *node = outbox_wait_node_at(cell);
	OutboxGroup *group = outbox_group_at(node->group);
	int			before = group->waiter_last;

	while (before != OUTBOX_NIL &&
		   waiter_at(outbox_wait_node_at(before)->waiter)->ticket > ticket)
		before = outbox_wait_node_at(before)->prev;
	node->prev = before;
	node->next = before != OUTBOX_NIL ? outbox_wait_node_at(before)->next :
		group->waiter_first;
	if (node->next != OUTBOX_NIL)
		outbox_wait_node_at(node->next)->prev = cell;
	else
		group->waiter_last = cell;
	if (before != OUTBOX_NIL)
		outbox_wait_node_at(before)->next = cell;
	else
		group->waiter_first = cell;
	node->linked = true;
}

static void
unlink_node(int cell)
{
	OutboxWaitNode *node = outbox_wait_node_at(cell);
	OutboxGroup *group = outbox_group_at(node->group);

	if (node->next != OUTBOX_NIL)
		outbox_wait_node_at(node->next)->prev = node->prev;
	else
		group->waiter_last = node->prev;
	if (node->prev != OUTBOX_NIL)
		outbox_wait_node_at(node->prev)->next = node->next;
	else
		group->waiter_first = node->next;
	node->linked = false;
}

/* Give the own claim a place in a group; false if there is no room. */
static bool
add_node(OutboxAgenda *agenda, OutboxWaiter *own, int kind, uint64 hash)
{
	int			group = outbox_agenda_group(agenda, kind, hash, true);
	int			cell;
	OutboxWaitNode *node;

	if (group == OUTBOX_NIL)
		return false;
	cell = outbox_cell_new();
	if (cell == OUTBOX_NIL)
	{
		outbox_agenda_release_group(group);
		return false;
	}
	node = outbox_wait_node_at(cell);
	node->waiter = own_number();
	node->group = group;
	node->next_own = own->first_node;
	node->linked = false;
	own->first_node = cell;
	outbox_group_at(group)->nnodes++;
	if (kind == OUTBOX_BY_TOKEN)
		link_node(cell, own->ticket);
	return true;
}

/*
 * A claim cannot be called any more.  It stays in the group of its owner, which
 * is short, so that it is found there when the owner releases everything.
 */
static void
unlist(OutboxWaiter *waiter)
{
	for (int cell = waiter->first_node; cell != OUTBOX_NIL;
		 cell = outbox_wait_node_at(cell)->next_own)
	{
		const OutboxWaitNode *node = outbox_wait_node_at(cell);

		if (node->linked && outbox_group_at(node->group)->kind != OUTBOX_BY_TOKEN)
			unlink_node(cell);
	}
	waiter->listed = false;
}

/* ---------------------------------------------------------------------- */
/* Keeping the time                                                       */
/* ---------------------------------------------------------------------- */

bool
outbox_waiter_keeps_time(const OutboxAgenda *agenda)
{
	return agenda->keeper == own_number();
}

/* The own claim falls asleep, and will wake at this time. */
void
outbox_waiter_keep_time(OutboxAgenda *agenda, TimestampTz until)
{
	agenda->keeper = own_number();
	agenda->keeper_until = until;
}

/*
 * The claim that kept the time does so no more.  Wake another one that sleeps,
 * if there is one: it will keep the time when it falls asleep again.
 */
static void
appoint_keeper(OutboxAgenda *agenda)
{
	agenda->keeper = OUTBOX_NIL;
	for (int waiter = agenda->first_waiter; waiter != OUTBOX_NIL;
		 waiter = waiter_at(waiter)->next)
	{
		if (waiter_at(waiter)->listed)
		{
			SetLatch(waiter_at(waiter)->latch);
			return;
		}
	}
}

/* Something will become due: is it sooner than the keeper knows? */
void
outbox_waiters_note_time(OutboxAgenda *agenda)
{
	if (agenda->keeper != OUTBOX_NIL &&
		outbox_agenda_next_time(agenda) < agenda->keeper_until)
		SetLatch(waiter_at(agenda->keeper)->latch);
}

/* ---------------------------------------------------------------------- */
/* Calling                                                                */
/* ---------------------------------------------------------------------- */

static void
call_waiter(OutboxAgenda *agenda, int waiter)
{
	OutboxWaiter *called = waiter_at(waiter);

	unlist(called);
	called->called = true;
	SetLatch(called->latch);
	if (agenda->keeper == waiter)
		appoint_keeper(agenda);
}

static bool
can_be_called(const OutboxWaiter *waiter, uint64 after)
{
	return waiter->listed && waiter->ticket > after;
}

/*
 * Of the claims listed in a lane's groups, the one that has waited longest, but
 * not as long as the one with this ticket.
 */
static int
longest_waiting(const OutboxLane *lane, uint64 after)
{
	int			best = OUTBOX_NIL;

	for (int i = 0; i < OUTBOX_LANE_KINDS; i++)
	{
		int			group = lane->links[i].group;
		int			cell;
		int			waiter;

		if (group == OUTBOX_NIL)
			continue;
		cell = outbox_group_at(group)->waiter_first;
		while (cell != OUTBOX_NIL &&
			   !can_be_called(waiter_at(outbox_wait_node_at(cell)->waiter), after))
			cell = outbox_wait_node_at(cell)->next;
		if (cell == OUTBOX_NIL)
			continue;
		waiter = outbox_wait_node_at(cell)->waiter;
		if (best == OUTBOX_NIL ||
			waiter_at(waiter)->ticket < waiter_at(best)->ticket)
			best = waiter;
	}
	return best;
}

/* This many messages can be claimed in the lane that could not before. */
void
outbox_waiters_call_lane(OutboxAgenda *agenda, int lane, int nmessages)
{
	if (pg_atomic_read_u32(&agenda->nwaiters) == 0)
		return;
	while (nmessages > 0)
	{
		int			waiter = longest_waiting(outbox_lane_at(lane), 0);

		if (waiter == OUTBOX_NIL)
			return;
		nmessages -= waiter_at(waiter)->capacity;
		call_waiter(agenda, waiter);
	}
}

/* Everything may have changed.  unsure: it may take a moment to be seen. */
void
outbox_waiters_call_all(OutboxAgenda *agenda, bool unsure)
{
	for (int waiter = agenda->first_waiter; waiter != OUTBOX_NIL;
		 waiter = waiter_at(waiter)->next)
	{
		waiter_at(waiter)->unsure |= unsure;
		if (waiter_at(waiter)->listed)
			call_waiter(agenda, waiter);
	}
}

/* An owner has released everything: its claims do not wait any longer. */
void
outbox_waiters_release(OutboxAgenda *agenda, uint64 token)
{
	int			group = outbox_agenda_group(agenda, OUTBOX_BY_TOKEN, token, false);

	if (group == OUTBOX_NIL)
		return;
	for (int cell = outbox_group_at(group)->waiter_first; cell != OUTBOX_NIL;
		 cell = outbox_wait_node_at(cell)->next)
	{
		OutboxWaiter *waiter = waiter_at(outbox_wait_node_at(cell)->waiter);

		waiter->released = true;
		SetLatch(waiter->latch);
	}
}

/* Call whoever is waiting for what has become due by now. */
void
outbox_waiters_call_due(OutboxAgenda *agenda, TimestampTz now)
{
	int			lane;

	while ((lane = outbox_agenda_pop(agenda, now)) != OUTBOX_NIL)
		outbox_waiters_call_lane(agenda, lane, 1);
}

/*
 * The own claim was called, and there is still something to do in its lanes: it
 * is for another.  If the own claim goes on waiting, for one that has waited for
 * a shorter time, so that the call comes to an end.
 */
void
outbox_waiters_pass_on(OutboxAgenda *agenda, bool leaving)
{
	const OutboxWaiter *own = outbox_waiter_own();
	int			looked_at = 0;

	for (int cell = own->first_node; cell != OUTBOX_NIL;
		 cell = outbox_wait_node_at(cell)->next_own)
	{
		const OutboxGroup *group =
		outbox_group_at(outbox_wait_node_at(cell)->group);

		for (int lane = group->due_first; lane != OUTBOX_NIL;
			 lane = outbox_lane_at(lane)->links[group->kind == OUTBOX_BY_TOKEN ? 0 : group->kind].next)
		{
			int			waiter = longest_waiting(outbox_lane_at(lane),
												 leaving ? 0 : own->ticket);

			if (waiter != OUTBOX_NIL)
			{
				call_waiter(agenda, waiter);
				return;
			}
			if (++looked_at == PASS_ON_LANES)
				return;
		}
	}
}

/* ---------------------------------------------------------------------- */
/* The own claim                                                          */
/* ---------------------------------------------------------------------- */

/* Join the groups by which a claim chooses; false if there is no room. */
static bool
join_groups(OutboxAgenda *agenda, OutboxWaiter *own,
			const OutboxLaneFilter *filter)
{
	int			kind = outbox_agenda_kind(filter);
	int			ntopics = filter->topic_hashes != NULL ? filter->ntopics : 1;
	OutboxPlace place = {
		.namespace_hash = filter->namespace_hash != NULL ? *filter->namespace_hash : 0,
		.tenant_hash = filter->tenant_hash != NULL ? *filter->tenant_hash : 0
	};

	if (ntopics > OUTBOX_WAITER_TOPICS)
	{
		kind &= ~OUTBOX_BY_TOPIC;
		ntopics = 1;
	}
	if (!outbox_agenda_keep(agenda, kind))
	{
		kind = 0;
		ntopics = 1;
	}
	for (int i = 0; i < ntopics; i++)
	{
		if (kind & OUTBOX_BY_TOPIC)
			place.topic_hash = filter->topic_hashes[i];
		if (!add_node(agenda, own, kind, outbox_agenda_hash(kind, &place)))
			return false;
	}
	return add_node(agenda, own, OUTBOX_BY_TOKEN, own->token);
}

/* The own claim begins to wait; false if another one of this session does so. */
static bool
enter(OutboxAgenda *agenda, uint64 token)
{
	OutboxWaiter *own = outbox_waiter_own();

	if (own->agenda != OUTBOX_NIL)
		return false;
	memset(own, 0, sizeof(OutboxWaiter));
	own->agenda = agenda->number;
	own->latch = MyLatch;
	own->ticket = ++agenda->next_ticket;
	own->token = token;
	own->pid = MyProcPid;
	own->since = GetCurrentTimestamp();
	own->next = agenda->first_waiter;
	if (own->next != OUTBOX_NIL)
		waiter_at(own->next)->prev = own_number();
	agenda->first_waiter = own_number();
	pg_atomic_fetch_add_u32(&agenda->nwaiters, 1);
	return true;
}

/*
 * The own claim begins to wait until it is called.  False if that is not possible,
 * for want of room or because another claim of this session waits already.
 */
bool
outbox_waiter_join(OutboxAgenda *agenda, const OutboxLaneFilter *filter,
				   uint64 token, int capacity)
{
	if (!enter(agenda, token))
		return false;
	outbox_waiter_own()->capacity = capacity;
	if (join_groups(agenda, outbox_waiter_own(), filter))
		return true;
	outbox_waiter_leave(agenda);
	return false;
}

/*
 * The own claim begins to wait, but polls.  False if another claim of this session
 * waits already.
 */
bool
outbox_waiter_join_to_poll(OutboxAgenda *agenda, uint64 token)
{
	OutboxWaiter *own = outbox_waiter_own();

	if (!enter(agenda, token))
		return false;
	own->polls = true;
	/* without room, a release does not end it */
	(void) add_node(agenda, own, OUTBOX_BY_TOKEN, token);
	return true;
}

/* What the own claim waits for. */
void
outbox_waiter_describe(OutboxAgenda *agenda, const OutboxWaiterNames *wants)
{
	OutboxWaiter *own = outbox_waiter_own();

	Assert(own->agenda == agenda->number);
	own->wants = *wants;
}

/*
 * Copy all that wait, for those who want to look; there is room for MaxBackends.
 * Here the agenda's lock in shared mode is enough.
 */
int
outbox_waiters_copy(const OutboxAgenda *agenda, OutboxWaiter *copies)
{
	int			n = 0;

	for (int waiter = agenda->first_waiter; waiter != OUTBOX_NIL;
		 waiter = waiter_at(waiter)->next)
	{
		Assert(n < MaxBackends);
		copies[n++] = *waiter_at(waiter);
	}
	return n;
}

/* From now on the own claim can be called; it must look once more. */
void
outbox_waiter_list(OutboxAgenda *agenda)
{
	OutboxWaiter *own = outbox_waiter_own();

	Assert(own->agenda == agenda->number && !own->polls);
	for (int cell = own->first_node; cell != OUTBOX_NIL;
		 cell = outbox_wait_node_at(cell)->next_own)
	{
		if (!outbox_wait_node_at(cell)->linked)
			link_node(cell, own->ticket);
	}
	own->listed = true;
	own->called = false;
}

/* The own claim waits no more. */
void
outbox_waiter_leave(OutboxAgenda *agenda)
{
	OutboxWaiter *own = outbox_waiter_own();
	int			next;

	Assert(own->agenda == agenda->number);
	unlist(own);
	if (own->called)
		outbox_waiters_pass_on(agenda, true);
	for (int cell = own->first_node; cell != OUTBOX_NIL; cell = next)
	{
		int			group = outbox_wait_node_at(cell)->group;

		next = outbox_wait_node_at(cell)->next_own;
		if (outbox_wait_node_at(cell)->linked)
			unlink_node(cell);
		outbox_cell_free(cell);
		outbox_group_at(group)->nnodes--;
		outbox_agenda_release_group(group);
	}
	own->first_node = OUTBOX_NIL;
	if (own->prev != OUTBOX_NIL)
		waiter_at(own->prev)->next = own->next;
	else
		agenda->first_waiter = own->next;
	if (own->next != OUTBOX_NIL)
		waiter_at(own->next)->prev = own->prev;
	own->agenda = OUTBOX_NIL;
	pg_atomic_fetch_sub_u32(&agenda->nwaiters, 1);
	if (agenda->keeper == own_number())
		appoint_keeper(agenda);
}
