/*
 * stream.h
 *	  Streams: messages that must be delivered in order.
 */
#ifndef OUTBOX_STREAM_H
#define OUTBOX_STREAM_H

#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "executor/tuptable.h"
#include "utils/snapshot.h"
#include "utils/uuid.h"

#include "table/table.h"

/* A walk along a stream, with a dirty snapshot. */
typedef struct OutboxStreamScan
{
	OutboxTable *queue;
	Relation	index;
	IndexScanDesc scan;
	SnapshotData snapshot;
	ScanKeyData keys[3];
	ScanDirection direction;
	bool		has_rest;		/* behind a gap, the walk goes on in these
								 * places */
	int64		rest_from;
	int64		rest_before;
	pg_uuid_t	stream;			/* the current one */
	int			ngone;			/* dead entries passed */
	int64		first_seq;		/* place of the first row found */
	int			ngone_first;	/* dead entries passed before it */
	bool		passed_over;	/* a row was found that does not count */
	TupleTableSlot *slot;		/* the current row */
} OutboxStreamScan;

/* May an owner claim a message, as far as its stream is concerned? */
typedef enum OutboxStreamVerdict
{
	OUTBOX_STREAM_CLEAR,
	OUTBOX_STREAM_BLOCKED,		/* a message before it waits */
	OUTBOX_STREAM_HELD,			/* by leases, whose owner may claim it */
	OUTBOX_STREAM_UNDECIDED		/* until a transaction has ended */
} OutboxStreamVerdict;

/* What is before a message in its stream. */
typedef struct OutboxStreamView
{
	OutboxStreamVerdict verdict;
	bool		first;			/* nothing */
	pg_uuid_t	holder;			/* OUTBOX_STREAM_HELD: owner of the nearest
								 * lease */
	TransactionId writer;		/* OUTBOX_STREAM_UNDECIDED */
} OutboxStreamView;

/* The right to enqueue in a stream now. */
typedef struct OutboxStreamTurn
{
	pg_uuid_t	stream;
	int64		last_seq;		/* the largest place ever assigned */
	bool		is_new;			/* the index has no entries of the stream */
	bool		is_empty;		/* it has no messages */
	bool		waited;
} OutboxStreamTurn;

extern void outbox_stream_scan_begin(OutboxStreamScan *scan,
									 OutboxTable *queue);
extern void outbox_stream_scan_end(OutboxStreamScan *scan);

extern void outbox_stream_turn_begin(OutboxTable *queue,
									 const pg_uuid_t *stream,
									 OutboxStreamTurn *turn);
extern TransactionId outbox_stream_last_writer(OutboxTable *queue,
											   const pg_uuid_t *stream);
extern int64 outbox_stream_turn_next(OutboxStreamTurn *turn, int64 id);
extern void outbox_stream_turn_end(OutboxTable *queue,
								   const OutboxStreamTurn *turn);

extern void outbox_stream_look_before(OutboxStreamScan *scan,
									  TupleTableSlot *message,
									  const pg_uuid_t *owner, int64 held_to,
									  TimestampTz now,
									  OutboxStreamView *view);
extern bool outbox_stream_look_behind(OutboxStreamScan *scan,
									  const pg_uuid_t *stream, int64 seq,
									  TransactionId *writer);
extern bool outbox_stream_is_free_behind(OutboxStreamScan *scan,
										 TupleTableSlot *message,
										 TransactionId *writer);
extern void outbox_stream_revoke_behind(OutboxStreamScan *scan,
										const pg_uuid_t *stream, int64 seq,
										TimestampTz now);

/* Places in streams of messages that have become ready again. */
typedef struct OutboxGoneBack
{
	int			n;
	int			max;
	struct
	{
		pg_uuid_t	stream;
		int64		seq;
	}		   *places;
} OutboxGoneBack;

extern void outbox_stream_gone_back(OutboxGoneBack *list,
									TupleTableSlot *message);
extern void outbox_stream_revoke_all(OutboxTable *queue, OutboxGoneBack *list,
									 TimestampTz now);

/* Returns whether the current call settles this message. */
typedef bool (*OutboxStreamTest) (int64 id, void *arg);

extern bool outbox_stream_lease_stands(OutboxStreamScan *scan,
									   TupleTableSlot *message,
									   const pg_uuid_t *owner, int64 checked_to,
									   OutboxStreamTest settled, void *arg);
extern void outbox_stream_ended(OutboxStreamScan *scan,
								TupleTableSlot *message);

extern bool outbox_stream_of(TupleTableSlot *message, pg_uuid_t *stream,
							 int64 *seq);

#endif							/* OUTBOX_STREAM_H */
