/*
 * errors.c
 *	  The errors of all attempts of a message.
 *
 * They are in the message's own row, so they go where it goes, stay for as long as
 * it does, and cost nothing where nothing fails.  An array has a text for each
 * attempt that was handed back as failed: the number of the attempt, the time in
 * microseconds since 2000-01-01 UTC, and the error if one was given, with spaces
 * between.  The view outbox.attempts_log takes them apart.
 *
 * Texts, few and short: a nack rewrites them all.  The same as jsonb, 20 of up to
 * 500 bytes, made a nack cost four times as much.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "queue/errors.h"

static Datum
make_entry(int attempt, TimestampTz at, const text *error)
{
	StringInfoData entry;

	initStringInfo(&entry);
	appendStringInfo(&entry, "%d " INT64_FORMAT, attempt, at);
	if (error != NULL)
	{
		appendStringInfoChar(&entry, ' ');
		appendBinaryStringInfo(&entry, VARDATA_ANY(error),
							   pg_mbcliplen(VARDATA_ANY(error),
											VARSIZE_ANY_EXHDR(error),
											OUTBOX_MAX_ERROR_BYTES));
	}
	return PointerGetDatum(cstring_to_text_with_len(entry.data, entry.len));
}

/*
 * The errors of a message, or NULL if there were none, and one more; the error of
 * an attempt may be unknown.  What plain SQL has put there and is no list of texts
 * is forgotten.
 */
ArrayType  *
outbox_errors_add(ArrayType *errors, int attempt, TimestampTz at,
				  const text *error)
{
	Datum	   *old = NULL;
	int			nold = 0;
	Datum		entries[OUTBOX_MAX_ERRORS];
	int			n = 0;

	if (errors != NULL && ARR_NDIM(errors) == 1 && !ARR_HASNULL(errors))
		deconstruct_array(errors, TEXTOID, -1, false, TYPALIGN_INT, &old, NULL,
						  &nold);
	for (int i = Max(nold - OUTBOX_MAX_ERRORS + 1, 0); i < nold; i++)
		entries[n++] = old[i];
	entries[n++] = make_entry(attempt, at, error);
	return construct_array(entries, n, TEXTOID, -1, false, TYPALIGN_INT);
}
