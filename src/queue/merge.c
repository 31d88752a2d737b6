/*
 * merge.c
 *	  Visiting the messages of many lanes in one order.
 *
 * The agenda says which lanes have something to do.  As long as these are few,
 * their messages are visited in the order of their keys, minus the boost for
 * their priority, across all lanes: each lane is a source, and the source with
 * the smallest key is visited next.  The scan of a lane begins only when the
 * lane comes first; until then it is represented by a lower bound for the key
 * of its first message.
 *
 * If many lanes have something to do, they are visited one after the other,
 * least recently visited ones first, until there is enough.  In most visits
 * those with a priority above 0 come before the others.  Lanes that another
 * scan is visiting come last, because that scan takes what this one would.
 *
 * Streams add sources of their own: the message behind one that was taken.
 */
#include "postgres.h"

#include "miscadmin.h"

#include "outbox.h"
#include "queue/merge.h"
#include "queue/walk.h"
#include "shmem/agenda.h"
#include "shmem/directory.h"
#include "shmem/lane.h"
#include "shmem/lane_memory.h"
#include "shmem/lane_publish.h"
#include "shmem/lane_xact.h"
#include "shmem/sleepers.h"
#include "util/grow.h"
#include "util/guc.h"
#include "util/hash.h"

/* With more lanes than this, messages are in order only within each lane. */
#define MAX_IN_ORDER 256
#define FEW_LANES 8

/* Topics and lanes examined at a time while the agenda's lock is held. */
#define TOPICS_AT_A_TIME 256
#define LANES_AT_A_TIME 32

/* Maximum number of walks that keep their scans open. */
#define MAX_OPEN_WALKS 64

/* ---------------------------------------------------------------------- */
/* Sources                                                                */
/* ---------------------------------------------------------------------- */

/*
 * The sources form a heap with the smallest key on top.  (lib/binaryheap needs
 * to know their maximum number in advance.)
 */
static void
add_source(OutboxMerge *merge, const OutboxSource *source)
{
	int			at;

	outbox_grow(merge->sources, merge->nsources, merge->max_sources);
	at = merge->nsources++;
	while (at > 0 &&
		   outbox_ready_key_lt(source->order, merge->sources[(at - 1) / 2].order))
	{
		merge->sources[at] = merge->sources[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	merge->sources[at] = *source;
}

/* Remove the source with the smallest key, and return it. */
static OutboxSource
take_first(OutboxMerge *merge)
{
	OutboxSource *sources = merge->sources;
	OutboxSource first = sources[0];
	OutboxSource last = sources[--merge->nsources];
	int			at = 0;

	for (;;)
	{
		int			child = 2 * at + 1;

		if (child + 1 < merge->nsources &&
			outbox_ready_key_lt(sources[child + 1].order, sources[child].order))
			child++;
		if (child >= merge->nsources ||
			!outbox_ready_key_lt(sources[child].order, last.order))
			break;
		sources[at] = sources[child];
		at = child;
	}
	sources[at] = last;
	return first;
}

/*
 * The key to sort by: a message of priority p is handed out as if it had
 * become due p times the boost earlier.
 */
static OutboxReadyKey
order_of(OutboxReadyKey key, int priority)
{
	if (priority != 0 && key.at != PG_INT64_MIN && key.at != PG_INT64_MAX)
		key.at -= (int64) priority * outbox_priority_boost * 1000;
	return key;
}

/* Have the message behind one that was taken visited, too. */
void
outbox_merge_add_follower(OutboxMerge *merge, OutboxReadyKey key, int priority,
						  OutboxFollower *follower)
{
	OutboxSource source = {.key = key,.follower = follower};

	source.order = order_of(key, priority);
	add_source(merge, &source);
}

/*
 * Remove and return a follower that was not visited; NULL if there is none
 * left.
 */
OutboxFollower *
outbox_merge_take_follower(OutboxMerge *merge)
{
	while (merge->nsources > 0)
	{
		OutboxSource *last = &merge->sources[--merge->nsources];

		if (last->follower != NULL)
			return last->follower;
	}
	return NULL;
}

/* ---------------------------------------------------------------------- */
/* Walking                                                                */
/* ---------------------------------------------------------------------- */

/* Add a walk that stands on a message as a source. */
static void
add_walk(OutboxMerge *merge, OutboxWalk *walk)
{
	OutboxSource source = {.key = walk->key,.walk = walk};

	source.order = order_of(walk->key, walk->work.place.priority);
	add_source(merge, &source);
}

/*
 * Advance a walk to the next message of its lane, and add it as a source if
 * there is one.
 */
static void
walk_on(OutboxMerge *merge, OutboxWalk *walk)
{
	if (!outbox_walk_next(walk))
	{
		merge->nopen--;
		return;
	}
	add_walk(merge, walk);
	if (merge->nopen > MAX_OPEN_WALKS)
	{
		outbox_walk_put_aside(walk);
		merge->nopen--;
	}
}

/* Begin the walk along a lane. */
static void
begin_walk(OutboxMerge *merge, const OutboxPlace *place, uint64 token)
{
	OutboxWalk *walk = palloc_object(OutboxWalk);

	merge->nvisited++;
	if (!outbox_walk_begin(walk, merge->store->table, place, token, merge->now,
						   OUTBOX_SCAN_CLAIM))
	{
		pfree(walk);
		return;
	}
	if (!merge->pool_open)
	{
		merge->opens(merge->arg);
		outbox_walk_pool_begin(&merge->pool, merge->queue);
		merge->pool_open = true;
	}
	outbox_walk_open(walk, &merge->pool);
	outbox_grow(merge->walks, merge->nwalks, merge->max_walks);
	merge->walks[merge->nwalks++] = walk;
	merge->nopen++;
	walk_on(merge, walk);
}

static void
visit_walk(OutboxMerge *merge, OutboxWalk *walk, OutboxReadyKey key)
{
	if (walk->scan == NULL)
	{
		/* while the walk was put aside, the message may have changed */
		if (!outbox_walk_next(walk))
			return;
		merge->nopen++;
		if (outbox_ready_key_cmp(key, walk->key) != 0)
		{
			add_walk(merge, walk);
			return;
		}
	}
	merge->visits_walk(walk, merge->arg);
	walk_on(merge, walk);
}

/* Visit sources until there is enough, or no source is left. */
static void
visit_sources(OutboxMerge *merge)
{
	while (merge->nsources > 0 && !merge->has_enough(merge->arg))
	{
		OutboxSource source = take_first(merge);

		CHECK_FOR_INTERRUPTS();
		if (source.pick != NULL)
			begin_walk(merge, &source.pick->place, source.pick->token);
		else if (source.walk != NULL)
			visit_walk(merge, source.walk, source.key);
		else
			merge->visits_follower(source.follower, merge->arg);
	}
}

/* End all walks; none of them may still be a source. */
static void
end_walks(OutboxMerge *merge)
{
	for (int i = 0; i < merge->nwalks; i++)
	{
		merge->nleft = Max(merge->nleft, merge->walks[i]->work.nleft);
		outbox_walk_end(merge->walks[i]);
		pfree(merge->walks[i]);
	}
	merge->nwalks = merge->nopen = 0;
}

/* Drop all sources but followers, when there is enough. */
static void
drop_lanes(OutboxMerge *merge)
{
	int			n = 0;

	for (int i = 0; i < merge->nsources; i++)
	{
		if (merge->sources[i].follower != NULL)
			merge->sources[n++] = merge->sources[i];
	}
	/* the heap order is no longer needed */
	merge->nsources = n;
	end_walks(merge);
}

/* ---------------------------------------------------------------------- */
/* Choosing lanes                                                         */
/* ---------------------------------------------------------------------- */

/*
 * Pick at most "max" lanes that have something to do.  Returns how many;
 * *total is set to approximately how many there are.
 */
static int
pick_lanes(OutboxMerge *merge, OutboxLanePick which, OutboxPick *picks, int max,
		   int *total)
{
	OutboxLaneFilter some = *merge->filter;
	int			ntopics = some.topic_hashes != NULL ? some.ntopics : 1;
	int			n = 0;

	*total = 0;
	for (int from = 0; from < ntopics; from += TOPICS_AT_A_TIME)
	{
		OutboxAgenda *agenda = outbox_agenda_lock(merge->store->table,
												  LW_EXCLUSIVE);
		int			sum;

		if (agenda == NULL)
			return n;
		if (some.topic_hashes != NULL)
		{
			some.topic_hashes = merge->filter->topic_hashes + from;
			some.ntopics = Min(ntopics - from, TOPICS_AT_A_TIME);
		}
		(void) outbox_agenda_keep(agenda, outbox_agenda_kind(&some));
		outbox_lanes_look_at_silent(agenda);
		outbox_sleepers_call_due(agenda, merge->now);
		n += outbox_agenda_pick(agenda, &some, which, merge->token,
								merge->only_own, merge->now, picks + n, max - n,
								&sum);
		LWLockRelease(&agenda->lock);
		*total += sum;
		CHECK_FOR_INTERRUPTS();
	}
	return n;
}

/* A lane is skipped: let it be the last to be picked again. */
static void
postpone(OutboxMerge *merge, const OutboxPick *pick)
{
	OutboxAgenda *agenda = outbox_agenda_lock_to_report(merge->store->table);
	int			lane;

	if (agenda == NULL)
		return;
	lane = outbox_lane_find(agenda->number, &pick->place, pick->token);
	if (lane != OUTBOX_NIL)
		outbox_agenda_rotate(agenda, lane);
	LWLockRelease(&agenda->lock);
}

static bool
is_skipped(OutboxMerge *merge, const OutboxPlace *place)
{
	if (merge->skips == NULL || !merge->skips(place, merge->arg))
		return false;
	merge->nskipped++;
	return true;
}

static bool
is_picked(const OutboxPick *picks, int npicks, const OutboxPlace *place)
{
	for (int i = 0; i < npicks; i++)
	{
		if (picks[i].token == 0 && outbox_place_equal(&picks[i].place, place))
			return true;
	}
	return false;
}

/*
 * Add the lanes in which this transaction has made something claimable, which
 * shared memory does not know before it commits.
 */
static void
add_own_lanes(OutboxMerge *merge, const OutboxPick *picks, int npicks)
{
	OutboxPlace last = {.lane = -1};
	OutboxPlace place;
	OutboxReadyKey lo;
	OutboxReadyKey hi;
	int			next = 0;

	while (outbox_lane_next_noted(merge->store->table, merge->now, &next, &place,
								  &lo, &hi))
	{
		OutboxSource source = {.key = OUTBOX_READY_KEY_MIN,.order = OUTBOX_READY_KEY_MIN};

		if (outbox_place_equal(&place, &last) ||
			!outbox_place_wanted(merge->filter, &place) ||
			is_picked(picks, npicks, &place) || is_skipped(merge, &place))
			continue;
		last = place;
		source.pick = palloc0_object(OutboxPick);
		source.pick->place = place;
		add_source(merge, &source);
	}
}

/* Few lanes: visit all of them, merging their messages. */
static void
visit_in_order(OutboxMerge *merge, OutboxPick *picks, int npicks)
{
	add_own_lanes(merge, picks, npicks);
	for (int i = 0; i < npicks; i++)
	{
		OutboxSource source = {.key = picks[i].first,.pick = &picks[i]};

		source.order = order_of(source.key, picks[i].place.priority);
		if (!is_skipped(merge, &picks[i].place))
			add_source(merge, &source);
	}
	visit_sources(merge);
	drop_lanes(merge);
}

static void
visit_alone(OutboxMerge *merge, const OutboxPlace *place, uint64 token)
{
	begin_walk(merge, place, token);
	visit_sources(merge);
	drop_lanes(merge);
}

/*
 * Visit all lanes of one kind, one after the other.  Those that other scans
 * are visiting are skipped, unless busy_too is set.
 */
static void
visit_each(OutboxMerge *merge, OutboxLanePick which, bool busy_too)
{
	OutboxPick	picks[LANES_AT_A_TIME];
	int			left;
	int			total;

	(void) pick_lanes(merge, which, picks, 0, &left);
	while (left > 0 && !merge->has_enough(merge->arg))
	{
		int			n = pick_lanes(merge, which, picks, LANES_AT_A_TIME, &total);

		if (n == 0)
			break;
		for (int i = 0; i < n && !merge->has_enough(merge->arg); i++)
		{
			if (is_skipped(merge, &picks[i].place) ||
				(picks[i].busy && !busy_too))
				postpone(merge, &picks[i]);
			else
				visit_alone(merge, &picks[i].place, picks[i].token);
		}
		left -= n;
	}
}

/* Should lanes with a priority above 0 be visited first this time? */
static bool
begins_with_urgent(OutboxMerge *merge)
{
	OutboxAgenda *agenda = outbox_agenda_lock_to_report(merge->store->table);
	bool		result;

	if (agenda == NULL)
		return false;
	result = outbox_agenda_urgent_first(agenda);
	LWLockRelease(&agenda->lock);
	return result;
}

/* Many lanes: visit them one after the other. */
static void
visit_in_turn(OutboxMerge *merge)
{
	bool		urgent = begins_with_urgent(merge);
	OutboxLanePick first = urgent ? OUTBOX_PICK_URGENT : OUTBOX_PICK_OTHERS;
	OutboxLanePick second = urgent ? OUTBOX_PICK_OTHERS : OUTBOX_PICK_URGENT;

	add_own_lanes(merge, NULL, 0);
	visit_sources(merge);
	drop_lanes(merge);
	visit_each(merge, first, false);
	visit_each(merge, second, false);
	/* once more, including those that other scans visit */
	visit_each(merge, first, true);
	visit_each(merge, second, true);
}

/* ---------------------------------------------------------------------- */
/* The visit                                                              */
/* ---------------------------------------------------------------------- */

/* Visit lanes that have no memory: a few, or all of them. */
static void
visit_untracked(OutboxMerge *merge, bool whole)
{
	OutboxPlace *untracked;
	int			n;

	merge->opens(merge->arg);
	outbox_walk_list(merge->queue, merge->filter, whole, &untracked, &n);
	for (int i = 0; i < n; i++)
	{
		OutboxPick *pick = palloc0_object(OutboxPick);
		OutboxSource source = {
			.key = OUTBOX_READY_KEY_MIN,.order = OUTBOX_READY_KEY_MIN,.pick = pick
		};

		pick->place = untracked[i];
		if (!is_skipped(merge, &untracked[i]))
			add_source(merge, &source);
	}
	visit_sources(merge);
	drop_lanes(merge);
}

/* Visit the lanes that have something to do according to shared memory. */
static void
visit_tracked(OutboxMerge *merge)
{
	OutboxPick	few[FEW_LANES];
	OutboxPick *picks = few;
	int			npicks;
	int			total;

	npicks = pick_lanes(merge, OUTBOX_PICK_ALL, picks, FEW_LANES, &total);
	if (total > FEW_LANES)
	{
		picks = palloc_array(OutboxPick, MAX_IN_ORDER);
		npicks = pick_lanes(merge, OUTBOX_PICK_ALL, picks, MAX_IN_ORDER, &total);
	}
	if (total <= MAX_IN_ORDER)
		visit_in_order(merge, picks, npicks);
	else
		visit_in_turn(merge);
	if (picks != few)
		pfree(picks);
}

/*
 * Visit what there is to do in all lanes that pass the filter, until there is
 * enough.  The caller must fetch the followers that were not visited
 * (outbox_merge_take_follower), and then call outbox_merge_end.
 *
 * A scan takes only a limited number of marks of a lane.  They become the last
 * in order, so if more were due, and there is not enough, the lanes are
 * visited again.
 *
 * Each call visits a few of the lanes without memory, so that they are not
 * starved if the others always have enough; and all of them if there is not
 * enough.
 */
void
outbox_merge_run(OutboxMerge *merge)
{
	Oid			relid = merge->store->table;
	int			left;

	if (outbox_walk_must_list(relid))
		visit_untracked(merge, false);
	if (!outbox_walk_uses_memory(relid))
		return;
	if (!merge->has_enough(merge->arg))
		visit_tracked(merge);
	for (left = merge->nleft; left > 0 && !merge->has_enough(merge->arg);
		 left = Min(left - OUTBOX_SCAN_MARKS, merge->nleft))
	{
		CHECK_FOR_INTERRUPTS();
		merge->nleft = 0;
		visit_tracked(merge);
	}
	if (!merge->has_enough(merge->arg) &&
		outbox_walk_must_list_all(relid, merge->filter))
	{
		visit_untracked(merge, true);
		/* some of the lanes that were listed have got memory */
		if (!merge->has_enough(merge->arg))
			visit_tracked(merge);
	}
}

/* End the visit.  All followers must have been fetched. */
void
outbox_merge_end(OutboxMerge *merge)
{
	Assert(merge->nwalks == 0);
	if (merge->pool_open)
		outbox_walk_pool_end(&merge->pool);
}
