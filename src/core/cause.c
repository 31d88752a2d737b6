/*
 * cause.c
 *	  The trace that a message belongs to, and what has caused it.
 *
 * A trace is identified by the traceparent in the headers, which comes from
 * the caller's headers, or from the setting outbox.traceparent.  It stays with
 * the message, and goes on to what the message causes: a handler runs with the
 * setting as its message has it, and a timer, a run of a job or a wait for a
 * join has it in its own headers.
 *
 * The column caused_by links a message to its cause, so that outbox.trace()
 * finds both by an index: it is the id of the message whose handler has
 * enqueued it, of the timer or the run that it was before, or of the join that
 * it continues.  If there is none of these, it is the id of the trace, which
 * has 16 bytes, too.  Most messages have neither, and are in no index for it.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "compat.h"
#include "core/cause.h"
#include "core/enqueue.h"
#include "util/guc.h"

/* The place of the id of the trace in a traceparent, and its length. */
#define TRACE_ID_AT 3
#define TRACE_ID_LEN 32

static const char key[] = "traceparent";

/* The message whose handler is being run, if there is one. */
static bool has_cause = false;
static pg_uuid_t cause;

/* Find the traceparent in headers; false if there is no valid one. */
static bool
find_traceparent(const Jsonb *headers, JsonbValue *value)
{
	return JB_ROOT_IS_OBJECT(headers) &&
		getKeyJsonValueFromContainer(unconstify(JsonbContainer *, &headers->root),
									 key, strlen(key), value) != NULL &&
		value->type == jbvString &&
		outbox_is_traceparent(value->val.string.val, value->val.string.len);
}

/* Do headers have a traceparent, even one that is not valid? */
static bool
has_traceparent(const Jsonb *headers)
{
	JsonbValue	value;

	return JB_ROOT_IS_OBJECT(headers) &&
		getKeyJsonValueFromContainer(unconstify(JsonbContainer *, &headers->root),
									 key, strlen(key), &value) != NULL;
}

/*
 * The traceparent of a message, which is allocated; NULL if it has none.  The
 * headers may be absent, or compressed.
 */
char *
outbox_cause_traceparent(const Jsonb *headers)
{
	JsonbValue	value;

	if (headers == NULL)
		return NULL;
	headers = DatumGetJsonbP(PointerGetDatum(headers));
	return find_traceparent(headers, &value) ?
		pnstrdup(value.val.string.val, value.val.string.len) : NULL;
}

/* Headers that consist of outbox.traceparent, which must be set. */
static const Jsonb *
headers_of_setting(void)
{
	static Jsonb *headers = NULL;
	static char made_of[OUTBOX_TRACEPARENT_LEN + 1];
	const char *json;
	Jsonb	   *made;
	Jsonb	   *kept;

	if (headers != NULL && strcmp(made_of, outbox_traceparent) == 0)
		return headers;
	json = psprintf("{\"%s\": \"%s\"}", key, outbox_traceparent);
	made = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(json)));

	/*
	 * only the result outlives the call: there may be a trace for each
	 * request
	 */
	kept = MemoryContextAlloc(TopMemoryContext, VARSIZE(made));
	memcpy(kept, made, VARSIZE(made));
	if (headers != NULL)
		pfree(headers);
	headers = kept;
	strlcpy(made_of, outbox_traceparent, sizeof(made_of));
	return headers;
}

/* Put outbox.traceparent, which must be set, into headers without one. */
static const Jsonb *
add_setting(const Jsonb *headers)
{
	if (headers == NULL)
		return headers_of_setting();
	headers = DatumGetJsonbP(PointerGetDatum(headers));
	if (has_traceparent(headers))
		return headers;
	return DatumGetJsonbP(DirectFunctionCall2(jsonb_concat,
											  JsonbPGetDatum(headers),
											  JsonbPGetDatum(headers_of_setting())));
}

/* The id of the trace, which is in digits, as a UUID. */
static void
get_trace_id(const JsonbValue *traceparent, pg_uuid_t *id)
{
	const char *digits = traceparent->val.string.val + TRACE_ID_AT;

	hex_decode(digits, TRACE_ID_LEN, (char *) id->data);
}

/*
 * Put the trace that is set into the headers of a new message, and find out
 * what has caused it.  The caller must have checked the message.  One whose
 * cause is known already belongs to the trace of that, and a delivery to that
 * of its publication; a message that is brought back stays as it is.
 */
void
outbox_cause_note(OutboxMessage *message)
{
	JsonbValue	traceparent;

	if (message->replayed_id != 0 || message->has_cause)
		return;
	if (*outbox_traceparent != '\0' && message->subscriber == 0)
		message->headers = add_setting(message->headers);
	if (has_cause)
	{
		message->has_cause = true;
		message->cause = cause;
	}
	else if (message->headers != NULL)
	{
		message->headers = DatumGetJsonbP(PointerGetDatum(message->headers));
		if (find_traceparent(message->headers, &traceparent))
		{
			message->has_cause = true;
			get_trace_id(&traceparent, &message->cause);
		}
	}
}

/*
 * Until outbox_cause_end, this message is the cause of what is enqueued, and
 * its trace is set, or none.  Must be called at a nesting level of settings
 * that the caller ends, however the function that handles the message ends.
 */
void
outbox_cause_begin(const pg_uuid_t *message_id, const char *traceparent)
{
	Assert(!has_cause);
	if (traceparent == NULL)
		traceparent = "";
	if (strcmp(outbox_traceparent, traceparent) != 0)
		(void) set_config_option("outbox.traceparent", traceparent,
								 PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE,
								 true, 0, false);
	has_cause = true;
	cause = *message_id;
}

/* From here on, messages have no cause that is known. */
void
outbox_cause_end(void)
{
	has_cause = false;
}
