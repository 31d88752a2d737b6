/*
 * errors.h
 *	  The errors of all attempts of a message.
 */
#ifndef OUTBOX_ERRORS_H
#define OUTBOX_ERRORS_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "utils/array.h"

/* The errors of so many attempts are kept, the last ones. */
#define OUTBOX_MAX_ERRORS 10

/* Longer errors are truncated; last_error has the last one in full. */
#define OUTBOX_MAX_ERROR_BYTES 200

extern ArrayType *outbox_errors_add(ArrayType *errors, int attempt,
									TimestampTz at, const text *error);

#endif							/* OUTBOX_ERRORS_H */
