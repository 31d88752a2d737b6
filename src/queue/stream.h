/*
 * stream.h
 *	  Messages that must be delivered one after the other.
 */
#ifndef OUTBOX_STREAM_H
#define OUTBOX_STREAM_H

#include "postgres.h"

#include "access/genam.h"
#include "access/relscan.h"
#include "utils/snapshot.h"
#include "utils/uuid.h"

#include "table/table.h"

/* A walk along a stream, seeing what is uncommitted. */
typedef struct OutboxStreamScan
{
	OutboxTable *queue;
	Relation	index;
	IndexScanDesc scan;
	SnapshotData snapshot;
	ScanKeyData keys[2];
	ScanDirection direction;
} OutboxStreamScan;

/* May a message be handed to an owner, as far as its stream goes? */
typedef enum OutboxStreamVerdict
{
	OUTBOX_STREAM_CLEAR,
	OUTBOX_STREAM_BLOCKED,
	OUTBOX_STREAM_DOUBT			/* ask again when *writer has ended */
} OutboxStreamVerdict;

/* Where the next message of a stream is to lie. */
typedef enum OutboxStreamPlace
{
	OUTBOX_PLACE_READY,			/* in its topic's lane */
	OUTBOX_PLACE_OWNER,			/* in the lane of who holds all before it */
	OUTBOX_PLACE_PARKED			/* out of the way */
} OutboxStreamPlace;

/* A stream in which this transaction may enqueue now. */
typedef struct OutboxStreamTurn
{
	pg_uuid_t	stream;
	OutboxStreamPlace place;
	pg_uuid_t	owner;			/* if OUTBOX_PLACE_OWNER */
	TransactionId writer;		/* who may yet make "place" wrong */
	bool		own_tail;		/* the message before is our own */
	int64		tail_seq;		/* its place; 0: none */
} OutboxStreamTurn;

/* Some streams, each once. */
typedef struct OutboxStreamSet
{
	int			n;
	int			max;
	pg_uuid_t  *streams;
} OutboxStreamSet;

extern void outbox_stream_scan_begin(OutboxStreamScan *scan,
									 OutboxTable *queue);
extern void outbox_stream_scan_end(OutboxStreamScan *scan);
extern void outbox_stream_seek_after(OutboxStreamScan *scan,
									 const pg_uuid_t *stream, int64 seq);
extern void outbox_stream_seek_before(OutboxStreamScan *scan,
									  const pg_uuid_t *stream, int64 seq);
extern bool outbox_stream_next(OutboxStreamScan *scan, TupleTableSlot *slot,
							   TransactionId *writer);

extern bool outbox_stream_turn_begin(OutboxTable *queue,
									 const pg_uuid_t *stream,
									 OutboxStreamTurn *turn);
extern void outbox_stream_turn_end(OutboxTable *queue,
								   const OutboxStreamTurn *turn);
extern void outbox_stream_turn_keep(OutboxTable *queue,
									OutboxStreamTurn *turn);

extern OutboxStreamVerdict outbox_stream_check(OutboxStreamScan *scan,
											   TupleTableSlot *message,
											   TupleTableSlot *scratch,
											   const pg_uuid_t *owner,
											   TimestampTz now,
											   TransactionId *writer);

extern void outbox_stream_set_add(OutboxStreamSet *set,
								  const pg_uuid_t *stream);
extern void outbox_stream_arrange(OutboxTable *queue, OutboxStreamSet *set,
								  TimestampTz now, bool leases_ended);
extern void outbox_stream_settle_doubts(OutboxTable *queue, TimestampTz now);

#endif							/* OUTBOX_STREAM_H */
