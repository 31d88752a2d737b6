/*
 * sql_sample.c
 *	  SQL functions that count what is in live tables, up to a limit.
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "compat.h"
#include "queue/sample.h"
#include "table/catalog.h"

/* The live table with this OID, or an error. */
static const OutboxStore *
require_store(Oid relid)
{
	const OutboxStore *store = outbox_store_of(relid);

	if (store == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("store must be a table of unfinished work")));
	return store;
}

/* Add a row for a topic in a lane. */
static void
return_counts(const OutboxLaneCounts *counts, void *arg)
{
	ReturnSetInfo *rsinfo = arg;
	Datum		values[] = {
		PointerGetDatum(counts->namespace),
		PointerGetDatum(counts->topic),
		Int32GetDatum(counts->subscriber),
		Int64GetDatum(counts->ready),
		Int64GetDatum(counts->behind),
		Int64GetDatum(counts->delayed),
		Int64GetDatum(counts->leased),
		Int64GetDatum(counts->expired),
		Int64GetDatum(counts->failing),
		TimestampTzGetDatum(counts->oldest_ready),
		BoolGetDatum(counts->more)
	};
	bool		isnull[lengthof(values)] = {false};

	isnull[2] = counts->subscriber == 0;
	isnull[9] = counts->oldest_ready == DT_NOEND;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
}

/*
 * outbox._lane_counts(store regclass, deliveries boolean) RETURNS TABLE
 *		(namespace text, topic text, subscriber int, ready bigint, behind bigint,
 *		delayed bigint, leased bigint, expired bigint, failing bigint,
 *		oldest_ready_at timestamptz, more boolean)
 *		How many messages each lane has, up to a limit.
 */
PG_FUNCTION_INFO_V1(outbox_lane_counts);
Datum
outbox_lane_counts(PG_FUNCTION_ARGS)
{
	const OutboxStore *store = require_store(PG_GETARG_OID(0));

	InitMaterializedSRF(fcinfo, 0);
	outbox_sample_lanes(store, PG_GETARG_BOOL(1), return_counts, fcinfo->resultinfo);
	return (Datum) 0;
}

static void
return_stream(const pg_uuid_t *stream, int64 first, void *arg)
{
	ReturnSetInfo *rsinfo = arg;
	Datum		values[] = {UUIDPGetDatum(stream), Int64GetDatum(first)};
	bool		isnull[lengthof(values)] = {false};

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
}

/*
 * outbox._waiting_streams() RETURNS TABLE (stream_id uuid, id bigint)
 *		The streams to examine for one that does not move on, and the first
 *		message of each.
 */
PG_FUNCTION_INFO_V1(outbox_waiting_streams);
Datum
outbox_waiting_streams(PG_FUNCTION_ARGS)
{
	InitMaterializedSRF(fcinfo, 0);
	outbox_sample_streams(outbox_store(OUTBOX_QUEUE), return_stream, fcinfo->resultinfo);
	return (Datum) 0;
}
