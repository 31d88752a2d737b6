/*
 * join.c
 *	  Joins: counting the steps that have ended, and waking the waits.
 *
 * When messages end, they are counted in their joins: first all members are
 * marked, in the order of their messages, then each join is updated once, in
 * the order of the ids, then the waits of those that are complete are woken.
 * Since every call uses this order, and does this after everything else, calls
 * cannot deadlock.
 *
 * A member's first outcome stands, and a join that is complete or cancelled
 * never changes again; so an outcome that is reported twice, or out of order,
 * is counted once.
 *
 * Some things cannot be done at once.  They are left to the evaluation of
 * waits (sql/waits.sql), as a row in outbox.join_rechecks:
 *
 *	- a message ends, or a step is reported by hand, while another transaction
 *	  that is still in progress makes it a member: the outcome is counted when
 *	  that transaction has ended;
 *	- a claim or a reap buries a message, or a wait ends, and the member or its
 *	  join is locked: none of these may block, so the outcome is counted later;
 *	- a join is not committed yet when one of its members ends;
 *	- a wait that must be woken is locked: it is woken later.
 *
 * The attaching transaction looks up the message after it has inserted the
 * member, and this code looks up members after the message is gone from the
 * queue: so at least one of the two sees the other.
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "core/join.h"
#include "outbox.h"
#include "queue/end_trigger.h"
#include "queue/queue.h"
#include "shmem/wake.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/probe.h"
#include "table/table.h"
#include "trace.h"
#include "util/grow.h"
#include "util/guc.h"
#include "util/uuid.h"

/* outbox.joins */
enum
{
	J_ID = 1,
	J_GROUPING_KEY,
	J_EXPECTED_STEPS,
	J_COMPLETED_STEPS,
	J_FAILED_STEPS,
	J_STATUS,
	J_CREATED_AT,
	J_LAST_UPDATED_AT,
	J_METADATA,
	J_NATTS = J_METADATA
};

/* outbox.join_members */
enum
{
	JM_JOIN_ID = 1,
	JM_MESSAGE_ID,
	JM_STATUS,
	JM_CREATED_AT,
	JM_NATTS = JM_CREATED_AT
};

/* outbox.join_waits */
enum
{
	JW_JOIN_ID = 1,
	JW_MESSAGE_ID,
	JW_NATTS = JW_MESSAGE_ID
};

/* outbox.join_rechecks */
enum
{
	JR_ID = 1,
	JR_WAITS_FOR,
	JR_JOIN_ID,
	JR_MESSAGE_ID,
	JR_STATUS,
	JR_MISSED_AT,
	JR_NATTS = JR_MISSED_AT
};

/* A member whose outcome is set by this call. */
typedef struct Step
{
	pg_uuid_t	join_id;
	int			position;		/* among the messages that ended */
	OutboxJoinStatus outcome;
} Step;

/* State of one call. */
typedef struct Counter
{
	const OutboxEndedList *ended;
	const pg_uuid_t *only_join; /* or NULL */
	bool		attached;		/* the last message has such members */
	TimestampTz now;
	int			nsteps;
	int			max_steps;
	Step	   *steps;
	int			ncomplete;
	pg_uuid_t  *complete;		/* joins whose waits must be woken */
} Counter;

/* ---------------------------------------------------------------------- */
/* Rechecks                                                               */
/* ---------------------------------------------------------------------- */

/*
 * Leave something to be counted later, in join_rechecks, which is nearly always
 * empty.
 */
static void
leave_recheck(TransactionId waits_for, const pg_uuid_t *join_id,
			  const pg_uuid_t *message_id, OutboxStatus status)
{
	const OutboxCatalog *catalog = outbox_catalog();
	OutboxTable rechecks;
	TupleTableSlot *row;

	outbox_table_open(&rechecks, catalog->join_rechecks, JR_NATTS);
	row = outbox_table_new_row(&rechecks);
	outbox_row_set(row, JR_ID,
				   Int64GetDatum(nextval_internal(catalog->sequence, false)));
	outbox_row_set(row, JR_WAITS_FOR, TransactionIdGetDatum(waits_for));
	if (join_id != NULL)
		outbox_row_set(row, JR_JOIN_ID, UUIDPGetDatum(join_id));
	if (message_id != NULL)
	{
		outbox_row_set(row, JR_MESSAGE_ID, UUIDPGetDatum(message_id));
		outbox_row_set(row, JR_STATUS, Int16GetDatum(status));
	}
	outbox_table_insert(&rechecks, row);
	ExecDropSingleTupleTableSlot(row);
	outbox_table_close(&rechecks);
	outbox_wake_note_worker();
}

/* ---------------------------------------------------------------------- */
/* Members                                                                */
/* ---------------------------------------------------------------------- */

static void
add_step(Counter *counter, TupleTableSlot *member, int position,
		 OutboxJoinStatus outcome)
{
	outbox_grow(counter->steps, counter->nsteps, counter->max_steps);
	counter->steps[counter->nsteps++] =
		OUTBOX_MAKE(Step, *DatumGetUUIDP(outbox_row_get(member, JM_JOIN_ID)),
					position, outcome);
}

/* Does the caller want the message counted in the join of this member? */
static bool
is_wanted(Counter *counter, TupleTableSlot *member)
{
	return counter->only_join == NULL ||
		outbox_uuid_equal(DatumGetUUIDP(outbox_row_get(member, JM_JOIN_ID)),
						  counter->only_join);
}

/*
 * Mark what the probe finds, which is all members for one message.  False if
 * one of them was changed concurrently: then they must be read again.
 */
static bool
mark_members(Counter *counter, OutboxTable *members, OutboxProbe *probe,
			 TupleTableSlot *slot, TupleTableSlot *row, int position)
{
	const OutboxEnded *message = &counter->ended->messages[position];
	OutboxJoinStatus outcome;
	bool		wait = !counter->ended->must_not_wait;
	TransactionId writer;
	bool		left = false;

	Assert(message->status == OUTBOX_DONE || message->status == OUTBOX_DEAD);
	counter->attached = false;
	outcome = message->status == OUTBOX_DONE ? OUTBOX_JOIN_COMPLETED :
		OUTBOX_JOIN_FAILED;
	outbox_probe_seek(probe, UUIDPGetDatum(&message->message_id));
	while (outbox_probe_next(probe, slot, &writer))
	{
		if (!is_wanted(counter, slot))
			continue;
		counter->attached = true;
		if (DatumGetInt16(outbox_row_get(slot, JM_STATUS)) != OUTBOX_JOIN_PENDING)
			continue;
		if (TransactionIdIsValid(probe->snapshot.xmin))
		{
			/*
			 * it is becoming a member; of one being updated, the old version
			 * is seen as well
			 */
			if (!outbox_row_is_update(slot) && !left)
			{
				OUTBOX_TRACE_JOIN("mark", &message->message_id,
								  OUTBOX_TRACE_LEFT, writer, wait);
				leave_recheck(writer, counter->only_join,
							  &message->message_id, message->status);
				left = true;
			}
			continue;
		}
		outbox_new_row_from(row, slot);
		outbox_row_set(row, JM_STATUS, Int16GetDatum(outcome));
		switch (outbox_table_update(members, slot, row, wait, &writer))
		{
			case OUTBOX_ROW_OK:
				OUTBOX_TRACE_JOIN("mark", &message->message_id,
								  OUTBOX_TRACE_DONE, 0, wait);
				add_step(counter, slot, position, outcome);
				break;
			case OUTBOX_ROW_REFUSED:
				break;
			case OUTBOX_ROW_LOCKED:
				/* that transaction reports the same message by hand */
				OUTBOX_TRACE_JOIN("mark", &message->message_id,
								  OUTBOX_TRACE_LEFT, writer, wait);
				leave_recheck(writer, counter->only_join,
							  &message->message_id, message->status);
				break;
			case OUTBOX_ROW_GONE:
				return false;
		}
	}
	OUTBOX_TRACE_JOIN("mark", &message->message_id, OUTBOX_TRACE_NOTHING, 0,
					  wait);
	return true;
}

typedef struct Ordered
{
	const pg_uuid_t *message_id;
	int			position;
} Ordered;

static int
cmp_ordered(const void *a, const void *b)
{
	return outbox_uuid_cmp(((const Ordered *) a)->message_id,
						   ((const Ordered *) b)->message_id);
}

/* Set the outcomes of the members, in the order of their messages. */
static void
mark_all_members(Counter *counter)
{
	const OutboxEndedList *ended = counter->ended;
	Ordered    *order = palloc_array(Ordered, ended->n);
	OutboxTable members;
	OutboxProbe probe;
	TupleTableSlot *slot;
	TupleTableSlot *row;

	for (int i = 0; i < ended->n; i++)
		order[i] = OUTBOX_MAKE(Ordered, &ended->messages[i].message_id, i);
	qsort(order, ended->n, sizeof(Ordered), cmp_ordered);

	outbox_table_open(&members, outbox_catalog()->join_members, JM_NATTS);
	members.nkeys = 2;
	slot = outbox_table_slot(&members);
	row = outbox_table_new_row(&members);
	outbox_probe_begin(&probe, &members, outbox_catalog()->join_members_message);
	for (int i = 0; i < ended->n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		while (!mark_members(counter, &members, &probe, slot, row,
							 order[i].position))
			CHECK_FOR_INTERRUPTS();
	}
	outbox_probe_end(&probe);
	ExecDropSingleTupleTableSlot(row);
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&members);
	pfree(order);
}

/* ---------------------------------------------------------------------- */
/* Joins                                                                  */
/* ---------------------------------------------------------------------- */

static int
cmp_step(const void *a, const void *b)
{
	const Step *sa = a;
	const Step *sb = b;
	int			cmp = outbox_uuid_cmp(&sa->join_id, &sb->join_id);

	return cmp != 0 ? cmp : sa->position - sb->position;
}

/*
 * Count steps that have ended in a join, failed ones first, up to the number
 * of expected steps.  Returns how many were added.  The last expected step
 * ends the join, and a join that has ended never changes again.
 */
int
outbox_join_add(OutboxJoinCount *count, int completed, int failed)
{
	int			room = count->expected - count->completed - count->failed;

	Assert(count->expected > 0 && count->completed >= 0 && count->failed >= 0);
	Assert(completed >= 0 && failed >= 0);
	Assert(room >= 0);
	if (count->status != OUTBOX_JOIN_PENDING)
		return 0;
	failed = Min(failed, room);
	completed = Min(completed, room - failed);
	count->failed += failed;
	count->completed += completed;
	if (completed + failed == room)
		count->status = count->failed > 0 ? OUTBOX_JOIN_FAILED :
			OUTBOX_JOIN_COMPLETED;
	return completed + failed;
}

static void
read_count(TupleTableSlot *join, OutboxJoinCount *count)
{
	count->expected = DatumGetInt32(outbox_row_get(join, J_EXPECTED_STEPS));
	count->completed = DatumGetInt32(outbox_row_get(join, J_COMPLETED_STEPS));
	count->failed = DatumGetInt32(outbox_row_get(join, J_FAILED_STEPS));
	count->status = DatumGetInt16(outbox_row_get(join, J_STATUS));
}

/* Make the next version of a join; false if it has ended. */
static bool
count_steps(Counter *counter, TupleTableSlot *join, TupleTableSlot *row,
			const Step *steps, int nsteps)
{
	OutboxJoinCount count;
	int			room;
	int			failed = 0;

	read_count(join, &count);
	room = count.expected - count.completed - count.failed;
	if (count.status != OUTBOX_JOIN_PENDING)
		return false;
	/* if there are more steps than expected, the first to end count */
	nsteps = Min(nsteps, room);
	for (int i = 0; i < nsteps; i++)
		failed += steps[i].outcome == OUTBOX_JOIN_FAILED;
	(void) outbox_join_add(&count, nsteps - failed, failed);
	outbox_new_row_from(row, join);
	outbox_row_set(row, J_COMPLETED_STEPS, Int32GetDatum(count.completed));
	outbox_row_set(row, J_FAILED_STEPS, Int32GetDatum(count.failed));
	outbox_row_set(row, J_LAST_UPDATED_AT, TimestampTzGetDatum(counter->now));
	outbox_row_set(row, J_STATUS, Int16GetDatum(count.status));
	return true;
}

static void
log_complete(TupleTableSlot *row)
{
	if (message_level_is_interesting(outbox_log_level))
		outbox_log("outbox join: %s is complete, status %s, %d completed, %d failed",
				   DatumGetCString(DirectFunctionCall1(uuid_out,
													   outbox_row_get(row, J_ID))),
				   DatumGetInt16(outbox_row_get(row, J_STATUS)) == OUTBOX_JOIN_FAILED ?
				   "failed" : "completed",
				   DatumGetInt32(outbox_row_get(row, J_COMPLETED_STEPS)),
				   DatumGetInt32(outbox_row_get(row, J_FAILED_STEPS)));
}

/*
 * Count the steps of one join.  A join that has ended never changes again, so
 * there is no need to wait for a transaction that is deleting it.
 */
static void
change_join(Counter *counter, OutboxTable *joins, OutboxProbe *probe,
			TupleTableSlot *slot, TupleTableSlot *row,
			const Step *steps, int nsteps)
{
	const pg_uuid_t *join_id = &steps[0].join_id;
	OutboxRowResult result = OUTBOX_ROW_GONE;

	while (result == OUTBOX_ROW_GONE)
	{
		TransactionId blocker = InvalidTransactionId;

		CHECK_FOR_INTERRUPTS();
		if (!outbox_probe(probe, UUIDPGetDatum(join_id), slot, &blocker))
		{
			/* deleted; or inserted by plain SQL, and not committed */
			if (TransactionIdIsValid(blocker))
				leave_recheck(blocker, join_id, NULL, OUTBOX_READY);
			return;
		}
		if (!count_steps(counter, slot, row, steps, nsteps))
			return;
		result = outbox_table_update(joins, slot, row,
									 !counter->ended->must_not_wait, &blocker);
	}
	OUTBOX_TRACE_JOIN("count", join_id,
					  result == OUTBOX_ROW_OK ? OUTBOX_TRACE_DONE : OUTBOX_TRACE_LEFT,
					  DatumGetInt32(outbox_row_get(row, J_COMPLETED_STEPS)) +
					  DatumGetInt32(outbox_row_get(row, J_FAILED_STEPS)));
	if (result == OUTBOX_ROW_LOCKED)
		leave_recheck(GetCurrentTransactionId(), join_id, NULL, OUTBOX_READY);
	else if (result == OUTBOX_ROW_OK &&
			 DatumGetInt16(outbox_row_get(row, J_STATUS)) != OUTBOX_JOIN_PENDING)
	{
		Assert(counter->ncomplete < counter->nsteps);
		counter->complete[counter->ncomplete++] = *join_id;
		log_complete(row);
	}
}

/* Change each join once, in the order of their ids. */
static void
change_joins(Counter *counter)
{
	OutboxTable joins;
	OutboxProbe probe;
	TupleTableSlot *slot;
	TupleTableSlot *row;
	int			next;

	qsort(counter->steps, counter->nsteps, sizeof(Step), cmp_step);
	counter->complete = palloc_array(pg_uuid_t, counter->nsteps);
	outbox_table_open(&joins, outbox_catalog()->joins, J_NATTS);
	slot = outbox_table_slot(&joins);
	row = outbox_table_new_row(&joins);
	outbox_probe_begin(&probe, &joins, outbox_catalog()->joins_pkey);
	for (int i = 0; i < counter->nsteps; i = next)
	{
		for (next = i + 1; next < counter->nsteps; next++)
		{
			if (!outbox_uuid_equal(&counter->steps[i].join_id,
								   &counter->steps[next].join_id))
				break;
		}
		change_join(counter, &joins, &probe, slot, row, &counter->steps[i],
					next - i);
	}
	outbox_probe_end(&probe);
	ExecDropSingleTupleTableSlot(row);
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&joins);
}

/* ---------------------------------------------------------------------- */
/* Waits                                                                  */
/* ---------------------------------------------------------------------- */

/*
 * Make a wait claimable now, if it is parked.  False if another transaction
 * has locked it: the caller must try again when that has ended.
 */
static bool
wake_wait(OutboxTable *queue, OutboxProbe *probe, TupleTableSlot *slot,
		  TupleTableSlot *row, const pg_uuid_t *message_id,
		  TransactionId *blocker)
{
	TimestampTz now = GetCurrentTimestamp();

	while (outbox_probe(probe, UUIDPGetDatum(message_id), slot, blocker))
	{
		if (TransactionIdIsValid(*blocker))
			return false;
		if (DatumGetInt16(outbox_row_get(slot, Q_STATUS)) != OUTBOX_READY ||
			DatumGetTimestampTz(outbox_row_get(slot, Q_NEXT_ATTEMPT_AT)) <= now)
			return true;
		outbox_queue_make_ready(row, slot, now, now);
		switch (outbox_queue_update(queue, slot, row, false, blocker))
		{
			case OUTBOX_ROW_LOCKED:
				return false;
			case OUTBOX_ROW_GONE:
				CHECK_FOR_INTERRUPTS();
				break;
			default:
				return true;
		}
	}

	/*
	 * it has ended, or the transaction that parks it will look at the join
	 * itself
	 */
	return true;
}

/* A search for the wait that is this message. */
typedef struct WaitScan
{
	OutboxTable queue;
	OutboxProbe probe;
	TupleTableSlot *slot;
	TupleTableSlot *row;
} WaitScan;

static void
wait_scan_begin(WaitScan *scan)
{
	const OutboxStore *store = outbox_store(OUTBOX_QUEUE);

	outbox_store_open(&scan->queue, store);
	outbox_probe_begin(&scan->probe, &scan->queue, store->message_id);
	scan->slot = outbox_table_slot(&scan->queue);
	scan->row = outbox_table_new_row(&scan->queue);
}

static void
wait_scan_end(WaitScan *scan)
{
	ExecDropSingleTupleTableSlot(scan->row);
	ExecDropSingleTupleTableSlot(scan->slot);
	outbox_probe_end(&scan->probe);
	outbox_table_close(&scan->queue);
}

/*
 * Have the waits of a join that has ended evaluated.  False if one of them is
 * locked, and was left to join_rechecks.
 */
bool
outbox_join_wake(const pg_uuid_t *join_id)
{
	const OutboxCatalog *catalog = outbox_catalog();
	OutboxTable waits;
	OutboxProbe waits_probe;
	WaitScan	scan;
	TupleTableSlot *wait;
	TransactionId writer;
	bool		all = true;

	outbox_table_open_to_read(&waits, catalog->join_waits);
	outbox_probe_begin(&waits_probe, &waits, catalog->join_waits_pkey);
	wait = outbox_table_slot(&waits);
	wait_scan_begin(&scan);

	outbox_probe_seek(&waits_probe, UUIDPGetDatum(join_id));
	while (outbox_probe_next(&waits_probe, wait, &writer))
	{
		CHECK_FOR_INTERRUPTS();
		if (wake_wait(&scan.queue, &scan.probe, scan.slot, scan.row,
					  DatumGetUUIDP(outbox_row_get(wait, JW_MESSAGE_ID)),
					  &writer))
			continue;
		all = false;
		leave_recheck(TransactionIdIsValid(writer) ? writer :
					  GetCurrentTransactionId(),
					  join_id, NULL, OUTBOX_READY);
	}

	OUTBOX_TRACE_JOIN("wake", join_id, all, all ? 0 : writer);
	wait_scan_end(&scan);
	ExecDropSingleTupleTableSlot(wait);
	outbox_probe_end(&waits_probe);
	outbox_table_close(&waits);
	/* the evaluation has left rechecks of waits that were not visible yet */
	outbox_wake_note_worker();
	return all;
}

/*
 * Have a wait evaluated, whatever the state of its join.  False if another
 * transaction has locked it.
 */
bool
outbox_join_wake_wait(const pg_uuid_t *message_id)
{
	WaitScan	scan;
	TransactionId blocker;
	bool		woken;

	wait_scan_begin(&scan);
	woken = wake_wait(&scan.queue, &scan.probe, scan.slot, scan.row, message_id,
					  &blocker);
	wait_scan_end(&scan);
	return woken;
}

/*
 * Delete the rows of join_waits of these messages, some of which may have been
 * waits.  A row that another transaction has locked, or is deleting with its
 * join, is left to join_rechecks: the join is not purged as long as the row is
 * there.
 */
static void
forget_waits(const OutboxEndedList *ended)
{
	const OutboxCatalog *catalog = outbox_catalog();
	OutboxTable waits;
	OutboxProbe probe;
	TupleTableSlot *slot;
	TransactionId writer;

	outbox_table_open(&waits, catalog->join_waits, JW_NATTS);
	waits.nkeys = 2;
	slot = outbox_table_slot(&waits);
	outbox_probe_begin(&probe, &waits, catalog->join_waits_message);
	for (int i = 0; i < ended->n; i++)
	{
		const OutboxEnded *message = &ended->messages[i];

		outbox_probe_seek(&probe, UUIDPGetDatum(&message->message_id));
		while (outbox_probe_next(&probe, slot, &writer))
		{
			if (TransactionIdIsValid(writer) ||
				outbox_table_delete(&waits, slot, false, &writer) ==
				OUTBOX_ROW_LOCKED)
				leave_recheck(writer, NULL, &message->message_id,
							  message->status);
		}
	}
	outbox_probe_end(&probe);
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&waits);
}

/* ---------------------------------------------------------------------- */
/* The calls                                                              */
/* ---------------------------------------------------------------------- */

/*
 * Has the table ever had a row?  Usually it has not, and there is nothing to
 * do.
 */
static bool
is_in_use(Oid relid)
{
	OutboxTable table;
	BlockNumber nblocks;

	outbox_table_open_to_read(&table, relid);
	nblocks = RelationGetNumberOfBlocks(table.rel);
	outbox_table_close(&table);
	return nblocks > 0;
}

static void
count(Counter *counter)
{
	/* see earlier changes of this transaction; they can be changed, too */
	CommandCounterIncrement();
	counter->now = GetCurrentTimestamp();
	mark_all_members(counter);
	if (counter->nsteps == 0)
		return;
	change_joins(counter);
	for (int i = 0; i < counter->ncomplete; i++)
		(void) outbox_join_wake(&counter->complete[i]);
	/* a recheck may wait for the end of this transaction */
	if (is_in_use(outbox_catalog()->join_rechecks))
		outbox_wake_note_worker();
	pfree(counter->steps);
	pfree(counter->complete);
}

/*
 * Count messages that have ended in their joins, and wake the waits of joins
 * that are complete.  Does not wait for other transactions if the caller must
 * not.
 */
void
outbox_join_count(const OutboxEndedList *ended)
{
	Counter		counter = {.ended = ended};

	if (is_in_use(outbox_catalog()->join_waits))
	{
		CommandCounterIncrement();
		forget_waits(ended);
	}
	if (is_in_use(outbox_catalog()->join_members))
		count(&counter);
}

/*
 * Count a step whose end was reported by hand, in this join only.  False if it
 * is not attached to the join.
 */
bool
outbox_join_report(const pg_uuid_t *join_id, const pg_uuid_t *message_id,
				   OutboxStatus status)
{
	OutboxEndedList ended = {0};
	Counter		counter = {.ended = &ended,.only_join = join_id};

	outbox_ended_add(&ended, message_id, status);
	count(&counter);
	return counter.attached;
}

/*
 * Read a join as it is now, whatever the snapshot.  False if it does not
 * exist.  *writer is set to the transaction that is changing, deleting or
 * inserting it.
 */
bool
outbox_join_look(const pg_uuid_t *join_id, OutboxJoinCount *join,
				 TransactionId *writer)
{
	OutboxTable joins;
	TupleTableSlot *slot;
	bool		found;

	outbox_table_open_to_read(&joins, outbox_catalog()->joins);
	slot = outbox_table_slot(&joins);
	found = outbox_find_row(&joins, outbox_catalog()->joins_pkey,
							UUIDPGetDatum(join_id), slot, writer);
	if (found)
		read_count(slot, join);
	ExecDropSingleTupleTableSlot(slot);
	outbox_table_close(&joins);
	return found;
}
