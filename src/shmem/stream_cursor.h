/*
 * stream_cursor.h
 *	  Where the unfinished messages of a stream begin.
 */
#ifndef OUTBOX_STREAM_CURSOR_H
#define OUTBOX_STREAM_CURSOR_H

#include "postgres.h"

#include "storage/lwlock.h"
#include "utils/uuid.h"

#define OUTBOX_STREAM_LOCKS 32

/*
 * In the stream, everything below "low" is dead to everyone, and so is
 * everything between the two ends of the gap, which are not included.  Both
 * are 0 if there is no gap.
 */
typedef struct OutboxStreamGap
{
	int64		from;
	int64		to;
} OutboxStreamGap;

typedef struct OutboxStreamCursor
{
	Oid			dbid;
	Oid			relid;			/* invalid: free */
	pg_uuid_t	stream;
	int64		low;
	OutboxStreamGap gap;
	uint64		epoch;			/* epoch of the table at that time */
	uint32		version;		/* changes when it is lowered or replaced */
} OutboxStreamCursor;

typedef struct OutboxStreamCursors
{
	int			ncursors;
	LWLock		locks[OUTBOX_STREAM_LOCKS];
	OutboxStreamCursor cursors[FLEXIBLE_ARRAY_MEMBER];
} OutboxStreamCursors;

/* What was known when a walk along a stream began. */
typedef struct OutboxStreamTicket
{
	int64		low;
	OutboxStreamGap gap;
	uint64		epoch;
	uint32		version;
	bool		valid;
} OutboxStreamTicket;

extern Size outbox_stream_cursors_size(Size budget);
extern void outbox_stream_cursors_init(OutboxStreamCursors *cursors,
									   Size budget, int tranche);

extern void outbox_stream_cursor_get(Oid relid, const pg_uuid_t *stream,
									 OutboxStreamTicket *ticket);
extern void outbox_stream_cursor_raise(Oid relid, const pg_uuid_t *stream,
									   const OutboxStreamTicket *ticket,
									   int64 low);
extern bool outbox_stream_cursor_wants(const OutboxStreamTicket *ticket,
									   int64 from);
extern void outbox_stream_cursor_widen(Oid relid, const pg_uuid_t *stream,
									   const OutboxStreamTicket *ticket,
									   int64 from, int64 to);
extern void outbox_stream_cursor_forget(Oid relid, const pg_uuid_t *stream);
extern void outbox_stream_cursor_note(Oid relid, const pg_uuid_t *stream,
									  const OutboxStreamTicket *ticket,
									  int64 low);
extern void outbox_stream_cursor_xact_end(bool committed);

#endif							/* OUTBOX_STREAM_CURSOR_H */
