/*
 * sql_counters.c
 *	  SQL functions of the counters.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "shmem/counters.h"
#include "table/catalog.h"

/* Columns of _counters(): kind, names, counts, histograms, stats_since. */
#define FIRST_NAME 1
#define FIRST_COUNT (FIRST_NAME + OUTBOX_NNAMES)
#define FIRST_HISTOGRAM (FIRST_COUNT + OUTBOX_NCOUNTS)
#define SINCE (FIRST_HISTOGRAM + OUTBOX_NHISTOGRAMS)
#define NCOLUMNS (SINCE + 1)

static const char *const kind_names[OUTBOX_NSTORES] = {
	[OUTBOX_QUEUE] = "message",
	[OUTBOX_INBOX] = "inbox",
	[OUTBOX_TIMERS] = "timer",
	[OUTBOX_RUNS] = "job_run"
};

static Datum
histogram_datum(const uint64 *buckets)
{
	Datum		elements[OUTBOX_NBUCKETS];

	for (int i = 0; i < OUTBOX_NBUCKETS; i++)
		elements[i] = Int64GetDatum((int64) buckets[i]);
	return PointerGetDatum(construct_array(elements, OUTBOX_NBUCKETS, INT8OID,
										   sizeof(int64), FLOAT8PASSBYVAL,
										   TYPALIGN_DOUBLE));
}

static void
set_counts(Datum *values, const OutboxCounts *counts)
{
	static const OutboxCount times[] = {
		OUTBOX_COUNT_WAIT_USECS, OUTBOX_COUNT_SERVICE_USECS, OUTBOX_COUNT_CALL_USECS
	};

	for (int i = 0; i < OUTBOX_NCOUNTS; i++)
		values[FIRST_COUNT + i] = Int64GetDatum((int64) counts->counts[i]);
	for (int i = 0; i < lengthof(times); i++)
		values[FIRST_COUNT + times[i]] =
			Int64GetDatum((int64) (counts->counts[times[i]] / 1000));
	for (int h = 0; h < OUTBOX_NHISTOGRAMS; h++)
		values[FIRST_HISTOGRAM + h] = histogram_datum(counts->buckets[h]);
}

static void
set_names(Datum *values, bool *isnull, const OutboxCounted *counted)
{
	const char *bytes = counted->bytes;

	values[0] = CStringGetTextDatum(kind_names[counted->kind]);
	isnull[0] = false;
	for (int i = 0; i < OUTBOX_NNAMES; i++)
	{
		if (counted->lengths[i] < 0)
			continue;
		values[FIRST_NAME + i] =
			PointerGetDatum(cstring_to_text_with_len(bytes, counted->lengths[i]));
		isnull[FIRST_NAME + i] = false;
		bytes += counted->lengths[i];
	}
}

static bool
has_counters(const OutboxCounterCopy *copy)
{
	return copy->counted.kind >= 0 && copy->counted.kind < OUTBOX_NSTORES;
}

static void
put_row(ReturnSetInfo *rsinfo, const OutboxCounted *counted,
		const OutboxCounts *counts, TimestampTz since)
{
	Datum		values[NCOLUMNS] = {0};
	bool		isnull[NCOLUMNS] = {false};

	for (int i = 0; i < FIRST_COUNT; i++)
		isnull[i] = true;
	if (counted != NULL)
		set_names(values, isnull, counted);
	set_counts(values, counts);
	values[SINCE] = TimestampTzGetDatum(since);
	isnull[SINCE] = since == DT_NOBEGIN;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
}

/*
 * outbox._counters(by_topic boolean) RETURNS TABLE (kind text, namespace text,
 *		subscription text, topic text, <counts> bigint, <histograms> bigint[],
 *		stats_since timestamptz)
 *		The counters of this database: of each topic, or, in one row, their sums.
 */
PG_FUNCTION_INFO_V1(outbox_counters_sql);
Datum
outbox_counters_sql(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	bool		by_topic = PG_GETARG_BOOL(0);
	TimestampTz since = outbox_counters_since(MyDatabaseId);
	OutboxCounts sum = {{0}};
	OutboxCounterCopy *copies;
	int			ncopies = outbox_counters_copy(MyDatabaseId, &copies);

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < ncopies; i++)
	{
		if (!has_counters(&copies[i]))
			continue;
		if (by_topic)
			put_row(rsinfo, &copies[i].counted, &copies[i].counts, copies[i].since);
		else
			outbox_counts_add(&sum, &copies[i].counts);
	}
	if (!by_topic)
		put_row(rsinfo, NULL, &sum, since);
	return (Datum) 0;
}

/*
 * outbox.stat_reset() RETURNS void
 */
PG_FUNCTION_INFO_V1(outbox_stat_reset);
Datum
outbox_stat_reset(PG_FUNCTION_ARGS)
{
	PreventCommandDuringRecovery("outbox.stat_reset()");
	outbox_counters_forget(MyDatabaseId, true);
	PG_RETURN_VOID();
}

/*
 * outbox._forget_counters() RETURNS int
 *		Removes the counters of databases that do not exist any more; returns how
 *		many databases.
 */
PG_FUNCTION_INFO_V1(outbox_forget_counters);
Datum
outbox_forget_counters(PG_FUNCTION_ARGS)
{
	Oid		   *dbids;
	int			ndbids;
	int			ngone = 0;

	PreventCommandDuringRecovery("outbox._forget_counters()");
	ndbids = outbox_counters_databases(&dbids);
	for (int i = 0; i < ndbids; i++)
	{
		if (SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(dbids[i])))
			continue;
		outbox_counters_forget(dbids[i], false);
		ngone++;
	}
	PG_RETURN_INT32(ngone);
}
