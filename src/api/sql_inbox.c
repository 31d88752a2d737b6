/*
 * sql_inbox.c
 *	  SQL functions of the inbox, except for those it shares with the queue
 *	  (sql_work.c).
 */
#include "postgres.h"

#include "fmgr.h"
#include "utils/jsonb.h"

#include "api/args.h"
#include "api/message_args.h"
#include "core/enqueue.h"
#include "core/round_trip.h"

/*
 * outbox.receive(message_id uuid, handler_name text, payload text,
 *				  source text, stream_id uuid, headers jsonb) RETURNS boolean
 *		Puts a received message into the inbox; false if it was received
 *		before.
 */
PG_FUNCTION_INFO_V1(outbox_receive_message);
Datum
outbox_receive_message(PG_FUNCTION_ARGS)
{
	OutboxMessage message;

	outbox_require_writable("outbox.receive()");
	memset(&message, 0, sizeof(message));
	message.given_id = outbox_arg_uuid(fcinfo, 0, "message_id");
	message.topic = outbox_arg_text_or_null(fcinfo, 1);
	message.payload = outbox_arg_text_or_null(fcinfo, 2);
	message.correlation_id = outbox_arg_text_or_null(fcinfo, 3);
	message.stream_id = outbox_arg_uuid_or_null(fcinfo, 4);
	message.headers = PG_ARGISNULL(5) ? NULL : PG_GETARG_JSONB_P(5);
	outbox_message_set_defaults(&message);
	outbox_check_received(&message, "");
	outbox_receive(&message, 1);
	PG_RETURN_BOOL(message.enqueued);
}
