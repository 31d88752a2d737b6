/*
 * stream_cursor.c
 *	  Where the unfinished messages of a stream begin.
 *
 * To find out whether there is anything before a message in its stream, one
 * must walk the stream's index backwards, over the entries of finished
 * messages that cannot be removed yet.  While an old snapshot is open, each
 * message adds to these.  So for streams with such entries, shared memory has
 * the place below which everything is dead to everyone, and walks end there.
 * If the first message stays while later ones are finished, because it is
 * leased for a long time, there is a gap behind it in which everything is
 * dead; the ends of one such gap are recorded, and walks skip it.
 *
 * This is a cache of fixed size, in which streams replace each other; without
 * an entry a walk is longer, once.  Entries are correct because places in a
 * stream are assigned in ascending order.  For rows that come with a place of
 * their own (a restore, plain SQL, replication) that does not hold, so the
 * entry is removed after such a row was inserted; and a walk that began before
 * must not raise it, which it detects by the version in its ticket.
 *
 * What a transaction itself has finished is dead only when it has committed,
 * so it is noted, and published then.
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
#include "trace.h"
#include "util/grow.h"
#include "util/guc.h"
#include "util/hash.h"
#include "util/uuid.h"

#ifdef OUTBOX_TINY
#define TINY_CURSORS 2
#endif

/* What will be dead when this transaction has committed. */
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

/* The size of the cache, for a budget of so much memory for lanes. */
Size
outbox_stream_cursors_size(Size budget)
{
	return offsetof(OutboxStreamCursors, cursors) +
		(Size) cursors_for(budget) * sizeof(OutboxStreamCursor);
}

/* Initialize the cache, when the block of shared memory is created. */
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

/*
 * Lock and return the entry for a stream, which may be another stream's; NULL
 * if there is no cache.
 */
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

/*
 * Get a ticket for a walk along the stream, which says where the walk can end.
 */
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
	OUTBOX_TRACE_STREAM("get", cursor, stream, ticket, 0, 0);
	LWLockRelease(lock);
}

/*
 * Lock and return the cursor that a walk with this ticket may raise, replacing
 * another stream's if necessary.  NULL if it must not be raised, because what
 * the walk has seen may be out of date.
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
 * Raise the cursor, after a walk has found everything below "low" dead to
 * everyone.
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
	OUTBOX_TRACE_STREAM("raise", cursor, stream, ticket, low, 0);
	LWLockRelease(lock);
}

/*
 * Is a gap that begins here more useful than the known one?  The gap behind
 * the first message is the most useful.
 */
static bool
is_better_gap(int64 from, const OutboxStreamGap *known, int64 low)
{
	return known->from >= known->to || known->from < low || from <= known->from;
}

/* Would outbox_stream_cursor_widen accept a gap that begins here? */
bool
outbox_stream_cursor_wants(const OutboxStreamTicket *ticket, int64 from)
{
	return ticket->valid && is_better_gap(from, &ticket->gap, ticket->low);
}

/*
 * Record a gap, after a walk has found everything between these places dead to
 * everyone.
 */
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
	OUTBOX_TRACE_STREAM("widen", cursor, stream, ticket, from, to);
	LWLockRelease(lock);
}

/*
 * Remove the entry of a stream: something may have been inserted below its
 * place.
 */
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
	OUTBOX_TRACE_STREAM("forget", cursor, stream, cursor, 0, 0);
	LWLockRelease(lock);
}

/* ---------------------------------------------------------------------- */
/* Transactions                                                           */
/* ---------------------------------------------------------------------- */

/*
 * Note that everything below "low" will be dead to everyone when the current
 * (sub-)transaction has committed.
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

/* Publish the notes at the end of the transaction, if it has committed. */
void
outbox_stream_cursor_xact_end(bool committed)
{
	for (int i = 0; committed && i < nnotes; i++)
	{
		const Note *note = &notes[i];

		/* the note's savepoint may have been rolled back */
		if (TransactionIdDidCommit(note->xid))
			outbox_stream_cursor_raise(note->relid, &note->stream,
									   &note->ticket, note->low);
	}
	nnotes = 0;
}
