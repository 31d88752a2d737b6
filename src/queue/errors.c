/*
 * errors.c
 *	  The errors of all attempts of a message.
 *
 * They are in the row of the message, so they move with it, are kept for as
 * long as it is, and cost nothing if no attempt fails.  The array has a text
 * for each attempt that was reported as failed: the number of the attempt, the
 * time in microseconds since 2000-01-01 UTC, and the error if one was given,
 * separated by spaces; and a text with attempt 0 for each time it was brought
 * back from the dead.  The view outbox.attempts_log and outbox.trace() parse
 * them.
 *
 * They are texts, few and short, because each nack rewrites all of them.  With
 * jsonb, and 20 errors of up to 500 bytes, a nack took four times as long.
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

/* Does this entry say that the message was brought back? */
static bool
is_redrive(Datum entry)
{
	const text *value = DatumGetTextPP(entry);

	return VARSIZE_ANY_EXHDR(value) > 2 &&
		strncmp(VARDATA_ANY(value), "0 ", 2) == 0;
}

/*
 * Add one to the errors of a message, which are NULL if there were none; the
 * error may be NULL, too.  Attempt 0: it was brought back.  Of the errors, and
 * of these, as many as OUTBOX_MAX_ERRORS are kept, the last ones.  If plain
 * SQL has put something there that is not a list of texts, that is discarded.
 */
ArrayType *
outbox_errors_add(ArrayType *errors, int attempt, TimestampTz at,
				  const text *error)
{
	Datum	   *old = NULL;
	int			nold = 0;
	Datum	   *entries;
	int			n = 0;
	int			nsame = 0;

	if (errors != NULL && ARR_NDIM(errors) == 1 && !ARR_HASNULL(errors))
		deconstruct_array(errors, TEXTOID, -1, false, TYPALIGN_INT, &old, NULL,
						  &nold);
	entries = palloc_array(Datum, nold + 1);
	/* the last ones, from the back */
	for (int i = nold - 1; i >= 0; i--)
	{
		if (is_redrive(old[i]) == (attempt == 0) &&
			++nsame >= OUTBOX_MAX_ERRORS)
			continue;
		entries[nold - ++n] = old[i];
	}
	memmove(entries, entries + nold - n, n * sizeof(Datum));
	entries[n++] = make_entry(attempt, at, error);
	return construct_array(entries, n, TEXTOID, -1, false, TYPALIGN_INT);
}
