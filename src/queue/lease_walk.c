/*
 * lease_walk.c
 *	  Visiting the leases of a table in all lanes.
 *
 * The agenda knows which lanes have leases, and when the last of each lane
 * ends.  It does not know leases of transactions in progress.  Those of our
 * own transaction are visited, too, in the lanes in which it has claimed.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "outbox.h"
#include "queue/lease_walk.h"
#include "queue/walk.h"
#include "shmem/agenda.h"
#include "shmem/directory.h"
#include "shmem/lane.h"
#include "shmem/lane_xact.h"
#include "table/table.h"
#include "util/grow.h"
#include "util/hash.h"

/* Number of lanes to fetch at a time. */
#define LEASED_AT_A_TIME 256

/* Walk along one lane once; false if the visitor has returned false. */
static bool
walk_leases_once(OutboxWalkPool *pool, const OutboxPlace *place, TimestampTz now,
				 OutboxScanKind kind, OutboxWalkVisit visit, void *arg,
				 int *nleft)
{
	OutboxWalk	walk;
	bool		go_on = true;

	*nleft = 0;
	if (!outbox_walk_begin(&walk, RelationGetRelid(pool->queue->rel), place, 0,
						   now, kind))
		return true;
	outbox_walk_open(&walk, pool);
	while (go_on && outbox_walk_next(&walk))
	{
		CHECK_FOR_INTERRUPTS();
		go_on = visit(&walk, arg);
	}
	*nleft = walk.work.nleft;
	outbox_walk_end(&walk);
	return go_on;
}

/* The same, repeated until all that is due now is visited. */
static bool
walk_leases(OutboxWalkPool *pool, const OutboxPlace *place, TimestampTz now,
			OutboxScanKind kind, OutboxWalkVisit visit, void *arg)
{
	int			nleft;
	bool		go_on = walk_leases_once(pool, place, now, kind, visit, arg, &nleft);

	for (int left = nleft; go_on && left > 0;
		 left = Min(left - OUTBOX_SCAN_MARKS, nleft))
	{
		CHECK_FOR_INTERRUPTS();
		go_on = walk_leases_once(pool, place, now, kind, visit, arg, &nleft);
	}
	return go_on;
}

/*
 * List the lanes that have leases, or may have; returns how many.  Only leases
 * that end by "until" count.
 */
static int
lanes_with_leases(Oid relid, TimestampTz until, OutboxPick **picks)
{
	OutboxAgenda *agenda;
	int			max = LEASED_AT_A_TIME;
	int			n;

	/* their number may grow while we allocate memory */
	for (;;)
	{
		*picks = palloc_array(OutboxPick, max);
		agenda = outbox_agenda_lock(relid, LW_SHARED);
		if (agenda == NULL)
			return 0;
		n = outbox_agenda_pick_leases(agenda, until, *picks, max);
		LWLockRelease(&agenda->lock);
		if (n < max)
			return n;
		pfree(*picks);
		max *= 2;
	}
}

static bool
is_picked(const OutboxPick *picks, int npicks, const OutboxPlace *place)
{
	for (int i = 0; i < npicks; i++)
	{
		if (outbox_place_equal(&picks[i].place, place))
			return true;
	}
	return false;
}

static bool
is_listed(const OutboxPlace *list, int n, const OutboxPlace *place)
{
	for (int i = 0; i < n; i++)
	{
		if (outbox_place_equal(&list[i], place))
			return true;
	}
	return false;
}

/*
 * Visit the lanes in which this transaction has claimed, too: shared memory
 * learns of its leases only when it has committed.
 */
static void
add_own_lanes(Oid relid, const OutboxPlace *list, int nlist,
			  OutboxPick **picks, int *npicks)
{
	int			max = *picks != NULL ? Max(*npicks, LEASED_AT_A_TIME) : 0;
	int			next = 0;
	OutboxPlace place;

	while (outbox_lane_next_claimed_place(relid, &next, &place))
	{
		if (is_picked(*picks, *npicks, &place) ||
			is_listed(list, nlist, &place))
			continue;
		outbox_grow(*picks, *npicks, max);
		(*picks)[(*npicks)++] = OUTBOX_MAKE(OutboxPick,.place = place);
	}
}

/*
 * Visit the leases of all lanes: those that have ended, or all, depending on
 * "kind".
 */
void
outbox_walk_leases(OutboxTable *queue, TimestampTz now, OutboxScanKind kind,
				   OutboxWalkVisit visit, void *arg)
{
	Oid			relid = RelationGetRelid(queue->rel);
	OutboxLaneFilter all = {.any_subscriber = true};
	OutboxWalkPool pool;
	OutboxPlace *untracked = NULL;
	int			nuntracked = 0;
	OutboxPick *picks = NULL;
	int			npicks = 0;
	TimestampTz until = kind == OUTBOX_SCAN_LEASES ? DT_NOEND : now;
	OutboxPlace last = {.lane = -1};
	OutboxPlace place;
	OutboxReadyKey lo;
	OutboxReadyKey hi;
	int			next = 0;
	bool		go_on = true;

	if (outbox_walk_must_list(relid))
		outbox_walk_list(queue, &all, kind == OUTBOX_SCAN_LEASES, &untracked,
						 &nuntracked);
	if (outbox_walk_uses_memory(relid))
		npicks = lanes_with_leases(relid, until, &picks);
	if (kind == OUTBOX_SCAN_LEASES)
		add_own_lanes(relid, untracked, nuntracked, &picks, &npicks);
	outbox_walk_pool_begin(&pool, queue);
	for (int i = 0; go_on && i < npicks; i++)
		go_on = walk_leases(&pool, &picks[i].place, now, kind, visit, arg);
	/* leases of this transaction, in lanes that have no memory */
	while (go_on && nuntracked == 0 &&
		   outbox_lane_next_noted(relid, until, &next, &place, &lo, &hi))
	{
		if (outbox_place_equal(&place, &last) ||
			is_picked(picks, npicks, &place))
			continue;
		last = place;
		go_on = walk_leases(&pool, &place, now, kind, visit, arg);
	}
	for (int i = 0; go_on && i < nuntracked; i++)
		go_on = walk_leases(&pool, &untracked[i], now, kind, visit, arg);
	outbox_walk_pool_end(&pool);
}

/* Visit the leases of one lane. */
void
outbox_walk_lane_leases(OutboxTable *queue, const OutboxPlace *place,
						TimestampTz now, OutboxWalkVisit visit, void *arg)
{
	OutboxWalkPool pool;

	outbox_walk_pool_begin(&pool, queue);
	(void) walk_leases(&pool, place, now, OUTBOX_SCAN_LEASES, visit, arg);
	outbox_walk_pool_end(&pool);
}
