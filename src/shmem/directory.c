/*
 * directory.c
 *	  Which agenda belongs to which live table, and what can be forgotten.
 *
 * Each live table of each database has an agenda while it is in use.  What an
 * agenda knows was learnt under an epoch of the table (epoch.c), and in a life of
 * the database and of the table; when one of them is another, all is forgotten.
 * The life of a database is the transaction that has written its row in
 * pg_database: another database can get the same OID, and its tables too, if it
 * is a copy.  The life of a table changes with the triggers that report what plain
 * SQL does to it (table.c).
 *
 * When there is no room for another lane, lanes in which there is nothing are
 * removed, those first that were not used since the hand of the clock last came
 * by.  If there are none, lanes go that were not used for a minute, with all that
 * is known of them: their agenda then knows that it does not have all lanes.
 *
 * Locks: the directory's, then one agenda's.  To remove lanes of another agenda,
 * no lock may be held before.
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
#include "shmem/directory.h"
#include "shmem/epoch.h"
#include "shmem/lane_memory.h"
#include "shmem/lane_publish.h"
#include "shmem/lane_state.h"
#include "shmem/shmem.h"
#include "shmem/waiters.h"
#include "util/guc.h"
#include "util/hash.h"

/* A lane that still has something in it can be removed after this time. */
#define UNUSED_MS (60 * 1000)

/* Lanes that are looked at to find some that can be removed. */
#define LOOKS_FOR_ROOM 1024
#define ROOM_TO_MAKE 64

/* When none were found, how soon to look again. */
#define NO_ROOM_MS 100

#define CACHE_SIZE 8

/* Of a table whose triggers this backend has not looked at. */
#define UNKNOWN_LIFE 0

/* Where this backend has last found agendas, and the lives of their tables. */
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

/* While the block of shared memory is made. */
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
		pg_atomic_init_u32(&agenda->nwaiters, 0);
	}
}

static OutboxDirectory *
get_directory(void)
{
	OutboxShared *shared = outbox_shmem();

	return shared == NULL ? NULL : &shared->directory;
}

OutboxAgenda *
outbox_agenda_by_number(int number)
{
	Assert(number > 0 && number <= OUTBOX_MAX_AGENDAS);
	return &get_directory()->agendas[number - 1];
}

/* ---------------------------------------------------------------------- */
/* Forgetting                                                             */
/* ---------------------------------------------------------------------- */

/* Take a part off the list that its lane has of those that all may visit. */
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

/* From now on all may visit this part of the lane. */
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

/* Remove a lane, with all that is known of it. */
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

/* Forget all that is known of a table; whoever waits looks again. */
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
	agenda->tenant_missed = false;
	agenda->expired_to = agenda->expired_seen = DT_NOBEGIN;
	agenda->listed = false;
	agenda->round_from = PG_INT64_MIN;
	outbox_waiters_call_all(agenda, false);
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
 * Find the table's agenda, making it of one that is free, or else of the one
 * that was not used for longest.  NULL if claims wait in all of them.
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

		if (pg_atomic_read_u32(&used->nwaiters) == 0 &&
			(agenda == NULL || used->used_at < agenda->used_at))
			agenda = used;
	}
	if (agenda != NULL &&
		(agenda->relid != relid || agenda->dbid != MyDatabaseId))
	{
		LWLockAcquire(&agenda->lock, LW_EXCLUSIVE);
		if (agenda->first_waiter != OUTBOX_NIL)
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
 * What this backend knows of a table.  No table displaces another one that is in
 * use: a database has four of them, and a life that is forgotten makes the agenda
 * look out of date.
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

/* Find the table's agenda and lock it; NULL if there is none to be had. */
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

/* Read the life of this database anew. */
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
 * Before anything is reported at the end of the transaction, where no catalog
 * can be read.
 */
void
outbox_directory_prepare(void)
{
	if (!TransactionIdIsValid(life))
		read_life();
}

/* The life of this table, as this backend sees it now. */
void
outbox_directory_set_life(Oid relid, uint64 table_life)
{
	known_agenda(relid)->table_life = table_life;
}

/*
 * Was what the agenda knows learnt in the lives and the epoch of now?  A backend
 * that has not looked at the table's triggers cannot tell about the table's life,
 * so it leaves that to those that have.
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
 * Lock the agenda of a table to use what it knows; what is out of date is
 * forgotten before.  NULL if there is no shared memory, or no room in it.
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

	/* it may be we who are out of date */
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
 * transaction.  If what the agenda knows is out of date it does no harm to add
 * to it.
 */
OutboxAgenda *
outbox_agenda_lock_to_report(Oid relid)
{
	return lock_agenda(relid, LW_EXCLUSIVE);
}

/* Has every lane with messages been found room? */
bool
outbox_agenda_is_complete(const OutboxAgenda *agenda)
{
	return agenda->listed && agenda->misses == agenda->listed_misses;
}

/* ---------------------------------------------------------------------- */
/* Listing                                                                */
/* ---------------------------------------------------------------------- */

/*
 * Must lanes be listed from the index?  All of them, if the table was not listed
 * since its memory was made: then *whole is set.  If not every lane has found
 * room since, a few, from where the last listing has stopped.
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
	listing->from = listing->whole ? PG_INT64_MIN : agenda->round_from;
	LWLockRelease(&agenda->lock);
	return wanted;
}

/* A lane was found in the index; false if there is no room for it. */
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
	return found;
}

/* The listing stops; at the end of the index, or before. */
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
 * When does something become due in the lanes of these topics (or in all), but for
 * the paused ones?  DT_NOBEGIN if something is due now.  *silent: it can be earlier,
 * since there are prepared transactions, of whose end nobody tells.  False if that
 * is not known.
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
	outbox_waiters_call_due(agenda, GetCurrentTimestamp());
	known = outbox_agenda_is_complete(agenda);
	if (known)
		*due = outbox_agenda_time_of(agenda, filter, paused);
	LWLockRelease(&agenda->lock);
	return known;
}

/*
 * Copy what is known of a table, and of its lanes, for people to look at; how many
 * lanes.  -1 if nothing is known.
 */
int
outbox_agenda_copy(Oid relid, OutboxAgenda *agenda, OutboxLane **lanes)
{
	int			max = 256;
	int			n = 0;

	/* they may become more while we make room for them */
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

/* When does the first lease in a database end?  DT_NOEND if there is none. */
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
 * The clock was set back.  What is known of messages stands, for it is in the
 * tables; but a lane that was to be looked at again after a delay, or that has not
 * been used since, would have to wait until the clock is there again.
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
		outbox_waiters_call_due(agenda, now);
		LWLockRelease(&agenda->lock);
	}
}

/*
 * The lanes of databases that are gone go, too.  "exists" tells of a database
 * whether it is there; one that was made since it was asked only has its lanes
 * scanned once more.
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
		if (agenda->first_waiter == OUTBOX_NIL)
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
 * Find a lane, or a part of one, and make it if it is not there.  Nothing is
 * known of a lane that was made, so all of it must be scanned.  OUTBOX_NIL if
 * there is no room.
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
	made->cursor = OUTBOX_KEY_MIN;
	made->next_due = token == 0 ? PG_INT64_MIN : PG_INT64_MAX;
	made->leases_known = token != 0;
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
 * These are the owners that may be preferred for messages of this table.  If they
 * are not the same as before, others may be preferred now: what was left for single
 * owners is for all again.
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
	}
	agenda->members = members;
	LWLockRelease(&agenda->lock);
}

/* Can this lane be removed now?  old: even if there is something in it. */
static bool
can_go(OutboxLane *lane, bool old, TimestampTz now)
{
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

/* Go on with the hand of the clock; how many lanes were removed. */
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
 * Remove lanes that nobody needs, of any table; false if none was found.  No
 * agenda's lock may be held.
 */
bool
outbox_lanes_make_room(void)
{
	static TimestampTz not_before = 0;
	TimestampTz now = GetCurrentTimestamp();

	/* it is further ahead only if the clock was set back */
	if (now < not_before &&
		not_before <= TimestampTzPlusMilliseconds(now, NO_ROOM_MS))
		return false;
	if (advance_hand(false) > 0 || advance_hand(false) > 0 ||
		advance_hand(true) > 0)
		return true;
	not_before = TimestampTzPlusMilliseconds(now, NO_ROOM_MS);
	return false;
}
