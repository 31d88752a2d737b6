/*
 * receptor.c
 *	  The progress of receptors and perspectives, as instances report it.
 *
 * The engine does not use it: it is kept in two tables, which SQL functions
 * write (sql/receptors.sql).
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"

#include "core/receptor.h"
#include "table/catalog.h"

static Datum
make_array(Datum *values, bool *isnull, int n, Oid type)
{
	int			dims[1] = {n};
	int			lbs[1] = {1};
	int16		typlen;
	bool		typbyval;
	char		typalign;

	get_typlenbyvalalign(type, &typlen, &typbyval, &typalign);
	return PointerGetDatum(construct_md_array(values, isnull, 1, dims, lbs,
											  type, typlen, typbyval, typalign));
}

#define DERIVED_COLUMNS 6

/*
 * Run a statement with the completed and the failed entries; their columns are
 * passed as arrays.
 */
static void
write_lists(const char *sql, const OutboxDerivedList *lists)
{
	static const Oid elements[DERIVED_COLUMNS] = {UUIDOID, TEXTOID, UUIDOID, INT4OID, TEXTOID, BOOLOID};
	int			n = lists[0].n + lists[1].n;
	Oid			types[DERIVED_COLUMNS];
	Datum		args[DERIVED_COLUMNS];
	Datum	   *values[DERIVED_COLUMNS];
	bool	   *isnull[DERIVED_COLUMNS];

	if (n == 0)
		return;
	for (int k = 0; k < DERIVED_COLUMNS; k++)
	{
		values[k] = palloc0_array(Datum, n);
		isnull[k] = palloc0_array(bool, n);
	}
	for (int i = 0; i < n; i++)
	{
		bool		failed = i >= lists[0].n;
		const OutboxDerived *entry;

		entry = failed ? &lists[1].entries[i - lists[0].n] :
			&lists[0].entries[i];
		values[0][i] = UUIDPGetDatum(entry->id);
		values[1][i] = PointerGetDatum(entry->name);
		values[2][i] = UUIDPGetDatum(entry->last_message_id);
		isnull[2][i] = entry->last_message_id == NULL;
		if (entry->status != NULL)
			values[3][i] = Int32GetDatum(*entry->status);
		isnull[3][i] = entry->status == NULL;
		values[4][i] = PointerGetDatum(entry->error);
		isnull[4][i] = entry->error == NULL;
		values[5][i] = BoolGetDatum(failed);
	}
	for (int k = 0; k < DERIVED_COLUMNS; k++)
	{
		types[k] = get_array_type(elements[k]);
		args[k] = make_array(values[k], isnull[k], n, elements[k]);
	}
	if (SPI_execute_with_args(sql, DERIVED_COLUMNS, types, args, NULL, false, 0) < 0)
		elog(ERROR, "could not run a statement");
}

/*
 * Write the sections of receptors and perspectives, as the owner of their
 * tables.
 */
void
outbox_receptors_write(const OutboxDerivedSections *sections)
{
	Oid			save_user;
	int			save_context;

	if (sections->receptors[0].n + sections->receptors[1].n +
		sections->perspectives[0].n + sections->perspectives[1].n == 0)
		return;
	GetUserIdAndSecContext(&save_user, &save_context);
	SetUserIdAndSecContext(outbox_catalog()->owner,
						   save_context | SECURITY_LOCAL_USERID_CHANGE);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	write_lists("SELECT outbox._note_receptors($1, $2, $4, $5, $6)",
				sections->receptors);
	write_lists("SELECT outbox._note_perspectives($1, $2, $3, $4, $5, $6)",
				sections->perspectives);
	if (SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "could not disconnect from SPI");
	SetUserIdAndSecContext(save_user, save_context);
}
