/*
 * agenda.c
 *	  In which lanes of a live table there is something to do, and when.
 *
 * A claim that does not name a single lane must not visit all lanes, or even
 * count them.  So lanes that share a namespace, a topic, a tenant, or several of
 * these are members of a group, and each group has its lanes in which there is
 * something to do, those that were visited longest ago first, in a list of their
 * own.  A claim takes its lanes from the list of the group that it chooses by.
 *
 * Groups are kept of the kinds that somebody has chosen by since the table's
 * memory was made.  The first to do so makes the groups of that kind for all
 * lanes, which takes some tens of milliseconds for 100,000 of them.
 *
 * A lane becomes one with something to do when something is reported, or when
 * the time of its timer has come.  Timers are in one heap for all lanes of the
 * table; another heap has the ends of leases alone.
 *
 * A third thing lanes wait for is the end of a transaction.  Which lanes wait for
 * which transaction is kept in a few chains of blockers; every transaction that
 * ends looks whether it is in them.
 *
 * The caller must hold the agenda's lock, exclusively to change anything.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "outbox.h"
#include "shmem/agenda.h"
#include "shmem/lane_memory.h"
#include "shmem/lane_state.h"
#include "shmem/timer.h"
#include "util/guc.h"
#include "util/hash.h"

/* There is no room for this lane. */
void
outbox_agenda_miss(OutboxAgenda *agenda, const OutboxPlace *place)
{
	agenda->misses++;
	agenda->tenant_missed |= place->tenant_hash != 0;
}

/* ---------------------------------------------------------------------- */
/* Groups                                                                 */
/* ---------------------------------------------------------------------- */

/* Which groups does a claim with this filter choose from? */
int
outbox_agenda_kind(const OutboxLaneFilter *filter)
{
	return (filter->namespace_hash != NULL ? OUTBOX_BY_NAMESPACE : 0) |
		(filter->topic_hashes != NULL ? OUTBOX_BY_TOPIC : 0) |
		(filter->tenant_hash != NULL ? OUTBOX_BY_TENANT : 0);
}

/* What tells the group of this kind to which a place belongs from others. */
uint64
outbox_agenda_hash(int kind, const OutboxPlace *place)
{
	uint64		hash = 0;

	if (kind & OUTBOX_BY_NAMESPACE)
		hash = (uint64) place->namespace_hash << 32;
	if (kind & OUTBOX_BY_TOPIC)
		hash |= place->topic_hash;
	if (kind & OUTBOX_BY_TENANT)
		hash = hash * UINT64CONST(0x9e3779b97f4a7c15) + place->tenant_hash;
	return hash;
}

/* The group's number; OUTBOX_NIL if there is none, and no room to make it. */
int
outbox_agenda_group(OutboxAgenda *agenda, int kind, uint64 hash, bool make)
{
	int			group = outbox_group_find(agenda->number, kind, hash);

	if (group == OUTBOX_NIL && make)
		group = outbox_group_add(agenda->number, kind, hash);
	return group;
}

/* Remove a group that nobody needs any more. */
void
outbox_agenda_release_group(int group)
{
	const OutboxGroup *have = outbox_group_at(group);

	if (have->nlanes == 0 && have->nnodes == 0)
		outbox_group_remove(group);
}

/* Which of a lane's links is for groups of this kind? */
static OutboxLink *
link_of(OutboxLane *lane, int kind)
{
	return &lane->links[kind == OUTBOX_BY_TOKEN ? 0 : kind];
}

/* Put a member into the list of those with something to do, or the other. */
static void
list_lane(OutboxGroup *group, int lane)
{
	OutboxLane *listed = outbox_lane_at(lane);
	OutboxLink *link = link_of(listed, group->kind);

	if (listed->due)
	{
		link->next = OUTBOX_NIL;
		link->prev = group->due_last;
		if (group->due_last != OUTBOX_NIL)
			link_of(outbox_lane_at(group->due_last), group->kind)->next = lane;
		else
			group->due_first = lane;
		group->due_last = lane;
		group->ndue++;
	}
	else
	{
		link->prev = OUTBOX_NIL;
		link->next = group->idle_first;
		if (group->idle_first != OUTBOX_NIL)
			link_of(outbox_lane_at(group->idle_first), group->kind)->prev = lane;
		group->idle_first = lane;
	}
}

static void
unlist_lane(OutboxGroup *group, int lane)
{
	OutboxLane *listed = outbox_lane_at(lane);
	OutboxLink *link = link_of(listed, group->kind);

	if (link->next != OUTBOX_NIL)
		link_of(outbox_lane_at(link->next), group->kind)->prev = link->prev;
	else if (listed->due)
		group->due_last = link->prev;
	if (link->prev != OUTBOX_NIL)
		link_of(outbox_lane_at(link->prev), group->kind)->next = link->next;
	else if (listed->due)
		group->due_first = link->next;
	else
		group->idle_first = link->next;
	if (listed->due)
		group->ndue--;
}

/* Make a lane a member of its group of this kind; false if there is no room. */
static bool
join_group(OutboxAgenda *agenda, int lane, int kind)
{
	OutboxLane *joining = outbox_lane_at(lane);
	uint64		hash = kind == OUTBOX_BY_TOKEN ? joining->token :
	outbox_agenda_hash(kind, &joining->place);
	int			group = outbox_agenda_group(agenda, kind, hash, true);

	if (group == OUTBOX_NIL)
		return false;
	link_of(joining, kind)->group = group;
	outbox_group_at(group)->nlanes++;
	list_lane(outbox_group_at(group), lane);
	return true;
}

static void
leave_group(OutboxLink *link, int lane)
{
	int			group = link->group;

	unlist_lane(outbox_group_at(group), lane);
	outbox_group_at(group)->nlanes--;
	link->group = OUTBOX_NIL;
	outbox_agenda_release_group(group);
}

/* A new lane becomes a member of its groups; false if there is no room. */
bool
outbox_agenda_join(OutboxAgenda *agenda, int lane)
{
	if (outbox_lane_at(lane)->token != 0)
		return join_group(agenda, lane, OUTBOX_BY_TOKEN);
	agenda->kinds |= 1;
	for (int kind = 0; kind < OUTBOX_LANE_KINDS; kind++)
	{
		if ((agenda->kinds & (1 << kind)) != 0 &&
			!join_group(agenda, lane, kind))
		{
			outbox_agenda_leave(agenda, lane);
			return false;
		}
	}
	return true;
}

/* A lane is to be removed, or has not found room everywhere. */
void
outbox_agenda_leave(OutboxAgenda *agenda, int lane)
{
	OutboxLane *leaving = outbox_lane_at(lane);

	for (int i = 0; i < OUTBOX_LANE_KINDS; i++)
	{
		if (leaving->links[i].group != OUTBOX_NIL)
			leave_group(&leaving->links[i], lane);
	}
	outbox_timer_set(&agenda->wake_root, OUTBOX_TIMER_WAKE, lane, DT_NOEND);
	outbox_timer_set(&agenda->lease_root, OUTBOX_TIMER_LEASE, lane, DT_NOEND);
}

/* From now on keep groups of this kind; false if there is no room for them. */
bool
outbox_agenda_keep(OutboxAgenda *agenda, int kind)
{
	int			lane;
	bool		fits = true;

	Assert(kind >= 0 && kind < OUTBOX_LANE_KINDS);
	if ((agenda->kinds & (1 << kind)) != 0)
		return true;
	for (lane = agenda->first_lane; lane != OUTBOX_NIL && fits;
		 lane = outbox_lane_at(lane)->store_next)
	{
		if (outbox_lane_at(lane)->token == 0)
			fits = join_group(agenda, lane, kind);
	}
	if (fits)
		agenda->kinds |= 1 << kind;
	for (lane = agenda->first_lane; lane != OUTBOX_NIL && !fits;
		 lane = outbox_lane_at(lane)->store_next)
	{
		OutboxLink *link = link_of(outbox_lane_at(lane), kind);

		if (outbox_lane_at(lane)->token == 0 && link->group != OUTBOX_NIL)
			leave_group(link, lane);
	}
	return fits;
}

/* ---------------------------------------------------------------------- */
/* What there is to do                                                    */
/* ---------------------------------------------------------------------- */

static void
set_due(int lane, bool due)
{
	OutboxLane *changed = outbox_lane_at(lane);

	if (changed->due == due)
		return;
	for (int i = 0; i < OUTBOX_LANE_KINDS; i++)
	{
		if (changed->links[i].group != OUTBOX_NIL)
			unlist_lane(outbox_group_at(changed->links[i].group), lane);
	}
	changed->due = due;
	for (int i = 0; i < OUTBOX_LANE_KINDS; i++)
	{
		if (changed->links[i].group != OUTBOX_NIL)
			list_lane(outbox_group_at(changed->links[i].group), lane);
	}
}

/* A lane has changed: put it where it belongs now. */
void
outbox_agenda_update(OutboxAgenda *agenda, int lane, TimestampTz now)
{
	OutboxLane *changed = outbox_lane_at(lane);
	TimestampTz lease;
	TimestampTz wake;

	Assert(LWLockHeldByMeInMode(&agenda->lock, LW_EXCLUSIVE));
	outbox_lane_make_due(changed, now);
	wake = outbox_lane_next_time(changed, &lease);
	set_due(lane, outbox_lane_is_visitable(changed, now));
	/* one that has something to do needs no timer, unless to try again */
	outbox_timer_set(&agenda->wake_root, OUTBOX_TIMER_WAKE, lane,
					 changed->due ? changed->recheck_at : wake);
	outbox_timer_set(&agenda->lease_root, OUTBOX_TIMER_LEASE, lane, lease);
}

/* A scan visits this lane: others should visit others first. */
void
outbox_agenda_rotate(OutboxAgenda *agenda, int lane)
{
	OutboxLane *visited = outbox_lane_at(lane);

	for (int i = 0; visited->due && i < OUTBOX_LANE_KINDS; i++)
	{
		OutboxLink *link = &visited->links[i];
		OutboxGroup *group;

		if (link->group == OUTBOX_NIL || link->next == OUTBOX_NIL)
			continue;
		group = outbox_group_at(link->group);
		unlist_lane(group, lane);
		list_lane(group, lane);
	}
}

/*
 * A lane for which the time has come to have something to do; OUTBOX_NIL if
 * there is none, or none left.
 */
int
outbox_agenda_pop(OutboxAgenda *agenda, TimestampTz now)
{
	int			lane = agenda->wake_root;
	OutboxLane *popped;

	if (lane == OUTBOX_NIL ||
		outbox_timer_first(lane, OUTBOX_TIMER_WAKE) > now)
		return OUTBOX_NIL;
	popped = outbox_lane_at(lane);
	if (popped->recheck_at <= now)
	{
		popped->recheck_at = DT_NOEND;
		outbox_lane_call(popped);
	}
	outbox_agenda_update(agenda, lane, now);
	Assert(popped->due);
	return lane;
}

/* When does something in the table become due that is not yet? */
TimestampTz
outbox_agenda_next_time(const OutboxAgenda *agenda)
{
	return outbox_timer_first(agenda->wake_root, OUTBOX_TIMER_WAKE);
}

/* When does the first lease end, or has it ended? */
TimestampTz
outbox_agenda_next_lease(const OutboxAgenda *agenda)
{
	return outbox_timer_first(agenda->lease_root, OUTBOX_TIMER_LEASE);
}

/* ---------------------------------------------------------------------- */
/* Choosing lanes                                                         */
/* ---------------------------------------------------------------------- */

/* Picks being made. */
typedef struct Picker
{
	OutboxPick *picks;
	int			max;
	int			n;
	int			total;
	TimestampTz now;
} Picker;

static void
pick_lane(Picker *picker, const OutboxLane *lane)
{
	OutboxPick *pick;

	picker->total++;
	if (picker->n == picker->max)
		return;
	pick = &picker->picks[picker->n++];
	pick->place = lane->place;
	pick->token = lane->token;
	pick->first = outbox_lane_first_key(lane, picker->now);
	pick->busy = lane->nscans[0] > 0 || lane->nscans[1] > 0;
}

/*
 * Pick the lanes of a group that are due and pass the filter.  If only_own is
 * not set, then parts that all may visit are picked with their lanes.
 */
static void
pick_from_group(Picker *picker, int group, const OutboxLaneFilter *filter,
				bool only_own)
{
	const OutboxGroup *have;
	int			next;

	if (group == OUTBOX_NIL)
		return;
	have = outbox_group_at(group);
	for (int lane = have->due_first; lane != OUTBOX_NIL; lane = next)
	{
		OutboxLane *due = outbox_lane_at(lane);

		next = link_of(due, have->kind)->next;
		if (picker->n == picker->max)
		{
			/* how many more there are is not worth looking at each */
			picker->total += have->ndue;
			return;
		}
		if (!outbox_place_wanted(filter, &due->place) ||
			(due->token != 0 && due->shared && !only_own))
			continue;
		pick_lane(picker, due);
		for (int part = due->first_part; !only_own && part != OUTBOX_NIL;
			 part = outbox_lane_at(part)->next_part)
		{
			if (outbox_lane_at(part)->due)
				pick_lane(picker, outbox_lane_at(part));
		}
	}
}

/*
 * Pick the lanes in which there is something to do for a claim by the owner
 * "token", at most "max"; how many.  *total is how many there are, or, if that
 * is more than max, at least that many.  only_own: leave out what other owners
 * are preferred for.
 */
int
outbox_agenda_pick(OutboxAgenda *agenda, const OutboxLaneFilter *filter,
				   uint64 token, bool only_own, TimestampTz now,
				   OutboxPick *picks, int max, int *total)
{
	Picker		picker = {.picks = picks,.max = max,.now = now};
	int			kind = outbox_agenda_kind(filter);

	if ((agenda->kinds & (1 << kind)) == 0)
		pick_from_group(&picker, outbox_agenda_group(agenda, 0, 0, false),
						filter, only_own);
	else
	{
		OutboxPlace place = {
			.namespace_hash = filter->namespace_hash != NULL ? *filter->namespace_hash : 0,
			.tenant_hash = filter->tenant_hash != NULL ? *filter->tenant_hash : 0
		};
		int			ntopics = filter->topic_hashes != NULL ? filter->ntopics : 1;

		for (int i = 0; i < ntopics; i++)
		{
			if (filter->topic_hashes != NULL)
				place.topic_hash = filter->topic_hashes[i];
			pick_from_group(&picker,
							outbox_agenda_group(agenda, kind,
												outbox_agenda_hash(kind, &place),
												false),
							filter, only_own);
		}
	}
	pick_from_group(&picker,
					outbox_agenda_group(agenda, OUTBOX_BY_TOKEN, token, false),
					filter, only_own);
	*total = picker.total;
	return picker.n;
}

/* Pick the lanes in which leases end, or have ended, by "until". */
int
outbox_agenda_pick_leases(OutboxAgenda *agenda, TimestampTz until,
						  OutboxPick *picks, int max)
{
	int			root = agenda->lease_root;
	int			n = 0;

	for (int lane = outbox_timer_next(root, OUTBOX_TIMER_LEASE, OUTBOX_NIL, until);
		 lane != OUTBOX_NIL && n < max;
		 lane = outbox_timer_next(root, OUTBOX_TIMER_LEASE, lane, until))
	{
		const OutboxLane *leased = outbox_lane_at(lane);

		if (leased->lease.at <= until)
			picks[n++] = OUTBOX_MAKE(OutboxPick,.place = leased->place,
									 .token = leased->token,
									 .first = OUTBOX_KEY_MIN);
	}
	return n;
}

/* Is something due in a group, in a lane whose topic is not paused? */
static bool
group_is_due(const OutboxGroup *have, const OutboxTopicKeys *paused)
{
	if (paused->n == 0)
		return have->ndue > 0;
	for (int lane = have->due_first; lane != OUTBOX_NIL;
		 lane = link_of(outbox_lane_at(lane), have->kind)->next)
	{
		int64		topic = outbox_place_topic_key(&outbox_lane_at(lane)->place);

		if (!outbox_topic_keys_have(paused, topic))
			return true;
	}
	return false;
}

static TimestampTz
group_time(int group, const OutboxTopicKeys *paused)
{
	const OutboxGroup *have;
	TimestampTz first = DT_NOEND;

	if (group == OUTBOX_NIL)
		return DT_NOEND;
	have = outbox_group_at(group);
	if (group_is_due(have, paused))
		return DT_NOBEGIN;
	for (int lane = have->idle_first; lane != OUTBOX_NIL;
		 lane = link_of(outbox_lane_at(lane), have->kind)->next)
	{
		const OutboxTimer *wake = &outbox_lane_at(lane)->wake;

		if (wake->prev != OUTBOX_NIL)
			first = Min(first, wake->at);
	}
	return first;
}

/*
 * When does something become due in the lanes of these topics, or in any if
 * there are none in the filter?  DT_NOBEGIN if something is due now.  What is
 * due in paused topics does not count; what will be may count.  Reads all lanes
 * of the topics, and those that are due if anything is paused.
 */
TimestampTz
outbox_agenda_time_of(OutboxAgenda *agenda, const OutboxLaneFilter *filter,
					  const OutboxTopicKeys *paused)
{
	int			kind = outbox_agenda_kind(filter);
	TimestampTz first = DT_NOEND;

	Assert(filter->tenant_hash == NULL);
	if (filter->topic_hashes == NULL)
	{
		int			all = outbox_agenda_group(agenda, 0, 0, false);

		return all != OUTBOX_NIL && group_is_due(outbox_group_at(all), paused) ?
			DT_NOBEGIN : outbox_agenda_next_time(agenda);
	}
	if (!outbox_agenda_keep(agenda, kind))
		return DT_NOBEGIN;
	for (int i = 0; i < filter->ntopics; i++)
	{
		OutboxPlace place = {
			.namespace_hash = filter->namespace_hash != NULL ? *filter->namespace_hash : 0,
			.topic_hash = filter->topic_hashes[i]
		};

		first = Min(first,
					group_time(outbox_agenda_group(agenda, kind,
												   outbox_agenda_hash(kind, &place),
												   false), paused));
	}
	return first;
}

/* ---------------------------------------------------------------------- */
/* Lanes that wait for transactions                                       */
/* ---------------------------------------------------------------------- */

static int *
blockers_of(OutboxAgenda *agenda, FullTransactionId xid)
{
	return &agenda->blockers[XidFromFullTransactionId(xid) %
							 OUTBOX_BLOCKER_CHAINS];
}

/* Nobody will report the end of this transaction; false if there is no room. */
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

/* Go from one of these to the next; *next counts up from 0. */
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

/* There is no room to note what the lane waits for: look at it again soon. */
static void
poll_lane(OutboxLane *lane)
{
	outbox_lane_call(lane);
	lane->recheck_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												   outbox_poll_interval);
}

/*
 * Have a lane called when a transaction, by its topmost id, has ended.  The
 * caller must look afterwards whether it has ended already, and update the lane.
 * Without room for that, the lane is visited again and again.
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
 * Go from lane to lane of those that wait for this transaction, beginning with
 * *cell being OUTBOX_NIL; OUTBOX_NIL at the end.  A lane may have been removed,
 * and another be in its place.
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

/* The transaction has ended, and no lane waits for it any more. */
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

/* Forget which lanes wait for transactions. */
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
