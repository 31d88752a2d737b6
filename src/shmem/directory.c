/*
 * directory.c
 *	  Which agenda belongs to which live table, and what can be evicted.
 *
 * Each live table of each database has an agenda while it is in use.  The
 * contents of an agenda are valid for one epoch of the table (epoch.c), and
 * for one life of the database and of the table; when one of them changes,
 * everything is forgotten.  The life of a database is the transaction that has
 * written its row in pg_database: another database can get the same OID, and
 * its tables too, if it is a copy.  The life of a table changes with the
 * triggers that report what plain SQL does to it (table.c).
 *
 * When there is no memory for another lane, empty lanes are evicted, by a
 * clock sweep.  If there are none, lanes that were not used for a minute are
 * evicted with their contents: their agenda then knows that it does not have
 * all lanes.
 *
 * Locks: the directory's, then one agenda's.  To evict lanes of another
 * agenda, no lock may be held before.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/inval.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "outbox.h"
#include "shmem/agenda.h"
#include "shmem/blocker.h"
#include "shmem/directory.h"
#include "shmem/epoch.h"
#include "shmem/lane_memory.h"
#include "shmem/lane_publish.h"
#include "shmem/lane_state.h"
#include "shmem/shmem.h"
#include "shmem/sleepers.h"
#include "trace.h"
#include "util/guc.h"
#include "util/hash.h"

/* A lane that is not empty can be evicted after this time. */
#define UNUSED_MS (60 * 1000)

/* Lanes to examine, and to evict, in one attempt to make room. */
#define LOOKS_FOR_ROOM 1024
#define ROOM_TO_MAKE 64

/* If none could be evicted, when to try again. */
#define NO_ROOM_MS 100

#define CACHE_SIZE 8

/* Life of a table whose triggers this backend has not checked. */
#define UNKNOWN_LIFE 0

/* Where this backend last found agendas, and the lives of their tables. */
typedef struct KnownAgenda
{
	Oid			relid;
	int			number;
	uint64		table_life;
} KnownAgenda;

static KnownAgenda cache[CACHE_SIZE];
static int	next_known = 0;

/* The life of this database, as this backend last saw it. */
static TransactionId life = InvalidTransactionId;

/* Initialize the directory, when the block of shared memory is created. */
void
outbox_directory_init(OutboxDirectory *directory, int tranche)
{
	memset(directory, 0, sizeof(OutboxDirectory));
	LWLockInitialize(&directory->lock, tranche);
	for (int i = 0; i < OUTBOX_MAX_AGENDAS; i++)
	{
		OutboxAgenda *agenda = &directory->agendas[i];

		LWLockInitialize(&agenda->lock, tranche);
		agenda->number = i + 1;
		pg_atomic_init_u32(&agenda->nblockers, 0);
		pg_atomic_init_u32(&agenda->nsleepers, 0);
	}
}

static OutboxDirectory *
get_directory(void)
{
	OutboxShared *shared = outbox_shmem();

	return shared == NULL ? NULL : &shared->directory;
}

/* The agenda that has this number. */
OutboxAgenda *
outbox_agenda_by_number(int number)
{
	Assert(number > 0 && number <= OUTBOX_MAX_AGENDAS);
	return &get_directory()->agendas[number - 1];
}

/* ---------------------------------------------------------------------- */
/* Forgetting                                                             */
/* ---------------------------------------------------------------------- */

/* Remove a part from its lane's list of parts that all owners may visit. */
static void
unlist_part(OutboxAgenda *agenda, int part)
{
	const OutboxLane *removed = outbox_lane_at(part);
	int			lane = outbox_lane_find(agenda->number, &removed->place, 0);
	int		   *link;

	Assert(!removed->shared || lane != OUTBOX_NIL);
	if (!removed->shared)
		return;
	link = &outbox_lane_at(lane)->first_part;
	while (*link != OUTBOX_NIL && *link != part)
		link = &outbox_lane_at(*link)->next_part;
	if (*link == part)
	{
		*link = removed->next_part;
		outbox_lane_at(lane)->nparts--;
	}
	if (removed->shared_prev != OUTBOX_NIL)
		outbox_lane_at(removed->shared_prev)->shared_next = removed->shared_next;
	else
		agenda->first_shared = removed->shared_next;
	if (removed->shared_next != OUTBOX_NIL)
		outbox_lane_at(removed->shared_next)->shared_prev = removed->shared_prev;
}

/* Let all owners visit this part of the lane. */
void
outbox_lane_share_part(OutboxAgenda *agenda, int lane, int part)
{
	OutboxLane *shared = outbox_lane_at(part);

	Assert(shared->token != 0 && !shared->shared);
	shared->shared = true;
	shared->next_part = outbox_lane_at(lane)->first_part;
	outbox_lane_at(lane)->first_part = part;
	outbox_lane_at(lane)->nparts++;
	shared->shared_next = agenda->first_shared;
	if (agenda->first_shared != OUTBOX_NIL)
		outbox_lane_at(agenda->first_shared)->shared_prev = part;
	agenda->first_shared = part;
}

/* Remove a lane, with its contents. */
void
outbox_lane_drop(OutboxAgenda *agenda, int lane)
{
	OutboxLane *dropped = outbox_lane_at(lane);

	Assert(LWLockHeldByMeInMode(&agenda->lock, LW_EXCLUSIVE));
	Assert(dropped->store == agenda->number);
	unlist_part(agenda, lane);
	outbox_agenda_leave(agenda, lane);
	outbox_lane_forget_marks(dropped);
	if (dropped->store_prev != OUTBOX_NIL)
		outbox_lane_at(dropped->store_prev)->store_next = dropped->store_next;
	else
		agenda->first_lane = dropped->store_next;
	if (dropped->store_next != OUTBOX_NIL)
		outbox_lane_at(dropped->store_next)->store_prev = dropped->store_prev;
	agenda->nlanes--;
	outbox_lane_remove(lane);
}

/* Forget everything about a table, and call all waiting claims. */
static void
reset_agenda(OutboxAgenda *agenda)
{
	while (agenda->first_shared != OUTBOX_NIL)
		outbox_lane_drop(agenda, agenda->first_shared);
	while (agenda->first_lane != OUTBOX_NIL)
		outbox_lane_drop(agenda, agenda->first_lane);
	outbox_agenda_unblock_all(agenda);
	Assert(agenda->nlanes == 0);
	agenda->resets++;
	agenda->misses = 0;
	agenda->tenant_missed = agenda->priority_missed = false;
	agenda->expired_to = agenda->expired_seen = DT_NOBEGIN;
	agenda->listed = false;
	agenda->round_from = PG_INT64_MIN;
	outbox_sleepers_call_all(agenda, false);
}

/* ---------------------------------------------------------------------- */
/* Finding                                                                */
/* ---------------------------------------------------------------------- */

static OutboxAgenda *
find_agenda(OutboxDirectory *directory, Oid relid)
{
	for (int i = 0; i < OUTBOX_MAX_AGENDAS; i++)
	{
		if (directory->agendas[i].relid == relid &&
			directory->agendas[i].dbid == MyDatabaseId)
			return &directory->agendas[i];
	}
	return NULL;
}

/*
 * Find the table's agenda, or make it from one that is free, or else from the
 * least recently used one.  NULL if claims wait in all of them.
 */
static OutboxAgenda *
make_agenda(OutboxDirectory *directory, Oid relid)
{
	OutboxAgenda *agenda;

	LWLockAcquire(&directory->lock, LW_SHARED);
	agenda = find_agenda(directory, relid);
	LWLockRelease(&directory->lock);
	if (agenda != NULL)
		return agenda;

	LWLockAcquire(&directory->lock, LW_EXCLUSIVE);
	agenda = find_agenda(directory, relid);
	for (int i = 0; agenda == NULL && i < OUTBOX_MAX_AGENDAS; i++)
	{
		if (!OidIsValid(directory->agendas[i].relid))
			agenda = &directory->agendas[i];
	}
	for (int i = 0; agenda == NULL && i < OUTBOX_MAX_AGENDAS; i++)
	{
		OutboxAgenda *used = &directory->agendas[i];

		if (pg_atomic_read_u32(&used->nsleepers) == 0 &&
			(agenda == NULL || used->used_at < agenda->used_at))
			agenda = used;
	}
	if (agenda != NULL &&
		(agenda->relid != relid || agenda->dbid != MyDatabaseId))
	{
		LWLockAcquire(&agenda->lock, LW_EXCLUSIVE);
		if (agenda->first_sleeper != OUTBOX_NIL)
		{
			LWLockRelease(&agenda->lock);
			agenda = NULL;
		}
		else
		{
			reset_agenda(agenda);
			agenda->dbid = MyDatabaseId;
			agenda->relid = relid;
			agenda->kinds = 0;
			agenda->used_at = GetCurrentTimestamp();
			agenda->life = life;
			agenda->epoch = outbox_epoch(relid);
			LWLockRelease(&agenda->lock);
		}
	}
	LWLockRelease(&directory->lock);
	return agenda;
}

/*
 * This backend's entry for a table.  There is room for all tables in use,
 * since a database has four of them; losing the life of one would make its
 * agenda look out of date.
 */
static KnownAgenda *
known_agenda(Oid relid)
{
	KnownAgenda *known;

	for (int i = 0; i < CACHE_SIZE; i++)
	{
		if (cache[i].relid == relid)
			return &cache[i];
	}
	known = &cache[next_known];
	next_known = (next_known + 1) % CACHE_SIZE;
	*known = OUTBOX_MAKE(KnownAgenda,.relid = relid,.number = OUTBOX_NIL,
						 .table_life = UNKNOWN_LIFE);
	return known;
}

/* Find the table's agenda and lock it; NULL if that is not possible. */
static OutboxAgenda *
lock_agenda(Oid relid, LWLockMode mode)
{
	OutboxDirectory *directory = get_directory();
	KnownAgenda *known;
	OutboxAgenda *agenda = NULL;

	if (directory == NULL || outbox_lane_memory() == NULL)
		return NULL;
	known = known_agenda(relid);
	if (known->number != OUTBOX_NIL)
		agenda = &directory->agendas[known->number - 1];
	for (;;)
	{
		if (agenda == NULL)
		{
			agenda = make_agenda(directory, relid);
			if (agenda == NULL)
				return NULL;
			known->number = agenda->number;
		}
		LWLockAcquire(&agenda->lock, mode);
		if (agenda->relid == relid && agenda->dbid == MyDatabaseId)
			return agenda;
		LWLockRelease(&agenda->lock);
		agenda = NULL;
	}
}

/* Read the life of this database again. */
static void
read_life(void)
{
	HeapTuple	tuple;

	AcceptInvalidationMessages();
	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for database %u", MyDatabaseId);
	life = HeapTupleHeaderGetRawXmin(tuple->t_data);
	ReleaseSysCache(tuple);
}

/*
 * Prepare for reports at the end of the transaction, when no catalog can be
 * read.
 */
void
outbox_directory_prepare(void)
{
	if (!TransactionIdIsValid(life))
		read_life();
}

/* Set the life of a table, as this backend sees it now. */
void
outbox_directory_set_life(Oid relid, uint64 table_life)
{
	known_agenda(relid)->table_life = table_life;
}

/*
 * Do the lives and the epoch of the agenda match the present ones?  A backend
 * that has not checked the table's triggers does not know the table's life, so
 * it leaves that to those that do.
 */
static bool
is_up_to_date(const OutboxAgenda *agenda)
{
	uint64		table_life = known_agenda(agenda->relid)->table_life;

	return agenda->life == life &&
		(table_life == UNKNOWN_LIFE || agenda->table_life == table_life) &&
		agenda->epoch == outbox_epoch(agenda->relid);
}

/*
 * Lock the agenda of a table to use its contents; if they are out of date,
 * they are forgotten first.  NULL if there is no shared memory, or no room in
 * it.
 */
OutboxAgenda *
outbox_agenda_lock(Oid relid, LWLockMode mode)
{
	OutboxAgenda *agenda;

	Assert(IsTransactionState());
	outbox_directory_prepare();
	agenda = lock_agenda(relid, mode);
	if (agenda == NULL || likely(is_up_to_date(agenda)))
		return agenda;
	LWLockRelease(&agenda->lock);

	/* what is out of date may be our own information */
	read_life();
	agenda = lock_agenda(relid, LW_EXCLUSIVE);
	if (agenda != NULL && !is_up_to_date(agenda))
	{
		agenda->life = life;
		if (known_agenda(relid)->table_life != UNKNOWN_LIFE)
			agenda->table_life = known_agenda(relid)->table_life;
		agenda->epoch = outbox_epoch(relid);
		reset_agenda(agenda);
	}
	return agenda;
}

/*
 * Lock the agenda of a table to report what was written, also at the end of a
 * transaction.  Adding to contents that are out of date does no harm.
 */
OutboxAgenda *
outbox_agenda_lock_to_report(Oid relid)
{
	return lock_agenda(relid, LW_EXCLUSIVE);
}

/* Do all lanes with messages have memory? */
bool
outbox_agenda_is_complete(const OutboxAgenda *agenda)
{
	return agenda->listed && agenda->misses == agenda->listed_misses;
}

/* ---------------------------------------------------------------------- */
/* Listing                                                                */
/* ---------------------------------------------------------------------- */

/*
 * Must lanes be listed from the index?  If the table was not listed since its
 * memory was made, all of them, and listing->whole is set.  If some lanes have
 * no memory, a few, from where the last listing has stopped.
 */
bool
outbox_listing_begin(Oid relid, OutboxListing *listing)
{
	OutboxAgenda *agenda = outbox_agenda_lock(relid, LW_SHARED);
	bool		wanted;

	memset(listing, 0, sizeof(OutboxListing));
	if (agenda == NULL)
		return false;
	wanted = !outbox_agenda_is_complete(agenda);
	listing->relid = relid;
	listing->resets = agenda->resets;
	listing->whole = !agenda->listed;
	listing->misses = agenda->misses;
	listing->tenants = !agenda->listed || agenda->tenant_missed;
	listing->priorities = !agenda->listed || agenda->priority_missed;
	listing->from = listing->whole ? PG_INT64_MIN : agenda->round_from;
	LWLockRelease(&agenda->lock);
	return wanted;
}

/* Add a lane found in the index; false if there is no memory for it. */
bool
outbox_listing_add(OutboxListing *listing, const OutboxPlace *place)
{
	bool		found = false;

	listing->from = place->lane;
	for (int try = 0; !found && try < 2; try++)
	{
		OutboxAgenda *agenda = outbox_agenda_lock_to_report(listing->relid);
		bool		is_new;
		int			lane;

		if (agenda == NULL)
			return false;
		lane = outbox_lane_make(agenda, place, 0, &is_new);
		found = lane != OUTBOX_NIL;
		if (is_new)
			outbox_agenda_update(agenda, lane, GetCurrentTimestamp());
		LWLockRelease(&agenda->lock);
		if (!found && !outbox_lanes_make_room())
			break;
	}
	listing->missed |= !found;
	listing->tenant_missed |= !found && place->tenant_hash != 0;
	listing->priority_missed |= !found && place->priority != 0;
	return found;
}

/* End a listing, at the end of the index or before. */
void
outbox_listing_end(OutboxListing *listing, bool at_end)
{
	OutboxAgenda *agenda = outbox_agenda_lock_to_report(listing->relid);

	if (agenda == NULL)
		return;
	if (agenda->resets == listing->resets)
	{
		if (listing->missed)
			agenda->misses++;
		agenda->tenant_missed |= listing->tenant_missed;
		agenda->priority_missed |= listing->priority_missed;
		if (listing->whole && at_end)
		{
			agenda->listed = true;
			agenda->listed_misses = listing->misses;
		}
		else if (at_end)
			agenda->listed_misses = agenda->round_misses;
		if (at_end)
			agenda->round_misses = agenda->misses;
		agenda->round_from = at_end ? PG_INT64_MIN : listing->from;
	}
	LWLockRelease(&agenda->lock);
}

/*
 * The time when something becomes due in the lanes of these topics (or in
 * all), except for paused ones.  DT_NOBEGIN if something is due now.  *silent
 * is set if it may be earlier, because of prepared transactions, whose end is
 * not reported.  Returns false if the time is not known.
 */
bool
outbox_directory_next_due(Oid relid, const OutboxLaneFilter *filter,
						  const OutboxTopicKeys *paused, TimestampTz *due,
						  bool *silent)
{
	OutboxAgenda *agenda = outbox_use_cursor && !outbox_epoch_strangers() ?
	outbox_agenda_lock(relid, LW_EXCLUSIVE) : NULL;
	bool		known;

	*due = DT_NOEND;
	*silent = false;
	if (agenda == NULL)
		return false;
	outbox_lanes_look_at_silent(agenda);
	*silent = agenda->nsilent > 0;
	outbox_sleepers_call_due(agenda, GetCurrentTimestamp());
	known = outbox_agenda_is_complete(agenda);
	if (known)
		*due = outbox_agenda_time_of(agenda, filter, paused);
	LWLockRelease(&agenda->lock);
	return known;
}

/*
 * Copy the agenda of a table and its lanes, for monitoring; returns the number
 * of lanes, or -1 if there is no agenda.
 */
int
outbox_agenda_copy(Oid relid, OutboxAgenda *agenda, OutboxLane **lanes)
{
	int			max = 256;
	int			n = 0;

	/* their number may grow while we allocate memory */
	for (;;)
	{
		OutboxAgenda *known;

		*lanes = palloc_extended((Size) max * sizeof(OutboxLane), MCXT_ALLOC_HUGE);
		known = outbox_agenda_lock(relid, LW_SHARED);
		if (known == NULL)
			return -1;
		memcpy(agenda, known, sizeof(OutboxAgenda));
		for (int lane = known->first_lane; lane != OUTBOX_NIL && n < max;
			 lane = outbox_lane_at(lane)->store_next)
			(*lanes)[n++] = *outbox_lane_at(lane);
		LWLockRelease(&known->lock);
		if (n >= agenda->nlanes)
			return n;
		pfree(*lanes);
		max = agenda->nlanes + 256;
		n = 0;
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * The time when the first lease of a database ends; DT_NOEND if there is none.
 */
TimestampTz
outbox_directory_next_lease(Oid dbid)
{
	OutboxDirectory *directory = get_directory();
	TimestampTz first = DT_NOEND;

	if (directory == NULL || outbox_lane_memory() == NULL)
		return first;
	for (int i = 0; i < OUTBOX_MAX_AGENDAS; i++)
	{
		OutboxAgenda *agenda = &directory->agendas[i];

		if (agenda->dbid != dbid || !OidIsValid(agenda->relid))
			continue;
		LWLockAcquire(&agenda->lock, LW_SHARED);
		if (agenda->dbid == dbid)
			first = Min(first, outbox_agenda_next_lease(agenda));
		LWLockRelease(&agenda->lock);
	}
	return first;
}

/*
 * The clock was set back.  Times of messages remain, since they are in the
 * tables; but retries after a delay, and times of last use, would otherwise
 * have to wait until the clock is there again.
 */
void
outbox_directory_clock_went_back(TimestampTz now)
{
	OutboxDirectory *directory = get_directory();

	if (directory == NULL || outbox_lane_memory() == NULL)
		return;
	for (int i = 0; i < OUTBOX_MAX_AGENDAS; i++)
	{
		OutboxAgenda *agenda = &directory->agendas[i];

		if (!OidIsValid(agenda->relid))
			continue;
		LWLockAcquire(&agenda->lock, LW_EXCLUSIVE);
		for (int at = agenda->first_lane; at != OUTBOX_NIL;
			 at = outbox_lane_at(at)->store_next)
		{
			OutboxLane *lane = outbox_lane_at(at);

			lane->used_at = Min(lane->used_at, now);
			if (lane->recheck_at == DT_NOEND || lane->recheck_at <= now)
				continue;
			lane->recheck_at = now;
			outbox_agenda_update(agenda, at, now);
		}
		outbox_sleepers_call_due(agenda, now);
		LWLockRelease(&agenda->lock);
	}
}

/*
 * Free the agendas of databases that no longer exist, according to "exists".
 * If it is wrong about a new database, that one's lanes are only scanned
 * again.
 */
void
outbox_directory_forget_databases(bool (*exists) (Oid dbid, void *arg),
								  void *arg)
{
	OutboxDirectory *directory = get_directory();

	if (directory == NULL || outbox_lane_memory() == NULL)
		return;
	LWLockAcquire(&directory->lock, LW_EXCLUSIVE);
	for (int i = 0; i < OUTBOX_MAX_AGENDAS; i++)
	{
		OutboxAgenda *agenda = &directory->agendas[i];

		if (!OidIsValid(agenda->relid) || exists(agenda->dbid, arg))
			continue;
		LWLockAcquire(&agenda->lock, LW_EXCLUSIVE);
		if (agenda->first_sleeper == OUTBOX_NIL)
		{
			reset_agenda(agenda);
			agenda->dbid = agenda->relid = InvalidOid;
		}
		LWLockRelease(&agenda->lock);
	}
	LWLockRelease(&directory->lock);
}

/* ---------------------------------------------------------------------- */
/* Lanes                                                                  */
/* ---------------------------------------------------------------------- */

/*
 * Find a lane, or a part of one, or make it.  A new lane is empty, so all of
 * it must be scanned.  OUTBOX_NIL if there is no memory.
 */
int
outbox_lane_make(OutboxAgenda *agenda, const OutboxPlace *place, uint64 token,
				 bool *is_new)
{
	int			lane = outbox_lane_find(agenda->number, place, token);
	OutboxLane *made;

	Assert(LWLockHeldByMeInMode(&agenda->lock, LW_EXCLUSIVE));
	*is_new = false;
	if (lane != OUTBOX_NIL)
		return lane;
	lane = outbox_lane_add(agenda->number, place, token);
	if (lane == OUTBOX_NIL)
		return OUTBOX_NIL;
	made = outbox_lane_at(lane);
	made->recheck_at = made->ended_at = DT_NOEND;
	made->cursor = OUTBOX_READY_KEY_MIN;
	made->next_due = token == 0 ? PG_INT64_MIN : PG_INT64_MAX;
	made->leases_known = token != 0;
	OUTBOX_TRACE_LANE("new", made, token);
	made->used = true;
	made->used_at = GetCurrentTimestamp();
	made->store_next = agenda->first_lane;
	if (agenda->first_lane != OUTBOX_NIL)
		outbox_lane_at(agenda->first_lane)->store_prev = lane;
	agenda->first_lane = lane;
	agenda->nlanes++;
	if (!outbox_agenda_join(agenda, lane))
	{
		outbox_lane_drop(agenda, lane);
		return OUTBOX_NIL;
	}
	*is_new = true;
	return lane;
}

/*
 * Set the hash of the owners that may be preferred for messages of this table.
 * If it has changed, other owners may be preferred now: what was left for
 * single owners is for all again.
 */
void
outbox_parts_note_members(Oid relid, uint64 members)
{
	OutboxAgenda *agenda = outbox_use_cursor ?
	outbox_agenda_lock_to_report(relid) : NULL;
	TimestampTz now = GetCurrentTimestamp();
	int			part;

	if (agenda == NULL)
		return;
	while (agenda->members != members &&
		   (part = agenda->first_shared) != OUTBOX_NIL)
	{
		int			lane = outbox_lane_find(agenda->number,
											&outbox_lane_at(part)->place, 0);

		outbox_lane_take_over_marks(outbox_lane_at(lane), outbox_lane_at(part));
		outbox_lane_drop(agenda, part);
		outbox_agenda_update(agenda, lane, now);
		outbox_sleepers_call_lane(agenda, lane, 1);
	}
	agenda->members = members;
	LWLockRelease(&agenda->lock);
}

/* Can this lane be evicted now?  old: even if it is not empty. */
static bool
can_go(OutboxLane *lane, bool old, TimestampTz now)
{
	if (lane->nduties > 0)
		return false;
	if (lane->token != 0 ? !lane->shared : outbox_lane_is_quiet(lane))
	{
		if (!lane->used || old)
			return true;
		lane->used = false;
		return false;
	}
	return old && lane->token == 0 && lane->nscans[0] == 0 && lane->nscans[1] == 0 &&
		lane->nparts == 0 &&
		TimestampDifferenceExceeds(lane->used_at, now, UNUSED_MS);
}

/* Advance the clock sweep; returns how many lanes were evicted. */
static int
advance_hand(bool old)
{
	TimestampTz now = GetCurrentTimestamp();
	int			nremoved = 0;

	for (int i = 0; i < LOOKS_FOR_ROOM && nremoved < ROOM_TO_MAKE; i++)
	{
		int			lane = outbox_lane_advance_hand();
		int			number = lane == OUTBOX_NIL ? OUTBOX_NIL :
		outbox_lane_at(lane)->store;
		OutboxAgenda *agenda;

		if (number == OUTBOX_NIL)
			continue;
		agenda = outbox_agenda_by_number(number);
		if (!LWLockConditionalAcquire(&agenda->lock, LW_EXCLUSIVE))
			continue;
		if (outbox_lane_at(lane)->store == number &&
			can_go(outbox_lane_at(lane), old, now))
		{
			if (outbox_lane_at(lane)->token == 0 &&
				!outbox_lane_is_quiet(outbox_lane_at(lane)))
				outbox_agenda_miss(agenda, &outbox_lane_at(lane)->place);
			outbox_lane_drop(agenda, lane);
			nremoved++;
		}
		LWLockRelease(&agenda->lock);
	}
	return nremoved;
}

/*
 * Evict unneeded lanes of any table; false if there were none.  The caller
 * must not hold the lock of an agenda.
 */
bool
outbox_lanes_make_room(void)
{
	static TimestampTz not_before = 0;
	TimestampTz now = GetCurrentTimestamp();

	/* it is later than that only if the clock was set back */
	if (now < not_before &&
		not_before <= TimestampTzPlusMilliseconds(now, NO_ROOM_MS))
		return false;
	if (advance_hand(false) > 0 || advance_hand(false) > 0 ||
		advance_hand(true) > 0)
		return true;
	not_before = TimestampTzPlusMilliseconds(now, NO_ROOM_MS);
	return false;
}
