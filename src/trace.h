/*
 * trace.h
 *	  A trace of what the code does, for the models in test/models.
 *
 * Each macro writes one event: a transition of a model, or information that
 * the model needs to follow.  It is written while the lock is held, or the row
 * locked, under which the code makes the transition, so that the order of
 * events is that of transitions.  Events are written in builds with
 * assertions, or with -DOUTBOX_TRACE, if there is a file for them in the data
 * directory; other builds do not contain this code.
 */
#ifndef OUTBOX_TRACE_H
#define OUTBOX_TRACE_H

#include "postgres.h"

#include "executor/tuptable.h"
#include "utils/uuid.h"

/* The file in the data directory; its size determines the number of events. */
#define OUTBOX_TRACE_FILE "outbox.trace"

#define OUTBOX_TRACE_VALUES 13

/* An event in the file.  The first entry is the counter, and not an event. */
typedef struct OutboxTraceEvent
{
	char		what[16];		/* empty: not completely written */
	int32		pid;
	int32		nvalues;
	int64		values[OUTBOX_TRACE_VALUES];
} OutboxTraceEvent;

#if defined(USE_ASSERT_CHECKING) || defined(OUTBOX_TRACE)
#define OUTBOX_TRACE_EVENT(what, ...) \
	outbox_trace(what, (const int64[]) {__VA_ARGS__}, \
				 lengthof(((const int64[]) {__VA_ARGS__})))
#define OUTBOX_TRACE_ROW(what, call, old, new, attempt) \
	outbox_trace_row(what, RelationGetRelid((call)->queue.rel), old, new, \
					 (call)->now, attempt)
#define OUTBOX_TRACE_XACT(what, commits) outbox_trace_xact(what, commits)
#define OUTBOX_TRACE_SQL() outbox_trace_sql()
#else
#define OUTBOX_TRACE_EVENT(what, ...) ((void) 0)
#define OUTBOX_TRACE_ROW(what, call, old, new, attempt) ((void) 0)
#define OUTBOX_TRACE_XACT(what, commits) ((void) 0)
#define OUTBOX_TRACE_SQL() ((void) 0)
#endif

/* Messages that are settled, or requeued. */
#define OUTBOX_TRACE_END(done, call, attempt) \
	OUTBOX_TRACE_ROW((done) ? "row.ack" : "row.fail", call, (call)->slot, NULL, attempt)
#define OUTBOX_TRACE_BACK(what, call, attempt) \
	OUTBOX_TRACE_ROW(what, call, (call)->slot, (call)->row, attempt)
#define OUTBOX_TRACE_REDRIVE(table, id) \
	OUTBOX_TRACE_EVENT("row.redrive", RelationGetRelid((table)->rel), id, \
					   GetTopTransactionId())

/*
 * What a transaction has done to a join, or has seen of what others do.  These
 * are written after the row was changed or read, in most cases without a lock.
 */
#define OUTBOX_TRACE_JOIN(what, uuid, ...) \
	OUTBOX_TRACE_EVENT("join." what, outbox_trace_uuid(uuid), \
					   GetTopTransactionIdIfAny(), __VA_ARGS__)
#define OUTBOX_TRACE_NOTHING 0
#define OUTBOX_TRACE_DONE 1
#define OUTBOX_TRACE_LEFT 2		/* to join_rechecks */

/* A change of a stream's entry, and the result. */
#define OUTBOX_TRACE_STREAM(what, cursor, asked, ticket, start, end) \
	OUTBOX_TRACE_EVENT("stream." what, (int64) (cursor), outbox_trace_uuid(asked), \
					   (ticket)->version, (ticket)->low, (ticket)->gap.from, \
					   (ticket)->gap.to, start, end, \
					   (cursor)->relid != 0 ? outbox_trace_uuid(&(cursor)->stream) : 0, \
					   (cursor)->low, (cursor)->gap.from, (cursor)->gap.to, \
					   (cursor)->version)

/* A change of the waiting claims, and the time keeper after it. */
#define OUTBOX_TRACE_WAIT(what, agenda, ...) \
	OUTBOX_TRACE_EVENT("wait." what, (agenda)->number, (agenda)->keeper, __VA_ARGS__)
#define OUTBOX_TRACE_CALL(what, lane, value) \
	OUTBOX_TRACE_EVENT("wait." what, (lane)->store, 0, value, \
					   (lane)->place.namespace_hash, (lane)->place.topic_hash, \
					   (lane)->place.tenant_hash, (lane)->place.subscriber, \
					   (lane)->place.priority, (lane)->token)

/* A change of a lane, and the result, except for whether marks are kept. */
#define OUTBOX_TRACE_LANE(what, lane, value) \
	OUTBOX_TRACE_EVENT("lane." what, (int64) (lane), value)
#define OUTBOX_TRACE_RANGE(what, lane, range, value) \
	OUTBOX_TRACE_EVENT("lane." what, (int64) (lane), value, (range)->lo.at, \
					   (range)->lo.id, (range)->hi.at, (range)->hi.id)
#define OUTBOX_TRACE_ADVANCE(lane, scan, done, now) \
	OUTBOX_TRACE_EVENT("lane.advance", (int64) (lane), (scan)->phase, (done).at, \
					   (done).id, now, (scan)->limit.at, (scan)->limit.id, \
					   (scan)->exhausted, (scan)->next_due)
#define OUTBOX_TRACE_STATE(lane) \
	OUTBOX_TRACE_EVENT("lane.state", (int64) (lane), (lane)->cursor.at, \
					   (lane)->cursor.id, (lane)->next_due, (lane)->low[0].at, \
					   (lane)->low[0].id, (lane)->low[1].at, (lane)->low[1].id, \
					   (lane)->nscans[0], (lane)->nscans[1], (lane)->phase, \
					   (lane)->leases_known, (lane)->leases_lost)

extern void outbox_trace(const char *what, const int64 *values, int nvalues);
extern void outbox_trace_row(const char *what, Oid relid, TupleTableSlot *old,
							 TupleTableSlot *new, TimestampTz now, int attempt);
extern void outbox_trace_xact(const char *what, bool commits);
extern int64 outbox_trace_uuid(const pg_uuid_t *uuid);
extern void outbox_trace_sql(void);

#endif							/* OUTBOX_TRACE_H */
