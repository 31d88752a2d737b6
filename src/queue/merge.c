/*
 * merge.c
 *	  Visiting the messages of many lanes in one order.
 *
 * The agenda says in which lanes there is something to do.  As long as these are
 * few, their messages are visited in the order of their keys, whatever lane they
 * are in: all lanes are sources, and the one with the smallest key is visited
 * next.  A lane is begun only when it is its turn; until then a smaller key than
 * that of its first message stands for it.
 *
 * Where there is something to do in many lanes, they are visited one after the
 * other, those first that were visited longest ago, until there is enough.  Lanes
 * in which another scan is under way come last, because that one takes what this
 * one would.
 *
 * Messages of streams add sources of their own: the one behind a message that was
 * taken.
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
#include "shmem/waiters.h"
#include "util/grow.h"
#include "util/hash.h"

/* With more lanes than this, there is an order only within each. */
#define MAX_IN_ORDER 256
#define FEW_LANES 8

/* Topics and lanes that are looked at under the agenda's lock at a time. */
#define TOPICS_AT_A_TIME 256
#define LANES_AT_A_TIME 32

/* More walks than this do not keep their scans open. */
#define MAX_OPEN_WALKS 64

/* ---------------------------------------------------------------------- */
/* Sources                                                                */
/* ---------------------------------------------------------------------- */

/*
 * The sources form a heap with the smallest key on top.  (There is no bound
 * to their number to be known beforehand, as lib/binaryheap wants it.)
 */
static void
add_source(OutboxMerge *merge, const OutboxSource *source)
{
	int			at;

	outbox_grow(merge->sources, merge->nsources, merge->max_sources);
	at = merge->nsources++;
	while (at > 0 &&
		   outbox_key_lt(source->key, merge->sources[(at - 1) / 2].key))
	{
		merge->sources[at] = merge->sources[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	merge->sources[at] = *source;
}

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
			outbox_key_lt(sources[child + 1].key, sources[child].key))
			child++;
		if (child >= merge->nsources ||
			!outbox_key_lt(sources[child].key, last.key))
			break;
		sources[at] = sources[child];
		at = child;
	}
	sources[at] = last;
	return first;
}

/* The message behind one that was taken can be visited, too. */
void
outbox_merge_add_follower(OutboxMerge *merge, OutboxKey key,
						  OutboxFollower *follower)
{
	OutboxSource source = {.key = key,.follower = follower};

	add_source(merge, &source);
}

/* One that was not visited, when there is enough; NULL if there is none left. */
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

/* Walk to the next message of a lane; if there is one, it is a source. */
static void
walk_on(OutboxMerge *merge, OutboxWalk *walk)
{
	OutboxSource source = {.walk = walk};

	if (!outbox_walk_next(walk))
	{
		merge->nopen--;
		return;
	}
	source.key = walk->key;
	add_source(merge, &source);
	if (merge->nopen > MAX_OPEN_WALKS)
	{
		outbox_walk_put_aside(walk);
		merge->nopen--;
	}
}

/* Begin a lane. */
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
visit_walk(OutboxMerge *merge, OutboxWalk *walk, OutboxKey key)
{
	if (walk->scan == NULL)
	{
		/* much can have happened to a message whose walk was put aside */
		if (!outbox_walk_next(walk))
			return;
		merge->nopen++;
		if (outbox_key_cmp(key, walk->key) != 0)
		{
			OutboxSource source = {.key = walk->key,.walk = walk};

			add_source(merge, &source);
			return;
		}
	}
	merge->visits_walk(walk, merge->arg);
	walk_on(merge, walk);
}

/* Visit sources until there is enough, or none is left. */
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

/* End the walks, of which none is a source any more. */
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

/* There is enough: only followers are left to be taken. */
static void
drop_lanes(OutboxMerge *merge)
{
	int			n = 0;

	for (int i = 0; i < merge->nsources; i++)
	{
		if (merge->sources[i].follower != NULL)
			merge->sources[n++] = merge->sources[i];
	}
	/* any order will do */
	merge->nsources = n;
	end_walks(merge);
}

/* ---------------------------------------------------------------------- */
/* Choosing lanes                                                         */
/* ---------------------------------------------------------------------- */

/*
 * Pick lanes in which there is something to do, at most "max".  Returns how many;
 * *total is how many there are, more or less.
 */
static int
pick_lanes(OutboxMerge *merge, OutboxPick *picks, int max, int *total)
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
		outbox_waiters_call_due(agenda, merge->now);
		n += outbox_agenda_pick(agenda, &some, merge->token, merge->only_own,
								merge->now, picks + n, max - n, &sum);
		LWLockRelease(&agenda->lock);
		*total += sum;
		CHECK_FOR_INTERRUPTS();
	}
	return n;
}

/* A lane is not visited now: let it be the last to be picked again. */
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
 * Add the lanes in which this transaction itself has made something claimable, and
 * of which nobody else knows yet.
 */
static void
add_own_lanes(OutboxMerge *merge, const OutboxPick *picks, int npicks)
{
	OutboxPlace last = {.lane = -1};
	OutboxPlace place;
	OutboxKey	lo;
	OutboxKey	hi;
	int			next = 0;

	while (outbox_lane_next_noted(merge->store->table, merge->now, &next, &place,
								  &lo, &hi))
	{
		OutboxSource source = {.key = OUTBOX_KEY_MIN};

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

/* Few lanes: visit them all, side by side. */
static void
visit_in_order(OutboxMerge *merge, OutboxPick *picks, int npicks)
{
	add_own_lanes(merge, picks, npicks);
	for (int i = 0; i < npicks; i++)
	{
		OutboxSource source = {.key = picks[i].first,.pick = &picks[i]};

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

/* Many lanes: visit one after the other. */
static void
visit_in_turn(OutboxMerge *merge, int nlanes)
{
	OutboxPick	picks[LANES_AT_A_TIME];
	bool		busy_too = false;
	int			left = nlanes;

	add_own_lanes(merge, picks, 0);
	visit_sources(merge);
	drop_lanes(merge);
	while (!merge->has_enough(merge->arg))
	{
		int			total;
		int			n = pick_lanes(merge, picks, LANES_AT_A_TIME, &total);
		bool		any = false;

		for (int i = 0; i < n && !merge->has_enough(merge->arg); i++)
		{
			if (is_skipped(merge, &picks[i].place) ||
				(picks[i].busy && !busy_too))
				postpone(merge, &picks[i]);
			else
			{
				visit_alone(merge, &picks[i].place, picks[i].token);
				any = true;
			}
			left--;
		}
		if (n == 0 || (left <= 0 && busy_too && !any))
			break;
		if (left <= 0)
		{
			/* once more, with those that were being scanned */
			if (busy_too)
				break;
			busy_too = true;
			left = nlanes;
		}
	}
}

/* ---------------------------------------------------------------------- */
/* The visit                                                              */
/* ---------------------------------------------------------------------- */

/* Lanes that have no place in memory: a few, or all of them. */
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
		OutboxSource source = {.key = OUTBOX_KEY_MIN,.pick = pick};

		pick->place = untracked[i];
		if (!is_skipped(merge, &untracked[i]))
			add_source(merge, &source);
	}
	visit_sources(merge);
	drop_lanes(merge);
}

/* Visit the lanes of which memory says that there is something to do in them. */
static void
visit_tracked(OutboxMerge *merge)
{
	OutboxPick	few[FEW_LANES];
	OutboxPick *picks = few;
	int			npicks;
	int			total;

	npicks = pick_lanes(merge, picks, FEW_LANES, &total);
	if (total > FEW_LANES)
	{
		picks = palloc_array(OutboxPick, MAX_IN_ORDER);
		npicks = pick_lanes(merge, picks, MAX_IN_ORDER, &total);
	}
	if (total <= MAX_IN_ORDER)
		visit_in_order(merge, picks, npicks);
	else
		visit_in_turn(merge, total);
	if (picks != few)
		pfree(picks);
}

/*
 * Visit what there is to do in all lanes that pass the filter, until there is
 * enough.  Followers that were not visited are left to outbox_merge_take_follower,
 * and then the visit must be ended.
 *
 * A scan takes only so many marks of a lane along; they are the last ones then,
 * so where more were due, and there is not enough, the lanes are visited again.
 *
 * Of lanes without memory a few have their turn in each call, so that they are not
 * forgotten where the others always have enough; and all, where there is not enough.
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
		visit_untracked(merge, true);
}

void
outbox_merge_end(OutboxMerge *merge)
{
	Assert(merge->nwalks == 0);
	if (merge->pool_open)
		outbox_walk_pool_end(&merge->pool);
}
