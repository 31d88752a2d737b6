/*
 * sql_admin.c
 *	  C functions called by the administration functions, which are in SQL.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "api/args.h"
#include "compat.h"
#include "outbox.h"
#include "queue/dedupe.h"
#include "queue/message_find.h"
#include "queue/policy.h"
#include "queue/queue.h"
#include "shmem/agenda.h"
#include "shmem/directory.h"
#include "shmem/lane_memory.h"
#include "shmem/posts.h"
#include "shmem/shmem.h"
#include "table/catalog.h"
#include "table/loading.h"
#include "table/probe.h"
#include "table/table.h"
#include "table/table_check.h"
#include "util/guc.h"
#include "util/hash.h"
#include "util/uuid.h"
#include "worker/errand.h"

/* outbox._partition_number(stream_id uuid, partition_count int) RETURNS int */
PG_FUNCTION_INFO_V1(outbox_partition_number);
Datum
outbox_partition_number(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *stream = PG_GETARG_UUID_P(0);
	int			count = outbox_arg_int(fcinfo, 1, "partition_count", 0, 1,
									   PG_INT32_MAX);

	PG_RETURN_INT32(outbox_partition(stream, count));
}

/*
 * outbox._subscriber_stream(stream_id uuid, subscriber int) RETURNS uuid
 *		Converts the stream of a publication to that of its delivery, and back.
 */
PG_FUNCTION_INFO_V1(outbox_subscriber_stream_of);
Datum
outbox_subscriber_stream_of(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *result = palloc_object(pg_uuid_t);

	outbox_subscriber_stream(PG_GETARG_UUID_P(0), PG_GETARG_INT32(1), result);
	PG_RETURN_UUID_P(result);
}

/* outbox._check_name(what text, value text) RETURNS void */
PG_FUNCTION_INFO_V1(outbox_check_name_sql);
Datum
outbox_check_name_sql(PG_FUNCTION_ARGS)
{
	char	   *what;

	outbox_require(fcinfo, 0, "what");
	what = text_to_cstring(PG_GETARG_TEXT_PP(0));
	outbox_require(fcinfo, 1, what);
	(void) outbox_arg_name_or_null(fcinfo, 1, what);
	PG_RETURN_VOID();
}

/* outbox._dedupe_digest(namespace text, topic text, dedupe_key text) RETURNS uuid */
PG_FUNCTION_INFO_V1(outbox_dedupe_digest_sql);
Datum
outbox_dedupe_digest_sql(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *digest = palloc_object(pg_uuid_t);

	outbox_dedupe_digest(PG_GETARG_TEXT_PP(0), PG_GETARG_TEXT_PP(1),
						 PG_GETARG_TEXT_PP(2), digest);
	PG_RETURN_UUID_P(digest);
}

/*
 * outbox._forget_key(namespace text, topic text, dedupe_key text,
 *					  message_id uuid) RETURNS boolean
 *		Frees a dedupe key if this message has it, and no other transaction has
 *		locked its row.  Does not free it if the message is in the queue: then
 *		a dump has restored it after it was done.
 */
PG_FUNCTION_INFO_V1(outbox_forget_key);
Datum
outbox_forget_key(PG_FUNCTION_ARGS)
{
	const pg_uuid_t *message_id = PG_GETARG_UUID_P(3);
	pg_uuid_t	digest;

	outbox_dedupe_digest(PG_GETARG_TEXT_PP(0), PG_GETARG_TEXT_PP(1),
						 PG_GETARG_TEXT_PP(2), &digest);
	PG_RETURN_BOOL(!outbox_message_is_live(message_id) &&
				   outbox_dedupe_forget(&digest, message_id, false));
}

/* outbox._writes(function text) RETURNS void */
PG_FUNCTION_INFO_V1(outbox_writes);
Datum
outbox_writes(PG_FUNCTION_ARGS)
{
	outbox_require_writable(text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_VOID();
}

/* outbox._is_loading() RETURNS boolean */
PG_FUNCTION_INFO_V1(outbox_is_loading);
Datum
outbox_is_loading(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(outbox_loading_elsewhere() || outbox_loading_by_replication());
}

/* outbox._is_replicated() RETURNS boolean */
PG_FUNCTION_INFO_V1(outbox_is_replicated);
Datum
outbox_is_replicated(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(outbox_loading_by_replication());
}

/* outbox._uuid7() RETURNS uuid */
PG_FUNCTION_INFO_V1(outbox_uuid7_sql);
Datum
outbox_uuid7_sql(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *uuid = palloc_object(pg_uuid_t);

	outbox_uuid7(GetCurrentTimestamp(), uuid);
	PG_RETURN_UUID_P(uuid);
}

/* outbox._log(message text) RETURNS void */
PG_FUNCTION_INFO_V1(outbox_log_sql);
Datum
outbox_log_sql(PG_FUNCTION_ARGS)
{
	if (message_level_is_interesting(outbox_log_level))
		outbox_log("%s", text_to_cstring(PG_GETARG_TEXT_PP(0)));
	PG_RETURN_VOID();
}

/*
 * outbox._library(OUT version text, OUT preloaded boolean, OUT lanes int,
 *				   OUT lanes_in_use int)
 */
PG_FUNCTION_INFO_V1(outbox_library);
Datum
outbox_library(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[4];
	bool		isnull[4] = {false};
	int			lanes;
	int			in_use;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	outbox_lanes_count(&lanes, &in_use);
	values[0] = CStringGetTextDatum(outbox_version);
	values[1] = BoolGetDatum(outbox_preloaded());
	values[2] = Int32GetDatum(lanes);
	values[3] = Int32GetDatum(in_use);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, isnull)));
}

/*
 * outbox._written_tables(OUT table_name text, OUT why_not text)
 *		RETURNS SETOF record The tables that the functions write, and why they
 *		are not written directly; null if they are.
 */
PG_FUNCTION_INFO_V1(outbox_written_tables_sql);
Datum
outbox_written_tables_sql(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	ListCell   *lc;

	InitMaterializedSRF(fcinfo, 0);
	foreach(lc, outbox_written_tables())
	{
		/* a partition may have been dropped concurrently */
		Relation	rel = try_table_open(lfirst_oid(lc), AccessShareLock);
		char	   *why_not;
		Datum		values[2];
		bool		isnull[2] = {false};

		if (rel == NULL)
			continue;
		why_not = outbox_table_explain(rel);
		values[0] = CStringGetTextDatum(RelationGetRelationName(rel));
		isnull[1] = why_not == NULL;
		if (why_not != NULL)
			values[1] = CStringGetTextDatum(why_not);
		tuplestore_putvalues(result->setResult, result->setDesc, values, isnull);
		table_close(rel, AccessShareLock);
	}
	return (Datum) 0;
}

/*
 * outbox._workers(OUT launcher boolean, OUT serves boolean, OUT running int,
 *				   OUT waiting int, OUT failing int, OUT no_slots boolean,
 *				   OUT failing_here int, OUT no_posts boolean)
 */
PG_FUNCTION_INFO_V1(outbox_workers_sql);
Datum
outbox_workers_sql(PG_FUNCTION_ARGS)
{
	OutboxWorkersState *state = outbox_workers_state();
	TupleDesc	desc;
	Datum		values[9];
	bool		isnull[9] = {false};
	OutboxWorkersCount count = {false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	if (state != NULL)
		outbox_workers_count(state, &count);
	values[0] = BoolGetDatum(count.launcher);
	values[1] = BoolGetDatum(count.serves);
	values[2] = Int32GetDatum(count.running);
	values[3] = Int32GetDatum(count.waiting);
	values[4] = Int32GetDatum(count.failing);
	values[5] = BoolGetDatum(count.no_slots);
	values[6] = Int32GetDatum(count.failing_here);
	values[7] = BoolGetDatum(count.no_posts);
	values[8] = TimestampTzGetDatum(count.seen_at);
	isnull[8] = count.seen_at == 0;
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc),
													  values, isnull)));
}

/*
 * outbox._run_elsewhere(database name, statement text, as_owner boolean)
 *		RETURNS void
 *		Runs a statement in another database.
 */
PG_FUNCTION_INFO_V1(outbox_run_elsewhere);
Datum
outbox_run_elsewhere(PG_FUNCTION_ARGS)
{
	char	   *statement = text_to_cstring(PG_GETARG_TEXT_PP(1));

	/* callers are SECURITY DEFINER: the user is the extension's owner */
	outbox_errand_run(NameStr(*PG_GETARG_NAME(0)),
					  PG_GETARG_BOOL(2) ? GetUserId() : GetSessionUserId(),
					  statement);
	PG_RETURN_VOID();
}

/*
 * outbox._message_fate(id bigint) RETURNS text
 *		Whether a message of the queue can be handed out: 'live', 'expired' or
 *		'exhausted'; null if it is not there.
 */
PG_FUNCTION_INFO_V1(outbox_message_fate);
Datum
outbox_message_fate(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"live", "expired", "exhausted"};
	OutboxFate	fate = OUTBOX_FATE_LIVE;
	bool		found = false;

	for (OutboxStoreKind kind = 0; kind < OUTBOX_NSTORES && !found; kind++)
	{
		const OutboxStore *store = outbox_store(kind);
		OutboxTable queue;
		TupleTableSlot *slot;
		TransactionId blocker;
		OutboxPolicy policy;

		outbox_table_open_to_read(&queue, store->table);
		slot = outbox_table_slot(&queue);
		found = outbox_find_row(&queue, store->pkey, PG_GETARG_DATUM(0), slot,
								&blocker);
		if (found)
		{
			outbox_policy_of(store, slot, &policy);
			fate = outbox_queue_fate(slot, &policy, 0, GetCurrentTimestamp());
		}
		ExecDropSingleTupleTableSlot(slot);
		outbox_table_close(&queue);
	}
	if (!found)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(names[fate]));
}

/*
 * outbox._message_locker(id bigint) RETURNS xid
 *		The transaction that has locked a message, if there is one.
 */
PG_FUNCTION_INFO_V1(outbox_message_locker);
Datum
outbox_message_locker(PG_FUNCTION_ARGS)
{
	TransactionId locker = InvalidTransactionId;
	bool		found = false;

	for (OutboxStoreKind kind = 0; kind < OUTBOX_NSTORES && !found; kind++)
	{
		const OutboxStore *store = outbox_store(kind);
		OutboxTable queue;
		TupleTableSlot *slot;

		outbox_table_open_to_read(&queue, store->table);
		slot = outbox_table_slot(&queue);
		found = outbox_find_row(&queue, store->pkey, PG_GETARG_DATUM(0), slot,
								&locker);
		if (found && !TransactionIdIsValid(locker))
			locker = outbox_row_locker(slot);
		ExecDropSingleTupleTableSlot(slot);
		outbox_table_close(&queue);
	}
	if (!TransactionIdIsValid(locker))
		PG_RETURN_NULL();
	PG_RETURN_TRANSACTIONID(locker);
}

/*
 * outbox._lanes(store regclass, OUT ...) RETURNS SETOF record
 *		The lanes of a live table in shared memory.
 */
PG_FUNCTION_INFO_V1(outbox_lanes_sql);
Datum
outbox_lanes_sql(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxAgenda agenda;
	OutboxLane *lanes;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	n = outbox_agenda_copy(PG_GETARG_OID(0), &agenda, &lanes);
	for (int i = 0; i < n; i++)
	{
		const OutboxLane *lane = &lanes[i];
		Datum		values[] = {
			Int64GetDatum(lane->place.lane),
			Int64GetDatum((int64) lane->token),
			BoolGetDatum(outbox_agenda_is_complete(&agenda)),
			TimestampTzGetDatum(lane->cursor.at),
			Int64GetDatum(lane->cursor.id),
			TimestampTzGetDatum(lane->next_due),
			BoolGetDatum(lane->due),
			BoolGetDatum(lane->called),
			Int32GetDatum(lane->nduemarks),
			Int32GetDatum(lane->npending),
			BoolGetDatum(lane->leases_known),
			TimestampTzGetDatum(lane->used_at)
		};
		bool		isnull[lengthof(values)] = {false};

		tuplestore_putvalues(result->setResult, result->setDesc, values, isnull);
	}
	return (Datum) 0;
}

/*
 * outbox._grant_for_users(role regrole, kind text) RETURNS void
 *		Does what outbox._grant does, in an upgrade script.  Privileges granted
 *		by a script count as part of the extension, and are not dumped; so
 *		creating_extension is off for the duration of this call.
 */
PG_FUNCTION_INFO_V1(outbox_grant_for_users);
Datum
outbox_grant_for_users(PG_FUNCTION_ARGS)
{
	Oid			types[2] = {REGROLEOID, TEXTOID};
	Datum		values[2] = {PG_GETARG_DATUM(0), PG_GETARG_DATUM(1)};
	bool		in_script = creating_extension;

	PG_TRY();
	{
		creating_extension = false;
		if (SPI_connect() != SPI_OK_CONNECT ||
			SPI_execute_with_args("SELECT " OUTBOX_SCHEMA "._grant($1, $2)", 2, types,
								  values, NULL, false, 0) != SPI_OK_SELECT)
			elog(ERROR, "could not grant");
		SPI_finish();
	}
	PG_FINALLY();
	{
		creating_extension = in_script;
	}
	PG_END_TRY();
	PG_RETURN_VOID();
}
