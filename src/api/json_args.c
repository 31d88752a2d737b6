/*
 * json_args.c
 *	  Lists of records given as JSON.
 *
 * The caller describes the fields of a record in a table; the functions here
 * parse the list.  Keys may be in PascalCase or camelCase instead of
 * snake_case.  Anything invalid - not a list, not an object, an unknown key, a
 * value of the wrong type or form - raises 22023, and the message says where
 * it is.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"
#include "utils/numeric.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "api/json_args.h"
#include "compat.h"

/* The position in the list, for error messages. */
typedef struct Place
{
	const char *what;
	int			index;
	const char *key;
} Place;

static const char *
place_name(const Place *place)
{
	return psprintf("%s[%d]%s%s", place->what, place->index,
					place->key != NULL ? "." : "",
					place->key != NULL ? place->key : "");
}

static void
wrong_value(const Place *place, const char *expected)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s must be %s", place_name(place), expected)));
}

/*
 * Convert a string with a type's input function, whose errors are replaced by
 * ours.
 */
static Datum
read_string(const Place *place, PGFunction input, const char *string,
			const char *expected)
{
	MemoryContext context = CurrentMemoryContext;
	Datum		result = (Datum) 0;

	PG_TRY();
	{
		result = DirectFunctionCall3(input, CStringGetDatum(string),
									 ObjectIdGetDatum(InvalidOid),
									 Int32GetDatum(-1));
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		if (ERRCODE_TO_CATEGORY(edata->sqlerrcode) != ERRCODE_DATA_EXCEPTION)
			PG_RE_THROW();
		FlushErrorState();
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be %s", place_name(place), expected),
				 errdetail_internal("%s", edata->message)));
	}
	PG_END_TRY();
	return result;
}

static char *
get_string(const Place *place, const JsonbValue *value, const char *expected)
{
	if (value->type != jbvString)
		wrong_value(place, expected);
	return pnstrdup(value->val.string.val, value->val.string.len);
}

static void *
get_time(const Place *place, const JsonbValue *value)
{
	TimestampTz *result = palloc_object(TimestampTz);

	*result = DatumGetTimestampTz(read_string(place, timestamptz_in,
											  get_string(place, value, "a timestamp"),
											  "a timestamp"));
	return result;
}

/* Read an integer; fractions that are zero are allowed. */
static void *
get_int(const Place *place, const JsonbValue *value)
{
	int32	   *result = palloc_object(int32);
	bool		whole = value->type == jbvNumeric;
	bool		fits = false;

	if (whole)
	{
		char	   *digits = DatumGetCString(DirectFunctionCall1(numeric_out,
																 NumericGetDatum(value->val.numeric)));
		char	   *end;
		long		number;

		errno = 0;
		number = strtol(digits, &end, 10);
		whole = *end == '\0';
		fits = errno == 0 && number >= PG_INT32_MIN && number <= PG_INT32_MAX;
		*result = (int32) number;
	}
	if (!whole)
		wrong_value(place, "an integer");
	if (!fits)
		wrong_value(place, "between -2147483648 and 2147483647");
	return result;
}

/* The text of a JSON value. */
static text *
json_text(JsonbValue *value)
{
	Jsonb	   *json = JsonbValueToJsonb(value);

	return cstring_to_text(JsonbToCString(NULL, &json->root, VARSIZE(json)));
}

static void *
get_payload(JsonbValue *value)
{
	if (value->type == jbvString)
		return cstring_to_text_with_len(value->val.string.val,
										value->val.string.len);
	return json_text(value);
}

/* Read a value, to which the record's member will point. */
static void *
get_value(const Place *place, OutboxJsonKind kind, JsonbValue *value)
{
	if (value->type == jbvNull)
		return NULL;
	switch (kind)
	{
		case OUTBOX_JSON_TEXT:
			if (value->type != jbvString)
				wrong_value(place, "a string");
			return cstring_to_text_with_len(value->val.string.val,
											value->val.string.len);
		case OUTBOX_JSON_UUID:
			return DatumGetPointer(read_string(place, uuid_in,
											   get_string(place, value, "a UUID"),
											   "a UUID"));
		case OUTBOX_JSON_INT:
			return get_int(place, value);
		case OUTBOX_JSON_TIME:
			return get_time(place, value);
		case OUTBOX_JSON_INTERVAL:
			return DatumGetPointer(read_string(place, interval_in,
											   get_string(place, value, "an interval"),
											   "an interval"));
		case OUTBOX_JSON_OBJECT:
			return JsonbValueToJsonb(value);
		case OUTBOX_JSON_PAYLOAD:
			return get_payload(value);
	}
	pg_unreachable();
}

/* Convert a key to the form of field names: "MessageId" to "message_id". */
static char *
snake_case(const char *key, int len)
{
	StringInfoData name;

	initStringInfo(&name);
	for (int i = 0; i < len; i++)
	{
		if (key[i] >= 'A' && key[i] <= 'Z')
		{
			if (i > 0)
				appendStringInfoChar(&name, '_');
			appendStringInfoChar(&name, key[i] - 'A' + 'a');
		}
		else
			appendStringInfoChar(&name, key[i]);
	}
	return name.data;
}

/* Read the fields of one object into a record. */
static void
read_record(Place *place, JsonbContainer *object,
			const OutboxJsonField *fields, int nfields, char *record)
{
	JsonbIterator *it = JsonbIteratorInit(object);
	JsonbValue	key;
	JsonbValue	value;

	(void) JsonbIteratorNext(&it, &key, false); /* the object itself */
	while (JsonbIteratorNext(&it, &key, true) == WJB_KEY)
	{
		const OutboxJsonField *field = NULL;

		(void) JsonbIteratorNext(&it, &value, true);
		place->key = snake_case(key.val.string.val, key.val.string.len);
		for (int i = 0; i < nfields && field == NULL; i++)
		{
			if (strcmp(fields[i].name, place->key) == 0)
				field = &fields[i];
		}
		if (field == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s[%d] has an unknown key \"%s\"", place->what,
							place->index,
							pnstrdup(key.val.string.val, key.val.string.len))));
		*(void **) (record + field->offset) =
			get_value(place, field->kind, &value);
	}
}

static void
require_array(Jsonb *json, const char *what)
{
	if (!JB_ROOT_IS_ARRAY(json) || JB_ROOT_IS_SCALAR(json))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be a JSON array", what)));
}

/* Raise an error unless all elements are objects. */
static void
require_objects(Jsonb *json, const char *what)
{
	JsonbIterator *it = JsonbIteratorInit(&json->root);
	JsonbValue	value;
	int			index = 0;

	(void) JsonbIteratorNext(&it, &value, false);	/* the array itself */
	while (JsonbIteratorNext(&it, &value, true) == WJB_ELEM)
	{
		CHECK_FOR_INTERRUPTS();
		if (value.type != jbvBinary ||
			!JsonContainerIsObject(value.val.binary.data))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("%s[%d] must be an object", what, index)));
		index++;
	}
}

/*
 * Read a list of records.  Returns an array of *n records of the given size,
 * in which all but the members of the fields are zero.
 */
void *
outbox_json_records(Jsonb *json, const char *what,
					const OutboxJsonField *fields, int nfields, size_t size,
					int *n)
{
	Place		place = {what, 0, NULL};
	JsonbIterator *it;
	JsonbValue	value;
	char	   *records;

	require_array(json, what);
	require_objects(json, what);
	*n = JB_ROOT_COUNT(json);
	records = MemoryContextAllocExtended(CurrentMemoryContext,
										 size * (*n + 1),
										 MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	it = JsonbIteratorInit(&json->root);
	(void) JsonbIteratorNext(&it, &value, false);
	while (JsonbIteratorNext(&it, &value, true) == WJB_ELEM)
	{
		CHECK_FOR_INTERRUPTS();
		Assert(place.index < *n);
		read_record(&place, value.val.binary.data, fields, nfields,
					records + size * place.index);
		place.index++;
	}
	return records;
}

/* Read a list of payloads, each as the text of its JSON value. */
const text **
outbox_json_payloads(Jsonb *json, const char *what, int *n)
{
	JsonbIterator *it;
	JsonbValue	value;
	const text **payloads;

	require_array(json, what);
	payloads = MemoryContextAllocHuge(CurrentMemoryContext,
									  sizeof(text *) * (JB_ROOT_COUNT(json) + 1));
	*n = 0;
	it = JsonbIteratorInit(&json->root);
	(void) JsonbIteratorNext(&it, &value, false);
	while (JsonbIteratorNext(&it, &value, true) == WJB_ELEM)
	{
		CHECK_FOR_INTERRUPTS();
		Assert(*n < JB_ROOT_COUNT(json));
		payloads[(*n)++] = json_text(&value);
	}
	return payloads;
}

/* Read a list of *n UUIDs. */
pg_uuid_t *
outbox_json_uuids(Jsonb *json, const char *what, int *n)
{
	JsonbIterator *it;
	JsonbValue	value;
	pg_uuid_t  *uuids;

	require_array(json, what);
	uuids = palloc_array(pg_uuid_t, JB_ROOT_COUNT(json) + 1);
	*n = 0;
	it = JsonbIteratorInit(&json->root);
	(void) JsonbIteratorNext(&it, &value, false);
	while (JsonbIteratorNext(&it, &value, true) == WJB_ELEM)
	{
		Place		place = {what, *n, NULL};

		if (value.type != jbvString)
			wrong_value(&place, "a UUID");
		Assert(*n < JB_ROOT_COUNT(json));
		uuids[(*n)++] = *DatumGetUUIDP(read_string(&place, uuid_in,
												   get_string(&place, &value, "a UUID"),
												   "a UUID"));
	}
	return uuids;
}
