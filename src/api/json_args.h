/*
 * json_args.h
 *	  Lists of records given as JSON.
 */
#ifndef OUTBOX_JSON_ARGS_H
#define OUTBOX_JSON_ARGS_H

#include "postgres.h"

#include "utils/jsonb.h"
#include "utils/uuid.h"

/* The type of a field, and what its member of the record points to. */
typedef enum OutboxJsonKind
{
	OUTBOX_JSON_TEXT,			/* string -> text */
	OUTBOX_JSON_UUID,			/* string -> pg_uuid_t */
	OUTBOX_JSON_INT,			/* number -> int32 */
	OUTBOX_JSON_TIME,			/* string -> TimestampTz */
	OUTBOX_JSON_INTERVAL,		/* string -> Interval */
	OUTBOX_JSON_OBJECT,			/* anything -> Jsonb */
	OUTBOX_JSON_PAYLOAD			/* string, or any value's JSON -> text */
} OutboxJsonKind;

/* A field of a record.  Absent and null leave the member NULL. */
typedef struct OutboxJsonField
{
	const char *name;
	OutboxJsonKind kind;
	size_t		offset;			/* of the member, a pointer */
} OutboxJsonField;

extern void *outbox_json_records(Jsonb *json, const char *what,
								 const OutboxJsonField *fields, int nfields,
								 size_t size, int *n);

extern const text **outbox_json_payloads(Jsonb *json, const char *what, int *n);
extern pg_uuid_t *outbox_json_uuids(Jsonb *json, const char *what, int *n);

#endif							/* OUTBOX_JSON_ARGS_H */
