/*
 * enqueue.c
 *	  Putting messages into the queue.
 *
 * Within one call, everything that may have to wait for other transactions is
 * locked in one order, whatever the order of the messages: first dedupe keys,
 * by their digest, and the messages that have them, then streams, by their id.
 * So two calls cannot deadlock.  Messages get their ids in the order given.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "access/xact.h"
#include "commands/async.h"
#include "commands/sequence.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "core/cause.h"
#include "core/duplicate.h"
#include "core/enqueue.h"
#include "outbox.h"
#include "queue/count.h"
#include "queue/message_find.h"
#include "queue/policy.h"
#include "queue/stream.h"
#include "shmem/lane_xact.h"
#include "shmem/wake.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/table.h"
#include "util/guc.h"
#include "util/hash.h"
#include "util/uuid.h"

#define TENANT_HEX_DIGITS 32

/* Maximum number of lanes that the rows of one batch go to. */
#define MAX_RANGES 8

/* Keys inserted into one lane and not noted yet. */
typedef struct KeyRange
{
	OutboxPlace place;
	OutboxReadyKey lo;
	OutboxReadyKey hi;
	int			n;				/* how many */
} KeyRange;

/* State of one call. */
typedef struct Enqueuer
{
	OutboxTable queue;
	TimestampTz now;
	MemoryContext context;		/* of the rows of a batch */
	int			nrows;
	KeyRange	ranges[MAX_RANGES];
	int			nranges;
} Enqueuer;

/* ---------------------------------------------------------------------- */
/* Checks                                                                 */
/* ---------------------------------------------------------------------- */

/*
 * Check the length of a name, and that it is there if it is required.  The
 * prefix is as with outbox_check_message.
 */
static void
check_name(const char *prefix, const char *name, const text *value,
		   bool required)
{
	int			len;

	if (value == NULL)
	{
		if (required)
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("%s%s must not be null", prefix, name)));
		return;
	}
	len = VARSIZE_ANY_EXHDR(value);
	if (required && len == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s%s must not be empty", prefix, name)));
	if (len > OUTBOX_MAX_NAME &&
		pg_mbstrlen_with_len(VARDATA_ANY(value), len) > OUTBOX_MAX_NAME)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s%s must not be longer than %d characters",
						prefix, name, OUTBOX_MAX_NAME)));
}

/* Does the key begin with the tenant's hex digits and a slash? */
static bool
key_names_tenant(const text *dedupe_key, const pg_uuid_t *tenant)
{
	const char *p = VARDATA_ANY(dedupe_key);
	const char *end = p + VARSIZE_ANY_EXHDR(dedupe_key);
	bool		hyphens;

	if (end - p < TENANT_HEX_DIGITS + 1)
		return false;
	hyphens = p[8] == '-';
	for (int i = 0; i < TENANT_HEX_DIGITS; i++)
	{
		int			byte = tenant->data[i / 2];
		int			nibble = i % 2 == 0 ? byte >> 4 : byte & 0x0F;

		if (hyphens && (i == 8 || i == 12 || i == 16 || i == 20))
		{
			if (p == end || *p++ != '-')
				return false;
		}
		if (p == end ||
			pg_tolower((unsigned char) *p++) !=
			(unsigned char) "0123456789abcdef"[nibble])
			return false;
	}
	return p != end && *p == '/';
}

static void
check_dedupe_tenant(const OutboxMessage *message, const char *prefix)
{
	OutboxPolicy policy;

	if (message->dedupe_key == NULL || message->tenant_id == NULL)
		return;
	outbox_policy_get(outbox_store(OUTBOX_QUEUE), message->namespace,
					  message->topic, &policy);
	if (policy.check_dedupe_tenant &&
		!key_names_tenant(message->dedupe_key, message->tenant_id))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%sdedupe_key must begin with the tenant_id and \"/\"",
						prefix),
				 errhint("The topic's policy can turn this check off: outbox.configure_topic(..., check_dedupe_tenant => false).")));
}

/*
 * Raise an error if the payload is missing, or too long to be handed out
 * together with the other columns.  The prefix is as with
 * outbox_check_message.
 */
void
outbox_check_payload(const text *payload, const char *prefix)
{
	if (payload == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%spayload must not be null", prefix)));
	if (VARSIZE_ANY_EXHDR(payload) > OUTBOX_MAX_PAYLOAD)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%spayload must not be longer than %d MB", prefix,
						OUTBOX_MAX_PAYLOAD / (1024 * 1024))));
}

/* The same for headers, which may be absent, or compressed. */
static void
check_headers(const Jsonb *headers, const char *prefix)
{
	const Jsonb *plain;
	bool		fits;

	if (headers == NULL)
		return;
	fits = toast_raw_datum_size(PointerGetDatum(headers)) <= OUTBOX_MAX_HEADERS;
	if (fits)
	{
		plain = DatumGetJsonbP(PointerGetDatum(headers));
		if (!JB_ROOT_IS_OBJECT(plain))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%sheaders must be a JSON object", prefix)));
		if (plain != headers)
			pfree(unconstify(Jsonb *, plain));
	}
	else
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%sheaders must not be larger than %d MB", prefix,
						OUTBOX_MAX_HEADERS / (1024 * 1024))));
}

/*
 * Check how long a key is taken: each field of the interval must be in range,
 * as with a delay.
 */
static void
check_dedupe_for(const Interval *dedupe_for, const char *prefix)
{
	double		days;

	if (dedupe_for == NULL)
		return;
	days = (double) dedupe_for->month * DAYS_PER_YEAR / MONTHS_PER_YEAR +
		dedupe_for->day + (double) dedupe_for->time / USECS_PER_DAY;
	if (dedupe_for->month < 0 || dedupe_for->day < 0 || dedupe_for->time < 0 ||
		days <= 0 || days > OUTBOX_MAX_DELAY_DAYS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%sdedupe_for must be more than 0 and at most %d days",
						prefix, OUTBOX_MAX_DELAY_DAYS)));
}

static void
check_on_duplicate(const text *on_duplicate, const char *prefix)
{
	OutboxEnqueueOutcome outcome;

	if (!outbox_read_on_duplicate(on_duplicate, &outcome))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%son_duplicate must be keep, replace, or debounce",
						prefix)));
}

/* Raise an error if there is a priority, and it is out of range. */
void
outbox_check_priority(const int32 *priority, const char *prefix)
{
	if (priority != NULL &&
		(*priority < -OUTBOX_MAX_PRIORITY || *priority > OUTBOX_MAX_PRIORITY))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%spriority must be between %d and %d", prefix,
						-OUTBOX_MAX_PRIORITY, OUTBOX_MAX_PRIORITY)));
}

/*
 * Check the arguments for a message, and raise an error for the first invalid
 * one.  The prefix, if not empty, identifies the message; it precedes the name
 * of the argument in the error message.
 */
void
outbox_check_message(const OutboxMessage *message, const char *prefix)
{
	check_name(prefix, "topic", message->topic, true);
	check_name(prefix, "namespace", message->namespace, true);
	check_name(prefix, "correlation_id", message->correlation_id, false);
	check_name(prefix, "dedupe_key", message->dedupe_key, false);
	outbox_check_payload(message->payload, prefix);
	check_headers(message->headers, prefix);
	check_dedupe_for(message->dedupe_for, prefix);
	check_on_duplicate(message->on_duplicate, prefix);
	outbox_check_priority(message->priority, prefix);
	check_dedupe_tenant(message, prefix);
}

/* The same for a received message, whose columns have other names. */
void
outbox_check_received(const OutboxMessage *message, const char *prefix)
{
	check_name(prefix, "handler_name", message->topic, true);
	check_name(prefix, "source", message->correlation_id, false);
	outbox_check_payload(message->payload, prefix);
	check_headers(message->headers, prefix);
}

/* ---------------------------------------------------------------------- */
/* Rows                                                                   */
/* ---------------------------------------------------------------------- */

static void
set_value(Datum *values, bool *isnull, AttrNumber attnum, Datum value)
{
	values[attnum - 1] = value;
	isnull[attnum - 1] = false;
}

static void
set_pointer(Datum *values, bool *isnull, AttrNumber attnum, const void *value)
{
	if (value != NULL)
		set_value(values, isnull, attnum, PointerGetDatum(value));
}

static void
set_time(Datum *values, bool *isnull, AttrNumber attnum,
		 const TimestampTz *value)
{
	if (value != NULL)
		set_value(values, isnull, attnum, TimestampTzGetDatum(*value));
}

/* The priority of a message. */
static int
priority_of(const OutboxMessage *message)
{
	return message->priority == NULL ? message->topic_priority : *message->priority;
}

/*
 * Make a row of a live table from a message, which must have its id and its
 * message_id.  "turn" is that of its stream, if it has one.  *place and *key
 * are set to where the row will be in the ready index.
 */
void
outbox_make_row(const OutboxMessage *message, OutboxStreamTurn *turn,
				TimestampTz now, Datum *values, bool *isnull,
				OutboxPlace *place, OutboxReadyKey *key)
{
	TimestampTz next_attempt_at = now;
	int			priority = priority_of(message);

	Assert(message->id != 0);
	Assert((message->stream_id != NULL) == (turn != NULL));
	if (message->due_time != NULL && *message->due_time > now)
		next_attempt_at = *message->due_time;
	outbox_place_of(message->namespace, message->topic, message->tenant_id,
					message->subscriber, priority, place);
	*key = OUTBOX_MAKE(OutboxReadyKey, next_attempt_at, message->id);

	memset(isnull, true, Q_NATTS * sizeof(bool));
	set_value(values, isnull, Q_ID, Int64GetDatum(message->id));
	set_value(values, isnull, Q_LANE, Int64GetDatum(place->lane));
	set_value(values, isnull, Q_NEXT_ATTEMPT_AT,
			  TimestampTzGetDatum(next_attempt_at));
	set_value(values, isnull, Q_UPDATED_AT, TimestampTzGetDatum(now));
	set_value(values, isnull, Q_ATTEMPTS, Int32GetDatum(0));
	set_value(values, isnull, Q_RETRY_COUNT, Int32GetDatum(0));
	set_value(values, isnull, Q_WAIVED, Int32GetDatum(0));
	set_value(values, isnull, Q_PROGRESS, Int32GetDatum(0));
	set_value(values, isnull, Q_STATUS, Int16GetDatum(OUTBOX_READY));
	set_value(values, isnull, Q_FAILURE_REASON,
			  Int16GetDatum(OUTBOX_REASON_NONE));
	set_value(values, isnull, Q_CREATED_AT,
			  TimestampTzGetDatum(message->replayed_id != 0 ?
								  message->replayed_created_at : now));
	set_pointer(values, isnull, Q_MESSAGE_ID, &message->message_id);
	if (turn != NULL)
		set_value(values, isnull, Q_STREAM_SEQ,
				  Int64GetDatum(outbox_stream_turn_next(turn, message->id)));
	set_time(values, isnull, Q_DUE_TIME, message->due_time);
	set_time(values, isnull, Q_EXPIRES_AT, message->expires_at);
	set_pointer(values, isnull, Q_TENANT_ID, message->tenant_id);
	set_pointer(values, isnull, Q_STREAM_ID, message->stream_id);
	set_pointer(values, isnull, Q_PUBLISHED_ID, message->published_id);
	set_time(values, isnull, Q_PUBLISHED_AT, message->published_at);
	if (message->subscriber != 0)
		set_value(values, isnull, Q_SUBSCRIBER, Int32GetDatum(message->subscriber));
	if (priority != 0)
		set_value(values, isnull, Q_PRIORITY, Int16GetDatum(priority));
	if (message->has_cause)
		set_value(values, isnull, Q_CAUSED_BY, UUIDPGetDatum(&message->cause));
	set_pointer(values, isnull, Q_NAMESPACE, message->namespace);
	set_pointer(values, isnull, Q_TOPIC, message->topic);
	set_pointer(values, isnull, Q_CORRELATION_ID, message->correlation_id);
	set_pointer(values, isnull, Q_DEDUPE_KEY, message->dedupe_key);
	set_pointer(values, isnull, Q_HEADERS, message->headers);
	set_pointer(values, isnull, Q_ERRORS, message->replayed_errors);
	set_pointer(values, isnull, Q_PAYLOAD, message->payload);
}

/* ---------------------------------------------------------------------- */
/* Insertion                                                              */
/* ---------------------------------------------------------------------- */

static void
note_ranges(Enqueuer *enqueuer)
{
	for (int i = 0; i < enqueuer->nranges; i++)
	{
		const KeyRange *range = &enqueuer->ranges[i];

		outbox_lane_note_new(RelationGetRelid(enqueuer->queue.rel),
							 &range->place, range->lo, range->hi, range->n);
	}
	enqueuer->nranges = 0;
}

static void
flush_rows(Enqueuer *enqueuer)
{
	TupleTableSlot *rows[OUTBOX_MULTI_INSERT_ROWS];

	Assert(enqueuer->nrows <= OUTBOX_MULTI_INSERT_ROWS);
	for (int i = 0; i < enqueuer->nrows; i++)
		rows[i] = outbox_table_batch_row(&enqueuer->queue, i);
	outbox_table_multi_insert(&enqueuer->queue, rows, enqueuer->nrows);
	for (int i = 0; i < enqueuer->nrows; i++)
		ExecClearTuple(rows[i]);
	enqueuer->nrows = 0;
	if (enqueuer->context != NULL)
		MemoryContextReset(enqueuer->context);
	note_ranges(enqueuer);
}

/*
 * Find the range, among those not noted yet, to which this key can be added.
 */
static KeyRange *
find_range(Enqueuer *enqueuer, const OutboxPlace *place, OutboxReadyKey key)
{
	for (int i = 0; i < enqueuer->nranges; i++)
	{
		KeyRange   *range = &enqueuer->ranges[i];

		if (range->hi.at == key.at && outbox_place_equal(&range->place, place))
			return range;
	}
	return NULL;
}

/*
 * Remember to note the key of the row just added once it is inserted, together
 * with others of its lane; if the rows belong to too many lanes, insert them
 * all now.  A key at infinity needs no note, since no claim looks for it.
 */
static void
add_to_range(Enqueuer *enqueuer, const OutboxPlace *place, OutboxReadyKey key)
{
	KeyRange   *range;

	if (key.at == DT_NOEND)
		return;
	range = find_range(enqueuer, place, key);
	if (range == NULL)
	{
		if (enqueuer->nranges == MAX_RANGES)
			flush_rows(enqueuer);
		range = &enqueuer->ranges[enqueuer->nranges++];
		*range = OUTBOX_MAKE(KeyRange, *place, key, key, 0);
	}
	range->lo = outbox_ready_key_min(range->lo, key);
	range->hi = outbox_ready_key_max(range->hi, key);
	range->n++;
}

static void
count_enqueued(const Enqueuer *enqueuer, const OutboxMessage *message)
{
	outbox_count_enqueued(enqueuer->queue.store->kind, message->namespace,
						  message->topic, message->subscriber, message->payload);
}

/* Insert a message now. */
static void
insert_message(Enqueuer *enqueuer, const OutboxMessage *message,
			   OutboxStreamTurn *turn)
{
	TupleTableSlot *row = outbox_table_new_row(&enqueuer->queue);
	OutboxPlace place;
	OutboxReadyKey key;

	outbox_make_row(message, turn, enqueuer->now, row->tts_values,
					row->tts_isnull, &place, &key);
	outbox_table_insert(&enqueuer->queue, row);
	ExecDropSingleTupleTableSlot(row);
	count_enqueued(enqueuer, message);
	if (key.at != DT_NOEND)
		outbox_lane_note_new(RelationGetRelid(enqueuer->queue.rel), &place,
							 key, key, 1);
}

/* Add a message to the batch, and insert the batch if it is full. */
static void
add_message(Enqueuer *enqueuer, const OutboxMessage *message,
			OutboxStreamTurn *turn)
{
	TupleDesc	desc = RelationGetDescr(enqueuer->queue.rel);
	MemoryContext old;
	Datum	   *values;
	bool	   *isnull;
	OutboxPlace place;
	OutboxReadyKey key;
	TupleTableSlot *row;

	if (enqueuer->context == NULL)
		enqueuer->context = AllocSetContextCreate(CurrentMemoryContext,
												  "outbox enqueue",
												  ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(enqueuer->context);
	values = palloc_array(Datum, desc->natts);
	isnull = palloc_array(bool, desc->natts);
	memset(isnull, true, desc->natts * sizeof(bool));
	outbox_make_row(message, turn, enqueuer->now, values, isnull, &place, &key);
	row = outbox_table_batch_row(&enqueuer->queue, enqueuer->nrows);
	ExecStoreHeapTuple(heap_form_tuple(desc, values, isnull), row, false);
	MemoryContextSwitchTo(old);
	enqueuer->nrows++;
	count_enqueued(enqueuer, message);
	add_to_range(enqueuer, &place, key);
	if (enqueuer->nrows == OUTBOX_MULTI_INSERT_ROWS)
		flush_rows(enqueuer);
}

/* ---------------------------------------------------------------------- */
/* The call                                                               */
/* ---------------------------------------------------------------------- */

static int
cmp_stream(const void *a, const void *b)
{
	const OutboxMessage *ma = *(OutboxMessage *const *) a;
	const OutboxMessage *mb = *(OutboxMessage *const *) b;
	int			cmp = outbox_uuid_cmp(ma->stream_id, mb->stream_id);

	if (cmp == 0)
		cmp = ma < mb ? -1 : 1;
	return cmp;
}

static void
say_which_stream(void *arg)
{
	errcontext("enqueueing in stream %s",
			   DatumGetCString(DirectFunctionCall1(uuid_out,
												   UUIDPGetDatum((pg_uuid_t *) arg))));
}

/*
 * Raise an error if a message with the given id has left the queue: its unique
 * index covers only what is still there.
 */
void
outbox_check_given_id(const OutboxMessage *message)
{
	if (message->given_id != NULL &&
		outbox_message_in_history(message->given_id))
		ereport(ERROR,
				(errcode(ERRCODE_UNIQUE_VIOLATION),
				 errmsg("message_id already exists"),
				 errdetail("Message %s is finished.",
						   DatumGetCString(DirectFunctionCall1(uuid_out,
															   UUIDPGetDatum(message->given_id))))));
}

static void
insert_streamless(Enqueuer *enqueuer, OutboxMessage *messages, int nmessages)
{
	for (int i = 0; i < nmessages; i++)
	{
		if (!messages[i].enqueued || messages[i].stream_id != NULL)
			continue;
		if (nmessages == 1)
			insert_message(enqueuer, &messages[i], NULL);
		else
			add_message(enqueuer, &messages[i], NULL);
	}
	flush_rows(enqueuer);
}

/*
 * Insert messages that have streams, stream by stream, each after taking the
 * turn of the stream.
 */
static void
insert_streams(Enqueuer *enqueuer, OutboxMessage *messages, int nmessages)
{
	OutboxMessage **streamed = palloc_array(OutboxMessage *, nmessages);
	int			nstreamed = 0;
	int			next;

	for (int i = 0; i < nmessages; i++)
	{
		if (messages[i].enqueued && messages[i].stream_id != NULL)
			streamed[nstreamed++] = &messages[i];
	}
	if (nstreamed > 1)
		qsort(streamed, nstreamed, sizeof(OutboxMessage *), cmp_stream);
	for (int i = 0; i < nstreamed; i = next)
	{
		OutboxStreamTurn turn;
		ErrorContextCallback context = {
			error_context_stack, say_which_stream,
			unconstify(pg_uuid_t *, streamed[i]->stream_id)
		};

		error_context_stack = &context;
		outbox_stream_turn_begin(&enqueuer->queue, streamed[i]->stream_id,
								 &turn);
		error_context_stack = context.previous;
		if (turn.waited)
			enqueuer->now = GetCurrentTimestamp();
		insert_message(enqueuer, streamed[i], &turn);
		for (next = i + 1; next < nstreamed; next++)
		{
			if (!outbox_uuid_equal(streamed[next]->stream_id, &turn.stream))
				break;
			add_message(enqueuer, streamed[next], &turn);
		}
		flush_rows(enqueuer);
		outbox_stream_turn_end(&enqueuer->queue, &turn);
	}
	pfree(streamed);
}

/* The name of an outcome, as try_enqueue() returns it. */
const char *
outbox_outcome_name(OutboxEnqueueOutcome outcome)
{
	switch (outcome)
	{
		case OUTBOX_ENQUEUED:
			return "enqueued";
		case OUTBOX_KEPT:
			return "kept";
		case OUTBOX_REPLACED:
			return "replaced";
		case OUTBOX_DEBOUNCED:
			return "debounced";
	}
	pg_unreachable();
}

static void
log_enqueued(const OutboxMessage *message)
{
	if (!message_level_is_interesting(outbox_log_level))
		return;
	if (!message->enqueued)
		outbox_log("outbox enqueue: topic \"%s\", %s",
				   text_to_cstring(message->topic),
				   outbox_outcome_name(message->outcome));
	else if (message->correlation_id != NULL)
		outbox_log("outbox enqueue: topic \"%s\", correlation_id \"%s\"",
				   text_to_cstring(message->topic),
				   text_to_cstring(message->correlation_id));
	else
		outbox_log("outbox enqueue: topic \"%s\"",
				   text_to_cstring(message->topic));
}

/*
 * Send NOTIFY, for clients that listen instead of waiting in claim().  The
 * server sends identical notifications only once per transaction, so it does
 * not matter how often this is called.
 */
void
outbox_notify_listeners(void)
{
	if (outbox_notify)
		Async_Notify(OUTBOX_SCHEMA, "");
}

/* Note for workers when there will be something to do for this message. */
static void
note_for_worker(const OutboxStore *store, const OutboxMessage *message,
				TimestampTz now)
{
	if (message->expires_at != NULL)
	{
		outbox_wake_note_due(*message->expires_at);
		outbox_lane_note_expiry(store->table, *message->expires_at);
	}
	if (!outbox_dispatch_timers ||
		(store->kind != OUTBOX_TIMERS && store->kind != OUTBOX_RUNS))
		return;
	if (message->due_time != NULL && *message->due_time > now)
		outbox_wake_note_due(*message->due_time);
	else
		outbox_wake_note_worker();
}

/*
 * Enqueue messages in the current transaction, and fill in their results.  The
 * caller must have checked them (outbox_check_message).
 */
void
outbox_enqueue(const OutboxStore *store, OutboxMessage *messages,
			   int nmessages)
{
	Enqueuer	enqueuer = {.now = GetCurrentTimestamp()};
	bool		any_key = false;
	bool		any_stream = false;

	for (int i = 0; i < nmessages; i++)
	{
		OutboxMessage *message = &messages[i];

		message->enqueued = !message->refused;
		message->outcome = OUTBOX_ENQUEUED;
		if (message->given_id != NULL)
			message->message_id = *message->given_id;
		else if (message->subscriber == 0)
			outbox_uuid7(enqueuer.now, &message->message_id);
		any_stream |= message->stream_id != NULL;
		any_key |= message->dedupe_key != NULL;
		if (store->kind == OUTBOX_QUEUE && message->priority == NULL)
			message->topic_priority = outbox_policy_priority(message->namespace,
															 message->topic);
		outbox_cause_note(message);
	}

	if (any_key)
	{
		outbox_take_keys(messages, nmessages);
		enqueuer.now = GetCurrentTimestamp();
	}
	/* open the table first: with it locked, the sequence cannot be dropped */
	outbox_store_open(&enqueuer.queue, store);
	for (int i = 0; i < nmessages; i++)
	{
		if (messages[i].replayed_id != 0)
			messages[i].id = messages[i].replayed_id;
		else if (messages[i].enqueued)
			messages[i].id = nextval_internal(outbox_catalog()->sequence, false);
	}

	insert_streamless(&enqueuer, messages, nmessages);
	if (any_stream)
		insert_streams(&enqueuer, messages, nmessages);
	if (enqueuer.context != NULL)
		MemoryContextDelete(enqueuer.context);
	outbox_table_close(&enqueuer.queue);
	if (store->kind == OUTBOX_QUEUE && nmessages > 0)
		outbox_notify_listeners();
	for (int i = 0; i < nmessages; i++)
	{
		if (messages[i].enqueued)
			note_for_worker(store, &messages[i], enqueuer.now);
		if (store->kind == OUTBOX_QUEUE && messages[i].enqueued &&
			messages[i].replayed_id == 0)
		{
			outbox_check_given_id(&messages[i]);
			log_enqueued(&messages[i]);
		}
		else if (messages[i].outcome == OUTBOX_REPLACED ||
				 messages[i].outcome == OUTBOX_DEBOUNCED)
			log_enqueued(&messages[i]);
	}
}
