/*
 * trace.c
 *	  A trace of what the code does, for the models in test/models.
 *
 * Each backend maps the file.  An event gets its position by incrementing a
 * counter in the file, while the caller holds the lock; so the positions are
 * in order, and the events of a killed backend are preserved.  Events beyond
 * the size of the file are only counted.
 *
 * This must not allocate memory or fail, because events are also written at
 * the end of a transaction.
 *
 * Of SQL functions that do something to joins, the begin and the end are
 * events: PL/pgSQL calls a plugin for them, as it would a debugger.
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "utils/expandedrecord.h"
#include "utils/timestamp.h"

#include "table/columns.h"
#include "trace.h"

#if defined(USE_ASSERT_CHECKING) || defined(OUTBOX_TRACE)

#include "plpgsql.h"

#define PROCESS_RECHECK "outbox._process_join_recheck(outbox.join_rechecks)"

static OutboxTraceEvent *events = NULL;
static uint64 nevents = 0;		/* room for so many, including the first */

/* Map the trace file, if there is one. */
static void
map_file(void)
{
	struct stat status;
	void	   *mapped;
	int			file = open(OUTBOX_TRACE_FILE, O_RDWR);

	if (file < 0)
		return;
	if (fstat(file, &status) == 0 && status.st_size > 0)
	{
		mapped = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED,
					  file, 0);
		if (mapped != MAP_FAILED)
		{
			events = mapped;
			nevents = status.st_size / sizeof(OutboxTraceEvent);
		}
	}
	close(file);
}

/* The position of the next event; NULL if there is no room. */
static OutboxTraceEvent *
next_event(void)
{
	static bool looked = false;
	uint64		number;

	if (!looked && IsUnderPostmaster)
	{
		looked = true;
		map_file();
	}
	if (events == NULL)
		return NULL;
	number = pg_atomic_fetch_add_u64((pg_atomic_uint64 *) events, 1) + 1;
	return number < nevents ? &events[number] : NULL;
}

/* Write an event.  The caller must hold the lock under which it happens. */
void
outbox_trace(const char *what, const int64 *values, int nvalues)
{
	OutboxTraceEvent *event = next_event();

	Assert(nvalues <= OUTBOX_TRACE_VALUES);
	if (event == NULL)
		return;
	event->pid = MyProcPid;
	event->nvalues = nvalues;
	memcpy(event->values, values, nvalues * sizeof(int64));
	pg_write_barrier();
	strlcpy(event->what, what, sizeof(event->what));
}

/* The value of a column as a number; 0 for null. */
static int64
column(TupleTableSlot *row, AttrNumber attnum)
{
	bool		isnull;
	Datum		value = slot_getattr(row, attnum, &isnull);

	if (isnull)
		return 0;
	switch (attnum)
	{
		case Q_STATUS:
			return DatumGetInt16(value);
		case Q_ATTEMPTS:
		case Q_WAIVED:
			return DatumGetInt32(value);
		case Q_OWNER_TOKEN:
			return outbox_trace_uuid(DatumGetUUIDP(value));
		default:
			return DatumGetInt64(value);
	}
}

/*
 * Write the event that a transaction has changed a message, whose row it still
 * has locked.  "new" is NULL if the message has left the table; attempt is the
 * one that the caller has named, -1 if none.
 */
void
outbox_trace_row(const char *what, Oid relid, TupleTableSlot *old,
				 TupleTableSlot *new, TimestampTz now, int attempt)
{
	const int64 values[] = {
		relid, column(old, Q_ID), GetTopTransactionIdIfAny(), now, attempt,
		column(old, Q_STATUS), column(old, Q_ATTEMPTS), column(old, Q_OWNER_TOKEN),
		new != NULL ? column(new, Q_STATUS) : -1,
		new != NULL ? column(new, Q_ATTEMPTS) : -1,
		new != NULL ? column(new, Q_WAIVED) : -1,
		new != NULL ? column(new, Q_OWNER_TOKEN) : -1,
		new != NULL ? column(new, Q_LOCKED_UNTIL) : -1
	};

	outbox_trace(what, values, lengthof(values));
}

/*
 * Write the event that a transaction ends, or is about to; one without an id
 * has changed nothing.
 */
void
outbox_trace_xact(const char *what, bool commits)
{
	const int64 values[] = {GetTopTransactionIdIfAny(), commits};

	if (values[0] != InvalidTransactionId)
		outbox_trace(what, values, lengthof(values));
}

/* The number by which events name what has this UUID. */
int64
outbox_trace_uuid(const pg_uuid_t *uuid)
{
	int64		halves[2];

	StaticAssertStmt(sizeof(halves) == UUID_LEN, "a UUID has two halves");
	memcpy(halves, uuid->data, UUID_LEN);
	return halves[0] ^ halves[1];
}

/* An argument of a function, as it is called. */
static PLpgSQL_datum *
argument(PLpgSQL_execstate *estate, PLpgSQL_function *func, int number)
{
	return estate->datums[func->fn_argvarnos[number]];
}

/* The value of such an argument that is a UUID; 0 for null. */
static int64
uuid_argument(PLpgSQL_execstate *estate, PLpgSQL_function *func, int number)
{
	PLpgSQL_var *var = (PLpgSQL_var *) argument(estate, func, number);

	return var->isnull ? 0 : outbox_trace_uuid(DatumGetUUIDP(var->value));
}

/* The first column of such an argument that is a row; 0 for null. */
static int64
row_argument(PLpgSQL_execstate *estate, PLpgSQL_function *func, int number)
{
	PLpgSQL_rec *rec = (PLpgSQL_rec *) argument(estate, func, number);
	bool		isnull = true;
	Datum		value = (Datum) 0;

	if (rec->erh != NULL)
		value = expanded_record_get_field(rec->erh, 1, &isnull);
	return isnull ? 0 : DatumGetInt64(value);
}

/* The value of a boolean variable; 2 for null. */
static int64
variable(PLpgSQL_execstate *estate, const char *name)
{
	for (int i = 0; i < estate->ndatums; i++)
	{
		PLpgSQL_var *var = (PLpgSQL_var *) estate->datums[i];

		if (var->dtype == PLPGSQL_DTYPE_VAR && strcmp(var->refname, name) == 0)
			return var->isnull ? 2 : DatumGetBool(var->value);
	}
	return -1;
}

static bool
is_call_of(PLpgSQL_function *func, const char *signature)
{
	return strcmp(func->fn_signature, signature) == 0;
}

static void
function_begins(PLpgSQL_execstate *estate, PLpgSQL_function *func)
{
	if (is_call_of(func, "outbox.attach_message_to_join(uuid,uuid)"))
		OUTBOX_TRACE_EVENT("join.attach", uuid_argument(estate, func, 0),
						   uuid_argument(estate, func, 1));
	else if (is_call_of(func, PROCESS_RECHECK))
		OUTBOX_TRACE_EVENT("join.recheck", row_argument(estate, func, 0),
						   GetTopTransactionIdIfAny());
}

static void
function_ends(PLpgSQL_execstate *estate, PLpgSQL_function *func)
{
	if (is_call_of(func, PROCESS_RECHECK))
		OUTBOX_TRACE_EVENT("join.rechecked", row_argument(estate, func, 0),
						   GetTopTransactionIdIfAny(),
						   variable(estate, "resolved"));
}

/* Have PL/pgSQL tell when functions begin and end. */
void
outbox_trace_sql(void)
{
	static PLpgSQL_plugin plugin = {
		.func_beg = function_begins,
		.func_end = function_ends
	};
	PLpgSQL_plugin **plugins = (PLpgSQL_plugin **) find_rendezvous_variable("PLpgSQL_plugin");

	if (*plugins == NULL)
		*plugins = &plugin;
}

#endif
