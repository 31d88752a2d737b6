/*
 * lane_memory.c
 *	  Memory for lanes.
 *
 * Part of the block of shared memory is divided into lanes and cells, of one
 * size each.  A cell is a mark, a group, or one of the other small things that
 * lanes need a varying number of.  Both are allocated from free lists; memory
 * that was never allocated is never touched, so a large setting costs little.
 *
 * Lanes and groups are found by hash tables that all agendas share.  Every
 * function that reads or changes a lane, or one of its cells, must hold the
 * lock of the lane's agenda.  In addition, the chains of the hash tables are
 * protected by partition locks, and the free lists by a spinlock.  These are
 * acquired last, only in this file, and held for one step each.
 */
#include "postgres.h"

#include "outbox.h"
#include "shmem/lane_memory.h"
#include "shmem/shmem.h"
#include "util/hash.h"

/*
 * The numbers of lanes and cells in a build for tests.
 */
#ifdef OUTBOX_TINY
#define TINY_LANES 8
#define TINY_CELLS 48
#endif

/* A lane comes with this many cells, on average. */
#define CELLS_PER_LANE 3

OutboxLane *outbox_lane_array = NULL;
OutboxCell *outbox_cell_array = NULL;

static OutboxLaneMemory *memory = NULL;

/* The memory for lanes; NULL if there is no shared memory. */
OutboxLaneMemory *
outbox_lane_memory(void)
{
	OutboxShared *shared;

	if (likely(memory != NULL))
		return memory;
	shared = outbox_shmem();
	if (shared == NULL)
		return NULL;
	memory = (OutboxLaneMemory *) ((char *) shared + shared->lanes);
	outbox_lane_array = (OutboxLane *) ((char *) memory + memory->lanes) - 1;
	outbox_cell_array = (OutboxCell *) ((char *) memory + memory->cells) - 1;
	return memory;
}

/* ---------------------------------------------------------------------- */
/* Layout                                                                 */
/* ---------------------------------------------------------------------- */

static int
heads_for(int nlanes)
{
	int			nheads = OUTBOX_HASH_PARTITIONS;

	while (nheads < nlanes)
		nheads *= 2;
	return nheads;
}

/* Divide the budget; returns the size. */
static Size
lay_out(OutboxLaneMemory *made, Size budget)
{
	Size		each = sizeof(OutboxLane) + CELLS_PER_LANE * sizeof(OutboxCell) +
	4 * sizeof(int);

	made->nlanes = (int) Min(budget / each, PG_INT32_MAX / 8);
	made->ncells = made->nlanes * CELLS_PER_LANE;
#ifdef OUTBOX_TINY
	made->nlanes = TINY_LANES;
	made->ncells = TINY_CELLS;
#endif
	made->nheads = heads_for(made->nlanes);
	made->lane_heads = MAXALIGN(sizeof(OutboxLaneMemory));
	made->group_heads = made->lane_heads +
		MAXALIGN(made->nheads * sizeof(int));
	made->lanes = made->group_heads +
		MAXALIGN(made->nheads * sizeof(int));
	made->cells = made->lanes +
		MAXALIGN((Size) made->nlanes * sizeof(OutboxLane));
	return made->cells + (Size) made->ncells * sizeof(OutboxCell);
}

/* The size of the memory for a budget, approximately. */
Size
outbox_lane_memory_size(Size budget)
{
	OutboxLaneMemory unmade;

	return lay_out(&unmade, budget);
}

/* Initialize the memory, when the block of shared memory is created. */
void
outbox_lane_memory_init(OutboxLaneMemory *made, Size budget, int tranche)
{
	(void) lay_out(made, budget);
	for (int i = 0; i < OUTBOX_HASH_PARTITIONS; i++)
		LWLockInitialize(&made->partitions[i], tranche);
	SpinLockInit(&made->free_lock);
	made->free_lane = made->free_cell = OUTBOX_NIL;
	made->lanes_touched = made->cells_touched = 0;
	made->lanes_in_use = made->cells_in_use = 0;
	pg_atomic_init_u32(&made->hand, 0);
	pg_atomic_init_u32(&made->serial, 0);
	memset((char *) made + made->lane_heads, 0,
		   made->lanes - made->lane_heads);
}

/* ---------------------------------------------------------------------- */
/* Free lists                                                             */
/* ---------------------------------------------------------------------- */

/* Allocate a cell, which is no mark yet; OUTBOX_NIL if there is none. */
int
outbox_cell_new(void)
{
	int			cell;

	SpinLockAcquire(&memory->free_lock);
	cell = memory->free_cell;
	if (cell != OUTBOX_NIL)
		memory->free_cell = outbox_cell_array[cell].free.next;
	else if (memory->cells_touched < memory->ncells)
		cell = ++memory->cells_touched;
	if (cell != OUTBOX_NIL)
	{
		memory->cells_in_use++;
		outbox_cell_array[cell].serial = 0;
	}
	SpinLockRelease(&memory->free_lock);
	return cell;
}

/*
 * Free a cell, which nothing may refer to any more, except copies that scans have of a
 * mark: these are invalid now.
 */
void
outbox_cell_free(int cell)
{
	Assert(cell > OUTBOX_NIL && cell <= memory->ncells);
	SpinLockAcquire(&memory->free_lock);
	outbox_cell_array[cell].free = OUTBOX_MAKE(OutboxFreeCell,.next = memory->free_cell);
	memory->free_cell = cell;
	memory->cells_in_use--;
	SpinLockRelease(&memory->free_lock);
}

/*
 * A number that distinguishes a mark from earlier ones in its cell.  Never 0.
 */
uint32
outbox_mark_serial(void)
{
	uint32		serial = pg_atomic_add_fetch_u32(&memory->serial, 1);

	return serial != 0 ? serial : pg_atomic_add_fetch_u32(&memory->serial, 1);
}

static int
take_lane(void)
{
	int			lane;

	SpinLockAcquire(&memory->free_lock);
	lane = memory->free_lane;
	if (lane != OUTBOX_NIL)
		memory->free_lane = outbox_lane_array[lane].next;
	else if (memory->lanes_touched < memory->nlanes)
		lane = ++memory->lanes_touched;
	if (lane != OUTBOX_NIL)
		memory->lanes_in_use++;
	SpinLockRelease(&memory->free_lock);
	return lane;
}

static void
give_lane_back(int lane)
{
	SpinLockAcquire(&memory->free_lock);
	outbox_lane_array[lane].next = memory->free_lane;
	memory->free_lane = lane;
	memory->lanes_in_use--;
	SpinLockRelease(&memory->free_lock);
}

/*
 * Advance the clock hand; returns the lane there, which may be free, or
 * OUTBOX_NIL if no lane was ever used.
 */
int
outbox_lane_advance_hand(void)
{
	int			touched = memory->lanes_touched;

	if (touched == 0)
		return OUTBOX_NIL;
	return 1 + (int) (pg_atomic_fetch_add_u32(&memory->hand, 1) %
					  (uint32) touched);
}

/* The maximum number of lanes, and how many are in use by all databases. */
void
outbox_lanes_count(int *lanes, int *in_use)
{
	*lanes = *in_use = 0;
	if (outbox_lane_memory() == NULL)
		return;
	SpinLockAcquire(&memory->free_lock);
	*lanes = memory->nlanes;
	*in_use = memory->lanes_in_use;
	SpinLockRelease(&memory->free_lock);
}

/* ---------------------------------------------------------------------- */
/* Hash tables                                                            */
/* ---------------------------------------------------------------------- */

static uint32
spread(uint64 h)
{
	h ^= h >> 31;
	h *= UINT64CONST(0x9e3779b97f4a7c15);
	return (uint32) (h >> 32);
}

static uint32
lane_hash(int store, const OutboxPlace *place, uint64 token)
{
	return spread((uint64) place->lane ^ token ^ (uint64) store << 40);
}

static uint32
group_hash(int store, int kind, uint64 hash)
{
	return spread(hash ^ (uint64) store << 40 ^ (uint64) kind << 56);
}

static int *
head_of(Size heads, uint32 hash)
{
	return (int *) ((char *) memory + heads) + (hash & (memory->nheads - 1));
}

static LWLock *
partition_of(uint32 hash)
{
	return &memory->partitions[hash % OUTBOX_HASH_PARTITIONS];
}

static bool
is_lane(const OutboxLane *lane, int store, const OutboxPlace *place,
		uint64 token)
{
	return lane->store == store && lane->token == token &&
		outbox_place_equal(&lane->place, place);
}

/* Find a lane of a store that the caller has locked. */
int
outbox_lane_find(int store, const OutboxPlace *place, uint64 token)
{
	uint32		hash = lane_hash(store, place, token);
	int			lane;

	LWLockAcquire(partition_of(hash), LW_SHARED);
	lane = *head_of(memory->lane_heads, hash);
	while (lane != OUTBOX_NIL &&
		   !is_lane(outbox_lane_at(lane), store, place, token))
		lane = outbox_lane_at(lane)->next;
	LWLockRelease(partition_of(hash));
	return lane;
}

/*
 * Add a lane that does not exist to a store that the caller has locked
 * exclusively.  Only its identity is set.  OUTBOX_NIL if there is no memory.
 */
int
outbox_lane_add(int store, const OutboxPlace *place, uint64 token)
{
	uint32		hash = lane_hash(store, place, token);
	int			lane = take_lane();
	OutboxLane *added;
	int		   *head;

	Assert(store != OUTBOX_NIL);
	if (lane == OUTBOX_NIL)
		return OUTBOX_NIL;
	added = outbox_lane_at(lane);
	memset(added, 0, sizeof(OutboxLane));
	added->store = store;
	added->place = *place;
	added->token = token;
	LWLockAcquire(partition_of(hash), LW_EXCLUSIVE);
	head = head_of(memory->lane_heads, hash);
	added->next = *head;
	*head = lane;
	LWLockRelease(partition_of(hash));
	return lane;
}

/* Remove a lane, which nothing may refer to any more. */
void
outbox_lane_remove(int lane)
{
	OutboxLane *removed = outbox_lane_at(lane);
	uint32		hash = lane_hash(removed->store, &removed->place,
								 removed->token);
	int		   *link;

	LWLockAcquire(partition_of(hash), LW_EXCLUSIVE);
	link = head_of(memory->lane_heads, hash);
	while (*link != lane)
		link = &outbox_lane_at(*link)->next;
	*link = removed->next;
	removed->store = OUTBOX_NIL;
	LWLockRelease(partition_of(hash));
	give_lane_back(lane);
}

/* Find a group of a store that the caller has locked. */
int
outbox_group_find(int store, int kind, uint64 hash)
{
	uint32		h = group_hash(store, kind, hash);
	int			group;

	LWLockAcquire(partition_of(h), LW_SHARED);
	group = *head_of(memory->group_heads, h);
	while (group != OUTBOX_NIL)
	{
		const OutboxGroup *have = outbox_group_at(group);

		if (have->hash == hash && have->store == store && have->kind == kind)
			break;
		group = have->next;
	}
	LWLockRelease(partition_of(h));
	return group;
}

/* Add a group that does not exist; OUTBOX_NIL if there is no memory. */
int
outbox_group_add(int store, int kind, uint64 hash)
{
	uint32		h = group_hash(store, kind, hash);
	int			group = outbox_cell_new();
	OutboxGroup *added;
	int		   *head;

	if (group == OUTBOX_NIL)
		return OUTBOX_NIL;
	added = outbox_group_at(group);
	memset(added, 0, sizeof(OutboxGroup));
	added->store = store;
	added->kind = kind;
	added->hash = hash;
	LWLockAcquire(partition_of(h), LW_EXCLUSIVE);
	head = head_of(memory->group_heads, h);
	added->next = *head;
	*head = group;
	LWLockRelease(partition_of(h));
	return group;
}

/* Remove a group that has neither lanes nor sleepers. */
void
outbox_group_remove(int group)
{
	OutboxGroup *removed = outbox_group_at(group);
	uint32		h = group_hash(removed->store, removed->kind, removed->hash);
	int		   *link;

	Assert(removed->nlanes == 0 && removed->nnodes == 0);
	LWLockAcquire(partition_of(h), LW_EXCLUSIVE);
	link = head_of(memory->group_heads, h);
	while (*link != group)
		link = &outbox_group_at(*link)->next;
	*link = removed->next;
	LWLockRelease(partition_of(h));
	outbox_cell_free(group);
}
