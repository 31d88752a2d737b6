/*
 * timer.c
 *	  Heaps of lanes, the one with the earliest time on top.
 *
 * These are pairing heaps: setting a timer costs one comparison, removing one
 * the logarithm of their number, amortized.  The server's own (pairingheap)
 * has pointers, which cannot be shared between processes that map the memory
 * at different addresses; here nodes are lanes, which are referred to by
 * number.
 *
 * A lane whose timer is not set is in no heap, and its prev is OUTBOX_NIL; the
 * root's prev is the root itself.
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "shmem/lane_memory.h"
#include "shmem/timer.h"

static OutboxTimer *
timer_of(OutboxTimerKind kind, int lane)
{
	OutboxLane *of = outbox_lane_at(lane);

	return kind == OUTBOX_TIMER_WAKE ? &of->wake : &of->lease;
}

/* Merge two heaps, either of which may be empty; returns the root. */
static int
meld(OutboxTimerKind kind, int a, int b)
{
	OutboxTimer *first;
	OutboxTimer *second;
	int			swap;

	if (a == OUTBOX_NIL || b == OUTBOX_NIL)
		return a == OUTBOX_NIL ? b : a;
	if (timer_of(kind, b)->at < timer_of(kind, a)->at)
	{
		swap = a;
		a = b;
		b = swap;
	}
	first = timer_of(kind, a);
	second = timer_of(kind, b);
	second->sibling = first->child;
	if (first->child != OUTBOX_NIL)
		timer_of(kind, first->child)->prev = b;
	second->prev = a;
	first->child = b;
	return a;
}

/* Merge a list of siblings, two by two, and then from the last to the first. */
static int
meld_siblings(OutboxTimerKind kind, int first)
{
	int			pairs = OUTBOX_NIL;
	int			root = OUTBOX_NIL;

	while (first != OUTBOX_NIL)
	{
		int			a = first;
		int			b = timer_of(kind, a)->sibling;
		int			pair;

		first = b == OUTBOX_NIL ? OUTBOX_NIL : timer_of(kind, b)->sibling;
		timer_of(kind, a)->sibling = OUTBOX_NIL;
		if (b != OUTBOX_NIL)
			timer_of(kind, b)->sibling = OUTBOX_NIL;
		pair = meld(kind, a, b);
		timer_of(kind, pair)->sibling = pairs;
		pairs = pair;
	}
	while (pairs != OUTBOX_NIL)
	{
		int			rest = timer_of(kind, pairs)->sibling;

		timer_of(kind, pairs)->sibling = OUTBOX_NIL;
		root = meld(kind, root, pairs);
		pairs = rest;
	}
	return root;
}

/* Remove a lane's timer, which must be set, from its heap. */
static void
remove_timer(int *root, OutboxTimerKind kind, int lane)
{
	OutboxTimer *timer = timer_of(kind, lane);
	int			children = meld_siblings(kind, timer->child);

	if (*root == lane)
		*root = children;
	else
	{
		OutboxTimer *prev = timer_of(kind, timer->prev);

		if (prev->child == lane)
			prev->child = timer->sibling;
		else
			prev->sibling = timer->sibling;
		if (timer->sibling != OUTBOX_NIL)
			timer_of(kind, timer->sibling)->prev = timer->prev;
		*root = meld(kind, *root, children);
	}
	if (*root != OUTBOX_NIL)
		timer_of(kind, *root)->prev = *root;
	timer->prev = timer->child = timer->sibling = OUTBOX_NIL;
}

/* Set a lane's timer, or remove it if the time is DT_NOEND. */
void
outbox_timer_set(int *root, OutboxTimerKind kind, int lane, TimestampTz at)
{
	OutboxTimer *timer = timer_of(kind, lane);

	if (timer->prev != OUTBOX_NIL)
	{
		if (timer->at == at)
			return;
		remove_timer(root, kind, lane);
	}
	if (at == DT_NOEND)
		return;
	timer->at = at;
	*root = meld(kind, *root, lane);
	timer_of(kind, *root)->prev = *root;
}

/* When a lane's timer fires; DT_NOEND if it is not set. */
TimestampTz
outbox_timer_at(OutboxTimerKind kind, int lane)
{
	const OutboxTimer *timer = timer_of(kind, lane);

	return timer->prev == OUTBOX_NIL ? DT_NOEND : timer->at;
}

/* The earliest time; DT_NOEND if no timer is set. */
TimestampTz
outbox_timer_first(int root, OutboxTimerKind kind)
{
	return root == OUTBOX_NIL ? DT_NOEND : timer_of(kind, root)->at;
}

/*
 * Iterate over the lanes of a heap, in no particular order; lane must be
 * OUTBOX_NIL at first.  Returns OUTBOX_NIL at the end.  Returns all lanes with
 * timers set to "until" or earlier, and some others.
 */
int
outbox_timer_next(int root, OutboxTimerKind kind, int lane, TimestampTz until)
{
	const OutboxTimer *timer;

	if (lane == OUTBOX_NIL)
		return root;
	timer = timer_of(kind, lane);
	if (timer->child != OUTBOX_NIL && timer->at <= until)
		return timer->child;
	/* go up to the nearest ancestor that has a younger sibling */
	while (lane != root)
	{
		timer = timer_of(kind, lane);
		if (timer->sibling != OUTBOX_NIL)
			return timer->sibling;
		/* the prev of the eldest is the parent */
		while (timer_of(kind, timer->prev)->child != lane)
		{
			lane = timer->prev;
			timer = timer_of(kind, lane);
		}
		lane = timer->prev;
	}
	return OUTBOX_NIL;
}
