/*
 * wait_event.c
 *	  What a process of the extension waits for, as pg_stat_activity shows it.
 *
 * Names of an extension exist since PostgreSQL 17; before, what any extension
 * waits for is called Extension.
 */
#include "postgres.h"

#include "utils/wait_event.h"

#include "util/wait_event.h"

#if PG_VERSION_NUM >= 170000

static const char *const names[] = {
	[OUTBOX_WAIT_CLAIM] = "OutboxClaim",
	[OUTBOX_WAIT_LAUNCHER] = "OutboxLauncher",
	[OUTBOX_WAIT_WORKER] = "OutboxWorker",
};

/* The number under which the server shows this event. */
uint32
outbox_wait_event(OutboxWaitEvent event)
{
	static uint32 numbers[lengthof(names)];

	Assert(event < lengthof(names));
	/* the same in all processes: the server keeps the names in shared memory */
	if (numbers[event] == 0)
		numbers[event] = WaitEventExtensionNew(names[event]);
	return numbers[event];
}

#else

/* The same: without names. */
uint32
outbox_wait_event(OutboxWaitEvent event)
{
	return PG_WAIT_EXTENSION;
}

#endif
