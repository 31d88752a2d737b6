/*
 * errors.h
 *	  The errors of all attempts of a message.
 */
#ifndef OUTBOX_ERRORS_H
#define OUTBOX_ERRORS_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "utils/array.h"

/* Of more attempts, those of the last ones are kept. */
#define OUTBOX_MAX_ERRORS 10

/* An error that is longer is cut off; last_error has all of the last one. */
#define OUTBOX_MAX_ERROR_BYTES 200

extern ArrayType *outbox_errors_add(ArrayType *errors, int attempt,
									TimestampTz at, const text *error);

#endif							/* OUTBOX_ERRORS_H */
