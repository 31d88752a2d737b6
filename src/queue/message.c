/*
 * message.c
 *	  A message as workers and handlers see it: the type outbox.message.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "utils/lsyscache.h"
#include "utils/typcache.h"

#include "queue/message.h"
#include "table/catalog.h"
#include "table/columns.h"

/* Where its columns come from, in its order. */
static const AttrNumber columns[OUTBOX_MESSAGE_NATTS] = {
	Q_ID, Q_MESSAGE_ID, Q_NAMESPACE, Q_TOPIC, Q_PAYLOAD, Q_HEADERS,
	Q_CORRELATION_ID, Q_TENANT_ID, Q_DEDUPE_KEY, Q_STREAM_ID, Q_ATTEMPTS,
	Q_RETRY_COUNT, Q_CREATED_AT, Q_DUE_TIME, Q_LOCKED_UNTIL, Q_OWNER_TOKEN
};

void
outbox_message_values(TupleTableSlot *message, Datum *values, bool *isnull)
{
	for (int i = 0; i < OUTBOX_MESSAGE_NATTS; i++)
		values[i] = slot_getattr(message, columns[i], &isnull[i]);
}

/* As one value, in the current memory context. */
Datum
outbox_message_datum(TupleTableSlot *message)
{
	Datum		values[OUTBOX_MESSAGE_NATTS];
	bool		isnull[OUTBOX_MESSAGE_NATTS];
	TupleDesc	desc;
	HeapTuple	tuple;

	desc = lookup_rowtype_tupdesc(get_rel_type_id(outbox_catalog()->message), -1);
	outbox_message_values(message, values, isnull);
	tuple = heap_form_tuple(desc, values, isnull);
	ReleaseTupleDesc(desc);
	return heap_copy_tuple_as_datum(tuple, desc);
}
