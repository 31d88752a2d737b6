/*
 * stream_cursor.c
 *	  Where the unfinished messages of a stream begin.
 *
 * To know whether anything is before a message in its stream one must walk the
 * stream's index backwards, over the entries of all that was finished and cannot
 * be removed yet.  With an old snapshot open these become more with every message.
 * So for streams with a past, shared memory keeps the place below which everything
 * is gone for good, and walks end there.  Where the first message stays while those
 * behind it go, as when one owner has it leased for long, there is a gap behind it
 * in which everything is gone; of one such gap the ends are kept, and walks leap
 * over it.
 *
 * This is a cache of fixed size, in which a stream replaces another; without an
 * entry a walk is longer, once.  An entry is right because places in a stream
 * are given out in ascending order.  Where that does not hold, for rows that come
 * with a place of their own (a restore, plain SQL, replication), the entry is
 * forgotten after the row was inserted; and a walk that began before may not
 * raise it, because its ticket then has another version.
 *
 * What a transaction has finished itself is gone only when it has committed: that
 * is noted and published then.
 *
 * Locks: one for every 32nd entry, held for one step.
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "outbox.h"
#include "shmem/epoch.h"
#include "shmem/shmem.h"
#include "shmem/stream_cursor.h"
#include "util/grow.h"
#include "util/guc.h"
#include "util/hash.h"
#include "util/uuid.h"

#ifdef OUTBOX_TINY
#define TINY_CURSORS 2
#endif

/* What is gone when this transaction has committed. */
typedef struct Note
{
	Oid			relid;
	pg_uuid_t	stream;
	OutboxStreamTicket ticket;
	int64		low;
	TransactionId xid;
} Note;

static Note *notes = NULL;
static int	nnotes = 0;
static int	max_notes = 0;

/* ---------------------------------------------------------------------- */
/* Layout                                                                 */
/* ---------------------------------------------------------------------- */

static int
cursors_for(Size budget)
{
#ifdef OUTBOX_TINY
	return TINY_CURSORS;
#else
	return (int) Min(Max(budget / sizeof(OutboxStreamCursor), 256),
					 PG_INT32_MAX / 2);
#endif
}

Size
outbox_stream_cursors_size(Size budget)
{
	return offsetof(OutboxStreamCursors, cursors) +
		(Size) cursors_for(budget) * sizeof(OutboxStreamCursor);
}

/* While the block of shared memory is made. */
void
outbox_stream_cursors_init(OutboxStreamCursors *cursors, Size budget,
						   int tranche)
{
	cursors->ncursors = cursors_for(budget);
	for (int i = 0; i < OUTBOX_STREAM_LOCKS; i++)
		LWLockInitialize(&cursors->locks[i], tranche);
	memset(cursors->cursors, 0,
		   (Size) cursors->ncursors * sizeof(OutboxStreamCursor));
}

/* ---------------------------------------------------------------------- */
/* Entries                                                                */
/* ---------------------------------------------------------------------- */

/* A stream's place in the cache, with its lock held; NULL if there is none. */
static OutboxStreamCursor *
lock_cursor(Oid relid, const pg_uuid_t *stream, LWLockMode mode, LWLock **lock)
{
	OutboxStreamCursors *all = outbox_shmem_stream_cursors();
	uint32		at;

	if (all == NULL)
		return NULL;
	at = (outbox_uuid_hash(stream) ^ relid * 0x9e3779b9) % all->ncursors;
	*lock = &all->locks[at % OUTBOX_STREAM_LOCKS];
	LWLockAcquire(*lock, mode);
	return &all->cursors[at];
}

static bool
is_of(const OutboxStreamCursor *cursor, Oid relid, const pg_uuid_t *stream)
{
	return cursor->relid == relid && cursor->dbid == MyDatabaseId &&
		outbox_uuid_equal(&cursor->stream, stream);
}

/* Before a walk along the stream: where it can end. */
void
outbox_stream_cursor_get(Oid relid, const pg_uuid_t *stream,
						 OutboxStreamTicket *ticket)
{
	LWLock	   *lock;
	OutboxStreamCursor *cursor;

	ticket->low = PG_INT64_MIN;
	ticket->gap.from = ticket->gap.to = 0;
	ticket->valid = false;
	if (!outbox_use_cursor)
		return;
	cursor = lock_cursor(relid, stream, LW_SHARED, &lock);
	if (cursor == NULL)
		return;
	ticket->valid = true;
	ticket->version = cursor->version;
	ticket->epoch = outbox_epoch(relid);
	if (is_of(cursor, relid, stream) && cursor->epoch == ticket->epoch)
	{
		ticket->low = cursor->low;
		ticket->gap = cursor->gap;
	}
	LWLockRelease(lock);
}

/*
 * Find the cursor that a walk with this ticket may raise, with its lock held, or
 * make it of another stream's.  NULL if it must not, because what the walk has
 * seen may be out of date.
 */
static OutboxStreamCursor *
lock_cursor_to_raise(Oid relid, const pg_uuid_t *stream,
					 const OutboxStreamTicket *ticket, LWLock **lock)
{
	OutboxStreamCursor *cursor;

	cursor = lock_cursor(relid, stream, LW_EXCLUSIVE, lock);
	if (cursor == NULL)
		return NULL;
	if (cursor->version != ticket->version || outbox_epoch(relid) != ticket->epoch)
	{
		LWLockRelease(*lock);
		return NULL;
	}
	if (!is_of(cursor, relid, stream) || cursor->epoch != ticket->epoch)
	{
		cursor->version += !is_of(cursor, relid, stream);
		cursor->dbid = MyDatabaseId;
		cursor->relid = relid;
		cursor->stream = *stream;
		cursor->low = PG_INT64_MIN;
		cursor->gap.from = cursor->gap.to = 0;
		cursor->epoch = ticket->epoch;
	}
	return cursor;
}

/*
 * A walk with this ticket has found everything below "low" gone for good.
 */
void
outbox_stream_cursor_raise(Oid relid, const pg_uuid_t *stream,
						   const OutboxStreamTicket *ticket, int64 low)
{
	LWLock	   *lock;
	OutboxStreamCursor *cursor;

	if (!ticket->valid || low <= ticket->low)
		return;
	cursor = lock_cursor_to_raise(relid, stream, ticket, &lock);
	if (cursor == NULL)
		return;
	cursor->low = Max(cursor->low, low);
	LWLockRelease(lock);
}

/*
 * Is a gap from here worth more than the one that is known?  The one behind the
 * first message is worth most.
 */
static bool
is_better_gap(int64 from, const OutboxStreamGap *known, int64 low)
{
	return known->from >= known->to || known->from < low || from <= known->from;
}

/* Would outbox_stream_cursor_widen take a gap from here? */
bool
outbox_stream_cursor_wants(const OutboxStreamTicket *ticket, int64 from)
{
	return ticket->valid && is_better_gap(from, &ticket->gap, ticket->low);
}

/* The walk has found everything between these places gone for good. */
void
outbox_stream_cursor_widen(Oid relid, const pg_uuid_t *stream,
						   const OutboxStreamTicket *ticket, int64 from, int64 to)
{
	LWLock	   *lock;
	OutboxStreamCursor *cursor;

	if (!ticket->valid)
		return;
	cursor = lock_cursor_to_raise(relid, stream, ticket, &lock);
	if (cursor == NULL)
		return;
	if (cursor->gap.from == from)
		cursor->gap.to = Max(cursor->gap.to, to);
	else if (is_better_gap(from, &cursor->gap, cursor->low))
		cursor->gap = OUTBOX_MAKE(OutboxStreamGap, from, to);
	LWLockRelease(lock);
}

/* Something may have been inserted below what is known. */
void
outbox_stream_cursor_forget(Oid relid, const pg_uuid_t *stream)
{
	LWLock	   *lock;
	OutboxStreamCursor *cursor = lock_cursor(relid, stream, LW_EXCLUSIVE, &lock);

	if (cursor == NULL)
		return;
	if (is_of(cursor, relid, stream))
		cursor->relid = InvalidOid;
	cursor->version++;
	LWLockRelease(lock);
}

/* ---------------------------------------------------------------------- */
/* Transactions                                                           */
/* ---------------------------------------------------------------------- */

/*
 * When the current (sub-)transaction has committed, everything below "low" will
 * be gone for good.
 */
void
outbox_stream_cursor_note(Oid relid, const pg_uuid_t *stream,
						  const OutboxStreamTicket *ticket, int64 low)
{
	if (!ticket->valid || low <= ticket->low)
		return;
	notes = outbox_grow_in(TopMemoryContext, notes, nnotes, &max_notes,
						   sizeof(Note));
	notes[nnotes++] = OUTBOX_MAKE(Note, relid, *stream, *ticket, low,
								  GetCurrentTransactionId());
}

void
outbox_stream_cursor_xact_end(bool committed)
{
	for (int i = 0; committed && i < nnotes; i++)
	{
		const Note *note = &notes[i];

		/* a savepoint may have been rolled back */
		if (TransactionIdDidCommit(note->xid))
			outbox_stream_cursor_raise(note->relid, &note->stream,
									   &note->ticket, note->low);
	}
	nnotes = 0;
}
