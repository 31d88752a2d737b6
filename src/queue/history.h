/*
 * history.h
 *	  Writing messages that leave the queue to history: archive and dead.
 */
#ifndef OUTBOX_HISTORY_H
#define OUTBOX_HISTORY_H

#include "utils/array.h"
#include "utils/uuid.h"

#include "outbox.h"
#include "queue/end_trigger.h"
#include "table/table.h"

#define OUTBOX_MAX_DESTINATIONS 8

/* A table that is being filled. */
typedef struct OutboxDestination
{
	Oid			relid;
	OutboxTable table;
	int			nrows;
} OutboxDestination;

/* Messages that leave a live table in one call. */
typedef struct OutboxHistory
{
	OutboxTable *queue;			/* the live table */
	OutboxEndedList ended;
	TimestampTz now;
	MemoryContext context;		/* of the rows not yet written */
	int			ndestinations;
	OutboxDestination destinations[OUTBOX_MAX_DESTINATIONS];
} OutboxHistory;

/* How a message ended. */
typedef struct OutboxOutcome
{
	OutboxStatus status;		/* OUTBOX_DONE or OUTBOX_DEAD */
	OutboxReason reason;
	const text *error;			/* NULL keeps the last one, unless: */
	bool		forget_error;
	const ArrayType *errors;	/* of all attempts; NULL keeps what there is */
	const pg_uuid_t *processed_by;
	int			progress;		/* bits to set */
	bool		keep;			/* keep it, even if the topic does not */
	bool		leave_nothing;	/* do not keep it, whatever the policy */
	bool		frees_key;		/* free its dedupe key */
} OutboxOutcome;

extern void outbox_history_begin(OutboxHistory *history, OutboxTable *queue,
								 TimestampTz now);
extern void outbox_history_add(OutboxHistory *history, TupleTableSlot *message,
							   const OutboxOutcome *outcome);
extern void outbox_history_end(OutboxHistory *history);

#endif							/* OUTBOX_HISTORY_H */
