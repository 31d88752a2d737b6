/*
 * agenda.c
 *	  Which lanes of a live table have something to do, and when.
 *
 * A claim that names no single lane must not visit all lanes, or even count
 * them.  So lanes that share a namespace, a topic, a tenant, or several of
 * these are members of a group, and each group has a list of its lanes that
 * have something to do, least recently visited first.  A claim takes lanes
 * from the list of the group that it chooses by.  If there are so many that it
 * takes them in turn, urgent lanes should come first, so they are at the
 * beginning of the list, in an order of their own.
 *
 * Groups are kept only of the kinds that claims have chosen by since the
 * table's memory was made.  The first claim to do so makes the groups of that
 * kind for all lanes, which takes some tens of milliseconds for 100,000 lanes.
 *
 * A lane gets something to do when something is reported, or when its timer
 * expires.  Timers are in one heap for all lanes of the table; another heap
 * has only the ends of leases.
 *
 * The caller must hold the agenda's lock, exclusively to change anything.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "outbox.h"
#include "shmem/agenda.h"
#include "shmem/lane_memory.h"
#include "shmem/lane_state.h"
#include "shmem/sleepers.h"
#include "shmem/timer.h"
#include "trace.h"
#include "util/hash.h"

/* One in so many visits of lanes in turn does not begin with urgent lanes. */
#define OTHERS_FIRST 4

/* Record that there is no memory for this lane. */
void
outbox_agenda_miss(OutboxAgenda *agenda, const OutboxPlace *place)
{
	agenda->misses++;
	agenda->tenant_missed |= place->tenant_hash != 0;
	agenda->priority_missed |= place->priority != 0;
}

/* ---------------------------------------------------------------------- */
/* Groups                                                                 */
/* ---------------------------------------------------------------------- */

/* The kind of groups that a claim with this filter chooses from. */
int
outbox_agenda_kind(const OutboxLaneFilter *filter)
{
	return (filter->namespace_hash != NULL ? OUTBOX_BY_NAMESPACE : 0) |
		(filter->topic_hashes != NULL ? OUTBOX_BY_TOPIC : 0) |
		(filter->tenant_hash != NULL ? OUTBOX_BY_TENANT : 0);
}

/* The hash that identifies the group of this kind to which a place belongs. */
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
	/* no claim is for the deliveries of all subscriptions */
	if (place->subscriber != 0)
		hash = (hash + (uint32) place->subscriber) * UINT64CONST(0xff51afd7ed558ccd);
	return hash;
}

/* The number of groups of this kind that have all lanes that pass a filter. */
int
outbox_filter_ngroups(const OutboxLaneFilter *filter, int kind)
{
	return outbox_filter_nsubscribers(filter) *
		((kind & OUTBOX_BY_TOPIC) != 0 ? filter->ntopics : 1);
}

/* The hash of one of these groups. */
uint64
outbox_filter_group(const OutboxLaneFilter *filter, int kind, int i)
{
	OutboxPlace place = {
		.namespace_hash = filter->namespace_hash != NULL ? *filter->namespace_hash : 0,
		.tenant_hash = filter->tenant_hash != NULL ? *filter->tenant_hash : 0
	};
	int			nsubscribers = outbox_filter_nsubscribers(filter);

	Assert(!filter->any_subscriber);
	Assert(i < outbox_filter_ngroups(filter, kind));
	place.subscriber = outbox_filter_subscriber(filter, i % nsubscribers);
	if ((kind & OUTBOX_BY_TOPIC) != 0)
		place.topic_hash = filter->topic_hashes[i / nsubscribers];
	return outbox_agenda_hash(kind, &place);
}

/* The group's number; OUTBOX_NIL if there is none and it was not made. */
int
outbox_agenda_group(OutboxAgenda *agenda, int kind, uint64 hash, bool make)
{
	int			group = outbox_group_find(agenda->number, kind, hash);

	if (group == OUTBOX_NIL && make)
		group = outbox_group_add(agenda->number, kind, hash);
	return group;
}

/* Remove a group if it is no longer needed. */
void
outbox_agenda_release_group(int group)
{
	const OutboxGroup *have = outbox_group_at(group);

	if (have->nlanes == 0 && have->nnodes == 0)
		outbox_group_remove(group);
}

/* The link of a lane for groups of this kind. */
static OutboxLink *
link_of(OutboxLane *lane, int kind)
{
	return &lane->links[kind == OUTBOX_BY_TOKEN ? 0 : kind];
}

static bool
is_urgent(const OutboxLane *lane)
{
	return lane->place.priority > 0;
}

/* The lane behind this one in the due list; the first, behind OUTBOX_NIL. */
static int
due_behind(const OutboxGroup *group, int lane)
{
	return lane == OUTBOX_NIL ? group->due_first :
		link_of(outbox_lane_at(lane), group->kind)->next;
}

/* Put a member into the list of lanes with something to do. */
static void
list_due_lane(OutboxGroup *group, int lane)
{
	bool		urgent = is_urgent(outbox_lane_at(lane));
	OutboxLink *link = link_of(outbox_lane_at(lane), group->kind);

	link->prev = urgent ? group->urgent_last : group->due_last;
	link->next = due_behind(group, link->prev);
	if (link->prev != OUTBOX_NIL)
		link_of(outbox_lane_at(link->prev), group->kind)->next = lane;
	else
		group->due_first = lane;
	if (link->next != OUTBOX_NIL)
		link_of(outbox_lane_at(link->next), group->kind)->prev = lane;
	else
		group->due_last = lane;
	group->ndue++;
	if (!urgent)
		return;
	group->urgent_last = lane;
	group->nurgent++;
}

/* Put a member into that list, or into the list of the others. */
static void
list_lane(OutboxGroup *group, int lane)
{
	OutboxLane *listed = outbox_lane_at(lane);
	OutboxLink *link = link_of(listed, group->kind);

	if (listed->due)
		list_due_lane(group, lane);
	else
	{
		link->prev = OUTBOX_NIL;
		link->next = group->idle_first;
		if (group->idle_first != OUTBOX_NIL)
			link_of(outbox_lane_at(group->idle_first), group->kind)->prev = lane;
		group->idle_first = lane;
	}
}

/* Remove a member from the list that it is in. */
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
	if (listed->due && is_urgent(listed))
	{
		if (group->urgent_last == lane)
			group->urgent_last = link->prev;
		group->nurgent--;
	}
}

/* Make a lane a member of its group of this kind; false without memory. */
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

/* Make a new lane a member of its groups; false if there is no memory. */
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

/* Remove a lane from its groups, before it is removed itself. */
void
outbox_agenda_leave(OutboxAgenda *agenda, int lane)
{
	OutboxLane *leaving = outbox_lane_at(lane);

	if (leaving->due)
		OUTBOX_TRACE_CALL("due", leaving, false);
	for (int i = 0; i < OUTBOX_LANE_KINDS; i++)
	{
		if (leaving->links[i].group != OUTBOX_NIL)
			leave_group(&leaving->links[i], lane);
	}
	outbox_timer_set(&agenda->wake_root, OUTBOX_TIMER_WAKE, lane, DT_NOEND);
	outbox_timer_set(&agenda->lease_root, OUTBOX_TIMER_LEASE, lane, DT_NOEND);
}

/* Keep groups of this kind from now on; false if there is no memory. */
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

/* Move a lane to the other list of all its groups if its state has changed. */
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
	OUTBOX_TRACE_CALL("due", changed, due);
	for (int i = 0; i < OUTBOX_LANE_KINDS; i++)
	{
		if (changed->links[i].group != OUTBOX_NIL)
			list_lane(outbox_group_at(changed->links[i].group), lane);
	}
}

/* Update lists and timers after a change of a lane. */
static void
place_lane(OutboxAgenda *agenda, int lane, TimestampTz now)
{
	OutboxLane *changed = outbox_lane_at(lane);
	TimestampTz lease;
	TimestampTz wake;

	Assert(LWLockHeldByMeInMode(&agenda->lock, LW_EXCLUSIVE));
	OUTBOX_TRACE_STATE(changed);
	outbox_lane_make_due(changed, now);
	wake = outbox_lane_next_time(changed, &lease);
	set_due(lane, outbox_lane_is_visitable(changed, now));
	/* a lane that has something to do needs no timer, except for retries */
	outbox_timer_set(&agenda->wake_root, OUTBOX_TIMER_WAKE, lane,
					 changed->due ? changed->recheck_at : wake);
	outbox_timer_set(&agenda->lease_root, OUTBOX_TIMER_LEASE, lane, lease);
}

/*
 * Update lists and timers after a change of a lane.  If its timer has expired but is
 * cleared now, because there is something to do in any case, a claim is called as if the
 * timer had fired.
 */
void
outbox_agenda_update(OutboxAgenda *agenda, int lane, TimestampTz now)
{
	bool		fires = !outbox_lane_at(lane)->due &&
	outbox_timer_at(OUTBOX_TIMER_WAKE, lane) <= now;

	place_lane(agenda, lane, now);
	if (fires && outbox_lane_at(lane)->due)
		outbox_sleepers_call_lane(agenda, lane, 1);
}

/* A scan visits this lane: move it to the end, so that others take others. */
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

/* Return a lane whose timer has expired; OUTBOX_NIL if none is left. */
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
	place_lane(agenda, lane, now);
	Assert(popped->due);
	return lane;
}

/* The next time when something in the table becomes due. */
TimestampTz
outbox_agenda_next_time(const OutboxAgenda *agenda)
{
	return outbox_timer_first(agenda->wake_root, OUTBOX_TIMER_WAKE);
}

/* The time when the first lease ends, which may be in the past. */
TimestampTz
outbox_agenda_next_lease(const OutboxAgenda *agenda)
{
	return outbox_timer_first(agenda->lease_root, OUTBOX_TIMER_LEASE);
}

/* ---------------------------------------------------------------------- */
/* Choosing lanes                                                         */
/* ---------------------------------------------------------------------- */

/* State of picking lanes. */
typedef struct Picker
{
	OutboxLanePick which;
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

/* The first lane of this kind in a group's list; OUTBOX_NIL if none is. */
static int
first_to_pick(const OutboxGroup *group, OutboxLanePick which)
{
	if (which == OUTBOX_PICK_OTHERS)
		return due_behind(group, group->urgent_last);
	return which == OUTBOX_PICK_URGENT && group->nurgent == 0 ? OUTBOX_NIL :
		group->due_first;
}

static int
number_to_pick(const OutboxGroup *group, OutboxLanePick which)
{
	if (which == OUTBOX_PICK_ALL)
		return group->ndue;
	return which == OUTBOX_PICK_URGENT ? group->nurgent :
		group->ndue - group->nurgent;
}

/*
 * Pick the lanes of a group that are due and pass the filter.  Unless only_own
 * is set, parts that all owners may visit are picked with their lanes.
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
	for (int lane = first_to_pick(have, picker->which); lane != OUTBOX_NIL;
		 lane = next)
	{
		OutboxLane *due = outbox_lane_at(lane);

		next = due_behind(have, lane);
		if (picker->n == picker->max)
		{
			/* estimate how many more there are, rather than check each */
			picker->total += number_to_pick(have, picker->which);
			return;
		}
		if (picker->which == OUTBOX_PICK_URGENT && !is_urgent(due))
			return;
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
 * Pick at most "max" lanes that have something to do for a claim by the owner
 * "token"; returns how many.  *total is set to how many there are; above
 * max it may be too high.  only_own: leave out what other owners are preferred
 * for.
 */
int
outbox_agenda_pick(OutboxAgenda *agenda, const OutboxLaneFilter *filter,
				   OutboxLanePick which, uint64 token, bool only_own,
				   TimestampTz now, OutboxPick *picks, int max, int *total)
{
	Picker		picker = {.which = which,.picks = picks,.max = max,.now = now};
	int			kind = outbox_agenda_kind(filter);

	if ((agenda->kinds & (1 << kind)) == 0)
		kind = 0;
	for (int i = 0; i < outbox_filter_ngroups(filter, kind); i++)
		pick_from_group(&picker,
						outbox_agenda_group(agenda, kind,
											outbox_filter_group(filter, kind, i),
											false),
						filter, only_own);
	pick_from_group(&picker,
					outbox_agenda_group(agenda, OUTBOX_BY_TOKEN, token, false),
					filter, only_own);
	*total = picker.total;
	return picker.n;
}

/*
 * Should a claim that visits lanes in turn begin with the urgent ones?  One in
 * OTHERS_FIRST does not, so that the others are not starved.
 */
bool
outbox_agenda_urgent_first(OutboxAgenda *agenda)
{
	return ++agenda->turns % OTHERS_FIRST != 0;
}

/* Pick the lanes that have leases which end by "until"; returns how many. */
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
									 .first = OUTBOX_READY_KEY_MIN);
	}
	return n;
}

/* Does a group have something due in a lane whose topic is not paused? */
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

/* outbox_agenda_time_of for one group. */
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
 * The time when something becomes due in the lanes of these topics, or in any
 * lane if the filter has none.  DT_NOBEGIN if something is due now.  What is
 * due in paused topics does not count; what will become due there may count.
 * Reads all lanes of the topics, and those that are due if anything is paused.
 */
TimestampTz
outbox_agenda_time_of(OutboxAgenda *agenda, const OutboxLaneFilter *filter,
					  const OutboxTopicKeys *paused)
{
	int			kind = outbox_agenda_kind(filter);
	TimestampTz first = DT_NOEND;

	Assert(filter->tenant_hash == NULL);
	if (filter->topic_hashes == NULL && filter->subscribers == NULL)
	{
		int			all = outbox_agenda_group(agenda, 0, 0, false);

		return all != OUTBOX_NIL && group_is_due(outbox_group_at(all), paused) ?
			DT_NOBEGIN : outbox_agenda_next_time(agenda);
	}
	if (!outbox_agenda_keep(agenda, kind))
		return DT_NOBEGIN;
	for (int i = 0; i < outbox_filter_ngroups(filter, kind); i++)
		first = Min(first,
					group_time(outbox_agenda_group(agenda, kind,
												   outbox_filter_group(filter, kind, i),
												   false), paused));
	return first;
}
