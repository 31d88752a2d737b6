/*
 * args.c
 *	  The arguments of SQL-callable functions.
 *
 * A null for a required value raises 22004, a value that is out of range or
 * malformed raises 22023, both before anything is done.
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "api/args.h"
#include "compat.h"
#include "outbox.h"
#include "queue/subscriber.h"
#include "util/hash.h"

/* Maximum length of a list, so that arrays made from it can be allocated. */
#define MAX_LIST 10000000

/* Raise an error if the transaction cannot write. */
void
outbox_require_writable(const char *function)
{
	PreventCommandIfReadOnly(function);
	PreventCommandDuringRecovery(function);
	PreventCommandIfParallelMode(function);
}

/* Raise an error if an argument is null. */
void
outbox_require(FunctionCallInfo fcinfo, int arg, const char *name)
{
	if (PG_ARGISNULL(arg))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name)));
}

/* A UUID, which must not be null. */
const pg_uuid_t *
outbox_arg_uuid(FunctionCallInfo fcinfo, int arg, const char *name)
{
	outbox_require(fcinfo, arg, name);
	return PG_GETARG_UUID_P(arg);
}

/* A UUID, or NULL. */
const pg_uuid_t *
outbox_arg_uuid_or_null(FunctionCallInfo fcinfo, int arg)
{
	return PG_ARGISNULL(arg) ? NULL : PG_GETARG_UUID_P(arg);
}

/* A text, or NULL. */
const text *
outbox_arg_text_or_null(FunctionCallInfo fcinfo, int arg)
{
	return PG_ARGISNULL(arg) ? NULL : PG_GETARG_TEXT_PP(arg);
}

/* NULL for an empty string, where that counts as absent. */
const text *
outbox_empty_to_null(const text *value)
{
	return value != NULL && VARSIZE_ANY_EXHDR(value) == 0 ? NULL : value;
}

/* Is this a valid name?  It is not if it is empty or too long. */
bool
outbox_is_name(const text *value)
{
	int			len = VARSIZE_ANY_EXHDR(value);

	return len > 0 &&
		(len <= OUTBOX_MAX_NAME ||
		 pg_mbstrlen_with_len(VARDATA_ANY(value), len) <= OUTBOX_MAX_NAME);
}

/* Raise an error if a name is empty or too long. */
void
outbox_check_name(const text *value, const char *name)
{
	if (!outbox_is_name(value))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must have 1 to %d characters", name,
						OUTBOX_MAX_NAME)));
}

/* A name, or NULL; an error if it is empty or too long. */
const text *
outbox_arg_name_or_null(FunctionCallInfo fcinfo, int arg, const char *name)
{
	const text *value = outbox_arg_text_or_null(fcinfo, arg);

	if (value != NULL)
		outbox_check_name(value, name);
	return value;
}

/* The same, but it must not be null. */
const text *
outbox_arg_name(FunctionCallInfo fcinfo, int arg, const char *name)
{
	outbox_require(fcinfo, arg, name);
	return outbox_arg_name_or_null(fcinfo, arg, name);
}

/*
 * Find the subscribers that a claim names, in one namespace or in all of them;
 * does nothing if it names no subscription.
 */
void
outbox_args_subscribers(const text *namespace, const text *subscription,
						const int32 **subscribers, int *nsubscribers)
{
	int32	   *ids;

	if (subscription == NULL)
		return;
	outbox_subscribers_named(namespace, subscription, &ids, nsubscribers);
	*subscribers = ids;
	if (*nsubscribers == 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("subscription \"%s\" does not exist",
						text_to_cstring(subscription))));
}

/* An integer in a range; null stands for the fallback. */
int
outbox_arg_int(FunctionCallInfo fcinfo, int arg, const char *name,
			   int fallback, int min, int max)
{
	int			value;

	if (PG_ARGISNULL(arg))
		return fallback;
	value = PG_GETARG_INT32(arg);
	if (value < min || value > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be between %d and %d", name, min, max)));
	return value;
}

/* A timestamp, stored in *space, or NULL. */
const TimestampTz *
outbox_arg_time_or_null(FunctionCallInfo fcinfo, int arg, TimestampTz *space)
{
	if (PG_ARGISNULL(arg))
		return NULL;
	*space = PG_GETARG_TIMESTAMPTZ(arg);
	return space;
}

/*
 * A delay, or NULL.  Its fields are checked one by one, because they are added
 * one after the other: none may be negative, or take a timestamp out of range.
 */
const Interval *
outbox_arg_delay_or_null(FunctionCallInfo fcinfo, int arg, const char *name)
{
	const Interval *value;
	double		days;

	if (PG_ARGISNULL(arg))
		return NULL;
	value = PG_GETARG_INTERVAL_P(arg);
	days = (double) value->month * DAYS_PER_YEAR / MONTHS_PER_YEAR +
		value->day + (double) value->time / USECS_PER_DAY;
	if (value->month < 0 || value->day < 0 || value->time < 0 ||
		days > OUTBOX_MAX_DELAY_DAYS)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be between 0 and %d days", name,
						OUTBOX_MAX_DELAY_DAYS)));
	return value;
}

/* A one-dimensional array, which must not be null, but may be empty. */
void
outbox_arg_array(FunctionCallInfo fcinfo, int arg, const char *name,
				 Oid type, Datum **values, bool **isnull, int *n)
{
	ArrayType  *array;
	int16		typlen;
	bool		typbyval;
	char		typalign;

	outbox_require(fcinfo, arg, name);
	array = PG_GETARG_ARRAYTYPE_P(arg);
	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must have one dimension", name)));
	get_typlenbyvalalign(type, &typlen, &typbyval, &typalign);
	if (ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)) > MAX_LIST)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not have more than %d elements", name,
						MAX_LIST)));
	deconstruct_array(array, type, typlen, typbyval, typalign, values, isnull,
					  n);
}

/* The same, but null stands for an empty array. */
void
outbox_arg_list(FunctionCallInfo fcinfo, int arg, const char *name,
				Oid type, Datum **values, bool **isnull, int *n)
{
	if (PG_ARGISNULL(arg))
		*n = 0;
	else
		outbox_arg_array(fcinfo, arg, name, type, values, isnull, n);
}

/*
 * A list of ids, sorted and without duplicates; null stands for an empty one.
 */
int64 *
outbox_arg_ids(FunctionCallInfo fcinfo, int arg, const char *name, int *n)
{
	Datum	   *values;
	bool	   *isnull;
	int64	   *ids;
	int			nvalues;
	int			nids = 0;

	outbox_arg_list(fcinfo, arg, name, INT8OID, &values, &isnull, &nvalues);
	ids = palloc_array(int64, nvalues + 1);
	for (int i = 0; i < nvalues; i++)
	{
		if (!isnull[i])
			ids[nids++] = DatumGetInt64(values[i]);
	}
	qsort(ids, nids, sizeof(int64), outbox_int64_cmp);
	*n = 0;
	for (int i = 0; i < nids; i++)
	{
		if (*n == 0 || ids[i] != ids[*n - 1])
			ids[(*n)++] = ids[i];
	}
	return ids;
}
