/*
 * sleepers.c
 *	  Sleeping claims, and which of them to call.
 *
 * A waiting claim is listed in the groups of lanes that it chooses by, and in
 * the group of its owner.  When something becomes claimable in a lane, as many
 * claims listed in the lane's groups are called as there are messages for,
 * those that have waited longest first.  A claim that has been called is
 * listed again before it tries to claim, so it cannot miss later calls.
 *
 * INVARIANT.  While a lane has something to do, and a claim is listed in one of
 * its groups, some claim that is awake has a duty to the lane.
 *
 * A called claim has a duty to the lane that it was called for, until it has tried
 * and found nothing, or stops waiting, with messages or without.  Then, if the lane
 * still has something to do and no other claim has a duty to it, the next claim is
 * called.  So no call is lost when another claim was faster, when the claim has
 * preferred the messages of another lane or may not take these, when it fails, or
 * when more becomes due than was reported.  A claim that goes on waiting calls only
 * one that has waited for a shorter time, so that this comes to an end.
 *
 * A called claim is listed again before it tries to claim, so it can have two
 * duties, but no more: one from before, and one from a call in between.
 *
 * One of the sleeping claims of an agenda is the time keeper: it wakes when
 * something becomes due, and calls the claims that this is for.  The others
 * need no timer.  The keeper is the claim that went to sleep last, since that
 * is called last; when it is called or stops waiting, another one is appointed,
 * and woken.
 *
 * A claim that must poll is among the sleepers as well, so that views show it,
 * and its owner's release ends it.
 *
 * The caller must hold the agenda's lock exclusively.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "outbox.h"
#include "shmem/agenda.h"
#include "shmem/directory.h"
#include "shmem/lane_memory.h"
#include "shmem/lane_state.h"
#include "shmem/shmem.h"
#include "shmem/sleepers.h"
#include "trace.h"
#include "util/hash.h"

/* Initialize the sleepers, when the block of shared memory is created. */
void
outbox_sleepers_init(OutboxSleeper *sleepers, int nsleepers)
{
	memset(sleepers, 0, nsleepers * sizeof(OutboxSleeper));
}

/* The sleeper with this number; these begin at 1, in the order of processes. */
static OutboxSleeper *
sleeper_at(int sleeper)
{
	Assert(sleeper > OUTBOX_NIL && sleeper <= MaxBackends);
	return outbox_shmem_sleepers() + (sleeper - 1);
}

static int
own_number(void)
{
	return OUTBOX_MY_PROC_NUMBER + 1;
}

/* This session's sleeper; NULL if there is no shared memory. */
OutboxSleeper *
outbox_sleeper_own(void)
{
	return outbox_lane_memory() == NULL ? NULL : sleeper_at(own_number());
}

/* ---------------------------------------------------------------------- */
/* Lists of groups                                                        */
/* ---------------------------------------------------------------------- */

/* Enter a node into its group's list, which is ordered by tickets. */
static void
link_node(int cell, uint64 ticket)
{
	OutboxSleepNode *node = outbox_sleep_node_at(cell);
	OutboxGroup *group = outbox_group_at(node->group);
	int			before = group->sleeper_last;

	while (before != OUTBOX_NIL &&
		   sleeper_at(outbox_sleep_node_at(before)->sleeper)->ticket > ticket)
		before = outbox_sleep_node_at(before)->prev;
	node->prev = before;
	node->next = before != OUTBOX_NIL ? outbox_sleep_node_at(before)->next :
		group->sleeper_first;
	if (node->next != OUTBOX_NIL)
		outbox_sleep_node_at(node->next)->prev = cell;
	else
		group->sleeper_last = cell;
	if (before != OUTBOX_NIL)
		outbox_sleep_node_at(before)->next = cell;
	else
		group->sleeper_first = cell;
	node->linked = true;
}

static void
unlink_node(int cell)
{
	OutboxSleepNode *node = outbox_sleep_node_at(cell);
	OutboxGroup *group = outbox_group_at(node->group);

	if (node->next != OUTBOX_NIL)
		outbox_sleep_node_at(node->next)->prev = node->prev;
	else
		group->sleeper_last = node->prev;
	if (node->prev != OUTBOX_NIL)
		outbox_sleep_node_at(node->prev)->next = node->next;
	else
		group->sleeper_first = node->next;
	node->linked = false;
}

/* Add our claim to a group; false if there is no memory. */
static bool
add_node(OutboxAgenda *agenda, OutboxSleeper *own, int kind, uint64 hash)
{
	int			group = outbox_agenda_group(agenda, kind, hash, true);
	int			cell;
	OutboxSleepNode *node;

	if (group == OUTBOX_NIL)
		return false;
	cell = outbox_cell_new();
	if (cell == OUTBOX_NIL)
	{
		outbox_agenda_release_group(group);
		return false;
	}
	node = outbox_sleep_node_at(cell);
	node->sleeper = own_number();
	node->group = group;
	node->next_own = own->first_node;
	node->linked = false;
	own->first_node = cell;
	outbox_group_at(group)->nnodes++;
	OUTBOX_TRACE_WAIT("group", agenda, own_number(), kind, hash);
	if (kind == OUTBOX_BY_TOKEN)
		link_node(cell, own->ticket);
	return true;
}

/*
 * Remove a claim from the lists, so that it cannot be called any more.  It
 * stays in the group of its owner, which is short, where it is found when the
 * owner releases everything.
 */
static void
unlist(OutboxSleeper *sleeper)
{
	for (int cell = sleeper->first_node; cell != OUTBOX_NIL;
		 cell = outbox_sleep_node_at(cell)->next_own)
	{
		const OutboxSleepNode *node = outbox_sleep_node_at(cell);

		if (node->linked && outbox_group_at(node->group)->kind != OUTBOX_BY_TOKEN)
			unlink_node(cell);
	}
	sleeper->listed = false;
}

/* ---------------------------------------------------------------------- */
/* Keeping the time                                                       */
/* ---------------------------------------------------------------------- */

/* Is our claim the time keeper? */
bool
outbox_sleeper_keeps_time(const OutboxAgenda *agenda)
{
	return agenda->keeper == own_number();
}

/* Our claim goes to sleep as the time keeper, and will wake at this time. */
void
outbox_sleeper_keep_time(OutboxAgenda *agenda, TimestampTz until)
{
	agenda->keeper = own_number();
	agenda->keeper_until = until;
}

/*
 * The time keeper is called or stops waiting.  Another listed claim becomes the keeper,
 * if there is one, and is woken to see how long it may sleep.
 */
static void
appoint_keeper(OutboxAgenda *agenda)
{
	agenda->keeper = OUTBOX_NIL;
	OUTBOX_TRACE_WAIT("keeper", agenda, 0);
	for (int sleeper = agenda->first_sleeper; sleeper != OUTBOX_NIL;
		 sleeper = sleeper_at(sleeper)->next)
	{
		if (sleeper_at(sleeper)->listed)
		{
			OUTBOX_TRACE_WAIT("appoint", agenda, sleeper);
			agenda->keeper = sleeper;
			agenda->keeper_until = DT_NOBEGIN;
			SetLatch(sleeper_at(sleeper)->latch);
			return;
		}
	}
}

/*
 * Something will become due: wake the time keeper if that is before its time.
 */
void
outbox_sleepers_note_time(OutboxAgenda *agenda)
{
	if (agenda->keeper != OUTBOX_NIL &&
		outbox_agenda_next_time(agenda) < agenda->keeper_until)
		SetLatch(sleeper_at(agenda->keeper)->latch);
}

/* ---------------------------------------------------------------------- */
/* Calling                                                                */
/* ---------------------------------------------------------------------- */

/* Call a claim, for this lane, or, with OUTBOX_NIL, because all are called. */
static void
call_sleeper(OutboxAgenda *agenda, int sleeper, int lane)
{
	OutboxSleeper *called = sleeper_at(sleeper);

	Assert(called->listed && !called->called_for.given);
	OUTBOX_TRACE_WAIT("called", agenda, sleeper);
	unlist(called);
	called->called = true;
	if (lane != OUTBOX_NIL)
	{
		OutboxLane *where = outbox_lane_at(lane);

		called->called_for = OUTBOX_MAKE(OutboxDuty,.given = true,
										 .place = where->place,
										 .token = where->token,
										 .ncalls = where->ncalls);
		where->nduties++;
	}
	SetLatch(called->latch);
	if (agenda->keeper == sleeper)
		appoint_keeper(agenda);
}

static bool
can_be_called(const OutboxSleeper *sleeper, uint64 after)
{
	return sleeper->listed && sleeper->ticket > after;
}

/*
 * Among the claims listed in a lane's groups, find the one that has waited
 * longest, but not as long as the one with this ticket.
 */
static int
longest_waiting(const OutboxLane *lane, uint64 after)
{
	int			best = OUTBOX_NIL;

	for (int i = 0; i < OUTBOX_LANE_KINDS; i++)
	{
		int			group = lane->links[i].group;
		int			cell;
		int			sleeper;

		if (group == OUTBOX_NIL)
			continue;
		cell = outbox_group_at(group)->sleeper_first;
		while (cell != OUTBOX_NIL &&
			   !can_be_called(sleeper_at(outbox_sleep_node_at(cell)->sleeper), after))
			cell = outbox_sleep_node_at(cell)->next;
		if (cell == OUTBOX_NIL)
			continue;
		sleeper = outbox_sleep_node_at(cell)->sleeper;
		if (best == OUTBOX_NIL ||
			sleeper_at(sleeper)->ticket < sleeper_at(best)->ticket)
			best = sleeper;
	}
	return best;
}

/* Call claims for at least so many messages that have become claimable in a lane. */
void
outbox_sleepers_call_lane(OutboxAgenda *agenda, int lane, int nmessages)
{
	if (pg_atomic_read_u32(&agenda->nsleepers) == 0)
		return;
	OUTBOX_TRACE_CALL("call", outbox_lane_at(lane), nmessages);
	outbox_lane_at(lane)->ncalls++;
	while (nmessages > 0)
	{
		int			sleeper = longest_waiting(outbox_lane_at(lane), 0);

		if (sleeper == OUTBOX_NIL)
			return;
		call_sleeper(agenda, sleeper, lane);
		nmessages -= Min(nmessages, sleeper_at(sleeper)->capacity);
	}
}

/*
 * Call all claims.  unsure: they may not see the change yet; otherwise the lanes have
 * been forgotten, and all duties with them.
 */
void
outbox_sleepers_call_all(OutboxAgenda *agenda, bool unsure)
{
	OUTBOX_TRACE_WAIT("all", agenda, unsure);
	for (int number = agenda->first_sleeper; number != OUTBOX_NIL;
		 number = sleeper_at(number)->next)
	{
		OutboxSleeper *sleeper = sleeper_at(number);

		sleeper->unsure |= unsure;
		if (!unsure)
			sleeper->called_for.given = sleeper->looks_for.given = false;
		if (sleeper->listed)
			call_sleeper(agenda, number, OUTBOX_NIL);
	}
}

/* End the waiting of all claims of an owner, which has released everything. */
void
outbox_sleepers_release(OutboxAgenda *agenda, uint64 token)
{
	int			group = outbox_agenda_group(agenda, OUTBOX_BY_TOKEN, token, false);

	if (group == OUTBOX_NIL)
		return;
	for (int cell = outbox_group_at(group)->sleeper_first; cell != OUTBOX_NIL;
		 cell = outbox_sleep_node_at(cell)->next)
	{
		OutboxSleeper *sleeper = sleeper_at(outbox_sleep_node_at(cell)->sleeper);

		OUTBOX_TRACE_WAIT("release", agenda, outbox_sleep_node_at(cell)->sleeper);
		sleeper->released = true;
		SetLatch(sleeper->latch);
	}
}

/* Call the claims that wait for what has become due by now. */
void
outbox_sleepers_call_due(OutboxAgenda *agenda, TimestampTz now)
{
	int			lane;

	while ((lane = outbox_agenda_pop(agenda, now)) != OUTBOX_NIL)
		outbox_sleepers_call_lane(agenda, lane, 1);
}

/* ---------------------------------------------------------------------- */
/* Duties                                                                 */
/* ---------------------------------------------------------------------- */

/*
 * Our claim has tried to claim what it was called for, or stops waiting.  If no other
 * claim has a duty to the lane, and it still has something to do, call one that has not
 * waited as long as the claim with this ticket.  for_others: others may take it.
 */
static void
end_duty(OutboxAgenda *agenda, OutboxDuty *duty, bool for_others, uint64 after)
{
	OutboxLane *lane;
	int			number;
	int			next;

	if (!duty->given)
		return;
	duty->given = false;
	number = outbox_lane_find(agenda->number, &duty->place, duty->token);
	/* only a part of a lane can have gone */
	if (number == OUTBOX_NIL)
		return;
	lane = outbox_lane_at(number);
	Assert(lane->nduties > 0);
	if (--lane->nduties > 0)
		return;
	if (!lane->due)
	{
		if (outbox_lane_is_done_part(lane))
			outbox_lane_drop(agenda, number);
		return;
	}
	/* our claim may not have seen what was reported since, so call it, too */
	if (lane->ncalls != duty->ncalls)
		after = 0;
	next = for_others ? longest_waiting(lane, after) : OUTBOX_NIL;
	if (next == OUTBOX_NIL)
		return;
	OUTBOX_TRACE_CALL("pass", lane, after);
	call_sleeper(agenda, next, number);
}

/* Our claim has found nothing.  for_others: there is something that others may take. */
void
outbox_sleepers_pass_on(OutboxAgenda *agenda, bool for_others)
{
	OutboxSleeper *own = outbox_sleeper_own();

	OUTBOX_TRACE_WAIT("nothing", agenda, own_number(), for_others);
	end_duty(agenda, &own->looks_for, for_others, own->ticket);
}

/* ---------------------------------------------------------------------- */
/* Our claim                                                              */
/* ---------------------------------------------------------------------- */

/* Join the groups by which a claim chooses; false if there is no memory. */
static bool
join_groups(OutboxAgenda *agenda, OutboxSleeper *own,
			const OutboxLaneFilter *filter)
{
	int			kind = outbox_agenda_kind(filter);

	if (outbox_filter_ngroups(filter, kind) > OUTBOX_SLEEPER_TOPICS)
		kind &= ~OUTBOX_BY_TOPIC;
	if (!outbox_agenda_keep(agenda, kind))
		kind = 0;
	for (int i = 0; i < outbox_filter_ngroups(filter, kind); i++)
	{
		if (!add_node(agenda, own, kind, outbox_filter_group(filter, kind, i)))
			return false;
	}
	return add_node(agenda, own, OUTBOX_BY_TOKEN, own->token);
}

/*
 * Our claim begins to wait; false if another claim of this session is waiting.
 */
static bool
enter(OutboxAgenda *agenda, uint64 token)
{
	OutboxSleeper *own = outbox_sleeper_own();

	if (own->agenda != OUTBOX_NIL)
		return false;
	memset(own, 0, sizeof(OutboxSleeper));
	own->agenda = agenda->number;
	own->latch = MyLatch;
	own->ticket = ++agenda->next_ticket;
	own->token = token;
	own->pid = MyProcPid;
	own->since = GetCurrentTimestamp();
	own->next = agenda->first_sleeper;
	if (own->next != OUTBOX_NIL)
		sleeper_at(own->next)->prev = own_number();
	agenda->first_sleeper = own_number();
	pg_atomic_fetch_add_u32(&agenda->nsleepers, 1);
	OUTBOX_TRACE_WAIT("join", agenda, own_number(), own->ticket);
	return true;
}

/*
 * Our claim begins to wait until it is called.  False if that is not possible,
 * for lack of memory or because another claim of this session is waiting.
 */
bool
outbox_sleeper_join(OutboxAgenda *agenda, const OutboxLaneFilter *filter,
					uint64 token, int capacity)
{
	if (!enter(agenda, token))
		return false;
	outbox_sleeper_own()->capacity = capacity;
	if (join_groups(agenda, outbox_sleeper_own(), filter))
		return true;
	outbox_sleeper_leave(agenda);
	return false;
}

/*
 * Our claim begins to wait, and polls.  False if another claim of this session
 * is waiting.
 */
bool
outbox_sleeper_join_to_poll(OutboxAgenda *agenda, uint64 token)
{
	OutboxSleeper *own = outbox_sleeper_own();

	if (!enter(agenda, token))
		return false;
	own->polls = true;
	/* without memory, a release does not end it */
	(void) add_node(agenda, own, OUTBOX_BY_TOKEN, token);
	return true;
}

/* Set what our claim waits for. */
void
outbox_sleeper_describe(OutboxAgenda *agenda, const OutboxSleeperNames *wants)
{
	OutboxSleeper *own = outbox_sleeper_own();

	Assert(own->agenda == agenda->number);
	own->wants = *wants;
}

/*
 * Copy all sleepers, for monitoring; there must be room for MaxBackends.  The
 * agenda's lock in shared mode is enough here.
 */
int
outbox_sleepers_copy(const OutboxAgenda *agenda, OutboxSleeper *copies)
{
	int			n = 0;

	for (int sleeper = agenda->first_sleeper; sleeper != OUTBOX_NIL;
		 sleeper = sleeper_at(sleeper)->next)
	{
		Assert(n < MaxBackends);
		copies[n++] = *sleeper_at(sleeper);
	}
	return n;
}

/*
 * List our claim, so that it can be called; it must then try to claim once
 * more.
 */
void
outbox_sleeper_list(OutboxAgenda *agenda)
{
	OutboxSleeper *own = outbox_sleeper_own();

	Assert(own->agenda == agenda->number && !own->polls);
	for (int cell = own->first_node; cell != OUTBOX_NIL;
		 cell = outbox_sleep_node_at(cell)->next_own)
	{
		if (!outbox_sleep_node_at(cell)->linked)
			link_node(cell, own->ticket);
	}
	Assert(!own->looks_for.given);
	own->looks_for = own->called_for;
	own->called_for.given = false;
	own->listed = true;
	own->called = false;
	OUTBOX_TRACE_WAIT("list", agenda, own_number());
}

/* Our claim stops waiting. */
void
outbox_sleeper_leave(OutboxAgenda *agenda)
{
	OutboxSleeper *own = outbox_sleeper_own();
	int			next;

	Assert(own->agenda == agenda->number);
	OUTBOX_TRACE_WAIT("leave", agenda, own_number());
	unlist(own);
	end_duty(agenda, &own->looks_for, true, 0);
	end_duty(agenda, &own->called_for, true, 0);
	for (int cell = own->first_node; cell != OUTBOX_NIL; cell = next)
	{
		int			group = outbox_sleep_node_at(cell)->group;

		next = outbox_sleep_node_at(cell)->next_own;
		if (outbox_sleep_node_at(cell)->linked)
			unlink_node(cell);
		outbox_cell_free(cell);
		outbox_group_at(group)->nnodes--;
		outbox_agenda_release_group(group);
	}
	own->first_node = OUTBOX_NIL;
	if (own->prev != OUTBOX_NIL)
		sleeper_at(own->prev)->next = own->next;
	else
		agenda->first_sleeper = own->next;
	if (own->next != OUTBOX_NIL)
		sleeper_at(own->next)->prev = own->prev;
	own->agenda = OUTBOX_NIL;
	pg_atomic_fetch_sub_u32(&agenda->nsleepers, 1);
	if (agenda->keeper == own_number())
		appoint_keeper(agenda);
}
