/*
 * uuid7.h
 *	  Time-ordered message ids.
 */
#ifndef OUTBOX_UUID7_H
#define OUTBOX_UUID7_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "utils/uuid.h"

extern void outbox_uuid7(TimestampTz now, pg_uuid_t *uuid);

#endif							/* OUTBOX_UUID7_H */
