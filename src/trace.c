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
 */
#include "postgres.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "utils/timestamp.h"

#include "table/columns.h"
#include "trace.h"

#if defined(USE_ASSERT_CHECKING) || defined(OUTBOX_TRACE)

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

#endif
