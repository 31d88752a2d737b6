/*
 * message.c
 *	  A message as workers and handlers see it: the type outbox.message.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "utils/lsyscache.h"
#include "utils/typcache.h"

#include "queue/message.h"
#include "queue/publication.h"
#include "queue/subscriber.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "util/hash.h"

/* The columns of the live table that its attributes come from. */
static const AttrNumber columns[OUTBOX_MESSAGE_NATTS] = {
	Q_ID, Q_MESSAGE_ID, Q_NAMESPACE, Q_TOPIC, Q_PAYLOAD, Q_HEADERS,
	Q_CORRELATION_ID, Q_TENANT_ID, Q_DEDUPE_KEY, Q_STREAM_ID, Q_ATTEMPTS,
	Q_RETRY_COUNT, Q_CREATED_AT, Q_DUE_TIME, Q_LOCKED_UNTIL, Q_OWNER_TOKEN,
	Q_SUBSCRIBER, Q_PUBLISHED_ID, Q_PRIORITY
};

/* Attributes that are not simply copied from the row. */
enum
{
	M_PAYLOAD = 4,
	M_STREAM_ID = 9,
	M_SUBSCRIPTION = 16,
	M_PRIORITY = 18
};

/* The stream as its producer knows it; NULL if there is none. */
const pg_uuid_t *
outbox_message_stream(TupleTableSlot *message)
{
	bool		isnull;
	Datum		stream = slot_getattr(message, Q_STREAM_ID, &isnull);
	Datum		subscriber;
	pg_uuid_t  *result;

	if (isnull)
		return NULL;
	subscriber = slot_getattr(message, Q_SUBSCRIBER, &isnull);
	if (isnull)
		return DatumGetUUIDP(stream);
	result = palloc_object(pg_uuid_t);
	outbox_subscriber_stream(DatumGetUUIDP(stream), DatumGetInt32(subscriber),
							 result);
	return result;
}

/* Set the attributes that are different for a delivery. */
static void
set_delivery_values(TupleTableSlot *message, Datum *values, bool *isnull)
{
	const OutboxSubscriber *subscriber =
	outbox_subscriber_get(DatumGetInt32(values[M_SUBSCRIPTION]));

	isnull[M_SUBSCRIPTION] = subscriber == NULL;
	if (subscriber != NULL)
		values[M_SUBSCRIPTION] = PointerGetDatum(subscriber->name);
	if (!isnull[M_STREAM_ID])
		values[M_STREAM_ID] = UUIDPGetDatum(outbox_message_stream(message));
	values[M_PAYLOAD] = PointerGetDatum(outbox_publication_payload(message));
}

/* Set the attributes of outbox.message for a row of a live table. */
void
outbox_message_values(TupleTableSlot *message, Datum *values, bool *isnull)
{
	for (int i = 0; i < OUTBOX_MESSAGE_NATTS; i++)
		values[i] = slot_getattr(message, columns[i], &isnull[i]);
	if (isnull[M_PRIORITY])
		values[M_PRIORITY] = Int16GetDatum(0);
	isnull[M_PRIORITY] = false;
	if (!isnull[M_SUBSCRIPTION])
		set_delivery_values(message, values, isnull);
}

/* Make a value of type outbox.message, in the current memory context. */
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
