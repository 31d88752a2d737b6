/*
 * outbox.c
 *	  The library: what happens when it is loaded, and at the end of each
 *	  transaction.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"

#include "outbox.h"
#include "queue/archive.h"
#include "queue/handler.h"
#include "queue/policy.h"
#include "queue/router.h"
#include "shmem/claimers.h"
#include "shmem/directory.h"
#include "shmem/lane_memory.h"
#include "shmem/lane_publish.h"
#include "shmem/lane_xact.h"
#include "shmem/posts.h"
#include "shmem/shmem.h"
#include "shmem/stream_cursor.h"
#include "shmem/troubles.h"
#include "shmem/waiters.h"
#include "shmem/wake.h"
#include "table/catalog.h"
#include "table/table.h"
#include "util/guc.h"
#include "worker/launcher.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

/* One part in this many of the memory for lanes is for streams instead. */
#define STREAMS_PART 32

/* Find places in the block for the parts of variable size; returns its size. */
static Size
lay_out(OutboxShared *shared, Size budget)
{
	Size		for_streams = budget / STREAMS_PART;

	shared->waiters = MAXALIGN(sizeof(OutboxShared));
	shared->stream_cursors = shared->waiters +
		MAXALIGN(MaxBackends * sizeof(OutboxWaiter));
	shared->claimers = shared->stream_cursors +
		MAXALIGN(outbox_stream_cursors_size(for_streams));
	shared->lanes = shared->claimers + MAXALIGN(outbox_claimers_size(budget));
	return shared->lanes + outbox_lane_memory_size(budget - for_streams);
}

static Size
shared_size(Size budget)
{
	OutboxShared unmade;

	return lay_out(&unmade, budget);
}

static void
init_shared(OutboxShared *shared, Size budget)
{
	Size		for_streams = budget / STREAMS_PART;

	(void) lay_out(shared, budget);
	shared->tranche = LWLockNewTrancheId();
	outbox_workers_init(&shared->workers, shared->tranche);
	outbox_troubles_init(&shared->troubles, shared->tranche);
	outbox_directory_init(&shared->directory, shared->tranche);
	outbox_waiters_init((OutboxWaiter *) ((char *) shared + shared->waiters),
						MaxBackends);
	outbox_stream_cursors_init((OutboxStreamCursors *) ((char *) shared + shared->stream_cursors),
							   for_streams, shared->tranche);
	outbox_claimers_init((OutboxClaimers *) ((char *) shared + shared->claimers),
						 budget);
	outbox_lane_memory_init((OutboxLaneMemory *) ((char *) shared + shared->lanes),
							budget - for_streams, shared->tranche);
}

static const OutboxShmemLayout layout = {shared_size, init_shared};

static void
end_xact(OutboxXactEnd end)
{
	outbox_stream_cursor_xact_end(end == OUTBOX_XACT_COMMITTED);
	outbox_lane_xact_end(end);
	outbox_table_xact_end();
	outbox_wake_xact_end();
}

static void
at_xact_event(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			end_xact(OUTBOX_XACT_COMMITTED);
			break;
		case XACT_EVENT_ABORT:
			end_xact(OUTBOX_XACT_ABORTED);
			break;
		case XACT_EVENT_PREPARE:
			end_xact(OUTBOX_XACT_PREPARED);
			break;
		default:
			break;
	}
}

static void
at_subxact_event(SubXactEvent event, SubTransactionId id,
				 SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB)
		outbox_lane_subxact_abort();
}

void
_PG_init(void)
{
	if (IsBinaryUpgrade)
		return;
	outbox_guc_define();
	outbox_shmem_init(&layout, process_shared_preload_libraries_in_progress);
	if (process_shared_preload_libraries_in_progress)
		outbox_launcher_register();
	outbox_catalog_init();
	outbox_table_init();
	outbox_archive_init();
	outbox_policy_init();
	outbox_handler_init();
	outbox_router_init();
	RegisterXactCallback(at_xact_event, NULL);
	RegisterSubXactCallback(at_subxact_event, NULL);
}
