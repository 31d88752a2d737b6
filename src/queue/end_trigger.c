/*
 * end_trigger.c
 *	  Firing triggers when messages have ended.
 *
 * Code that must act on the end of messages has a trigger on the queue, AFTER
 * DELETE FOR EACH STATEMENT, whose function belongs to the extension.  A call
 * collects the messages that it removes from the queue, with their outcomes,
 * and fires the trigger once at its end, by itself, whichever way it has
 * written the table.  The trigger function calls outbox_ended_now() to get
 * them; if that returns NULL, rows were deleted by plain SQL, which does not
 * end a message.
 */
#include "postgres.h"

#include "catalog/pg_trigger.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/rel.h"

#include "outbox.h"
#include "queue/end_trigger.h"
#include "table/table.h"
#include "util/grow.h"

static const OutboxEndedList *current = NULL;

/* Add a message that has ended to the list of the call. */
void
outbox_ended_add(OutboxEndedList *list, const pg_uuid_t *message_id,
				 OutboxStatus status)
{
	outbox_grow(list->messages, list->n, list->max);
	list->messages[list->n++] = OUTBOX_MAKE(OutboxEnded, *message_id, status);
}

/* Is this one of these triggers, and enabled in this session? */
static bool
wants_to_know(const Trigger *trigger)
{
	bool		replica = SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA;
	char		except = replica ? TRIGGER_FIRES_ON_ORIGIN : TRIGGER_FIRES_ON_REPLICA;

	return TRIGGER_TYPE_MATCHES(trigger->tgtype, TRIGGER_TYPE_STATEMENT,
								TRIGGER_TYPE_AFTER, TRIGGER_TYPE_DELETE) &&
		trigger->tgenabled != TRIGGER_DISABLED && trigger->tgenabled != except;
}

static void
fire(Relation rel, Trigger *trigger)
{
	LOCAL_FCINFO(fcinfo, 0);
	FmgrInfo	flinfo;
	TriggerData data = {
		.type = T_TriggerData,
		.tg_event = TRIGGER_EVENT_DELETE | TRIGGER_EVENT_AFTER,
		.tg_relation = rel,
		.tg_trigger = trigger
	};

	fmgr_info(trigger->tgfoid, &flinfo);
	InitFunctionCallInfoData(*fcinfo, &flinfo, 0, InvalidOid,
							 (Node *) &data, NULL);
	(void) FunctionCallInvoke(fcinfo);
}

/*
 * Fire the triggers at the end of a call, for the messages that have ended in
 * it.
 */
void
outbox_ended_fire(OutboxTable *queue, const OutboxEndedList *list)
{
	const bool *is_ours;
	const TriggerDesc *triggers = outbox_table_triggers(queue, &is_ours);

	if (list->n == 0 || triggers == NULL)
		return;
	for (int i = 0; i < triggers->numtriggers; i++)
	{
		if (!is_ours[i] || !wants_to_know(&triggers->triggers[i]))
			continue;
		current = list;
		PG_TRY();
		{
			fire(queue->rel, &triggers->triggers[i]);
		}
		PG_FINALLY();
		{
			current = NULL;
		}
		PG_END_TRY();
	}
}

/* For trigger functions: the messages that have ended, or NULL. */
const OutboxEndedList *
outbox_ended_now(void)
{
	return current;
}
