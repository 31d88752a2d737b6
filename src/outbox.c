/*
 * outbox.c
 *	  Initialization of the library, and its transaction callbacks.
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
#include "queue/subscriber.h"
#include "shmem/claimers.h"
#include "shmem/counters.h"
#include "shmem/directory.h"
#include "shmem/lane_memory.h"
#include "shmem/lane_publish.h"
#include "shmem/lane_xact.h"
#include "shmem/posts.h"
#include "shmem/shmem.h"
#include "shmem/sleepers.h"
#include "shmem/stream_cursor.h"
#include "shmem/tally.h"
#include "shmem/troubles.h"
#include "shmem/wake.h"
#include "table/catalog.h"
#include "table/table.h"
#include "trace.h"
#include "util/guc.h"
#include "worker/launcher.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

const char	outbox_version[] = OUTBOX_VERSION;

/* Streams get this fraction of the memory for lanes. */
#define STREAMS_PART 32

/* Lay out the parts of variable size in the block; returns its total size. */
static Size
lay_out(OutboxShared *shared, const OutboxShmemSizes *sizes)
{
	Size		for_streams = sizes->lanes / STREAMS_PART;

	shared->sleepers = MAXALIGN(sizeof(OutboxShared));
	shared->stream_cursors = shared->sleepers +
		MAXALIGN(MaxBackends * sizeof(OutboxSleeper));
	shared->claimers = shared->stream_cursors +
		MAXALIGN(outbox_stream_cursors_size(for_streams));
	shared->counters = shared->claimers + MAXALIGN(outbox_claimers_size(sizes->lanes));
	shared->lanes = shared->counters + MAXALIGN(outbox_counters_size(sizes->topics));
	return shared->lanes + outbox_lane_memory_size(sizes->lanes - for_streams);
}

static Size
shared_size(const OutboxShmemSizes *sizes)
{
	OutboxShared unmade;

	return lay_out(&unmade, sizes);
}

/* Initialize all parts of the block. */
static void
init_shared(OutboxShared *shared, const OutboxShmemSizes *sizes)
{
	Size		for_streams = sizes->lanes / STREAMS_PART;

	(void) lay_out(shared, sizes);
	shared->tranche = LWLockNewTrancheId();
	outbox_workers_init(&shared->workers, shared->tranche);
	outbox_troubles_init(&shared->troubles, shared->tranche);
	outbox_directory_init(&shared->directory, shared->tranche);
	outbox_sleepers_init((OutboxSleeper *) ((char *) shared + shared->sleepers),
						 MaxBackends);
	outbox_stream_cursors_init((OutboxStreamCursors *) ((char *) shared + shared->stream_cursors),
							   for_streams, shared->tranche);
	outbox_claimers_init((OutboxClaimers *) ((char *) shared + shared->claimers),
						 sizes->lanes);
	outbox_counters_init((OutboxCounterMemory *) ((char *) shared + shared->counters),
						 sizes->topics, shared->tranche);
	outbox_lane_memory_init((OutboxLaneMemory *) ((char *) shared + shared->lanes),
							sizes->lanes - for_streams, shared->tranche);
}

static const OutboxShmemLayout layout = {shared_size, init_shared};

static void
end_xact(OutboxXactEnd end)
{
	OUTBOX_TRACE_XACT("xact.end", end == OUTBOX_XACT_COMMITTED);
	outbox_stream_cursor_xact_end(end == OUTBOX_XACT_COMMITTED);
	outbox_lane_xact_end(end);
	outbox_tally_xact_end(end != OUTBOX_XACT_ABORTED);
	outbox_table_xact_end();
	outbox_wake_xact_end();
}

/* Transaction callback. */
static void
at_xact_event(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			OUTBOX_TRACE_XACT("xact.commits", true);
			break;
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
	if (event == SUBXACT_EVENT_ABORT_SUB || event == SUBXACT_EVENT_COMMIT_SUB)
		outbox_tally_subxact_end(event == SUBXACT_EVENT_COMMIT_SUB);
}

/* Initialize the library, when it is loaded. */
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
	outbox_subscriber_init();
	outbox_handler_init();
	outbox_router_init();
	RegisterXactCallback(at_xact_event, NULL);
	RegisterSubXactCallback(at_subxact_event, NULL);
	OUTBOX_TRACE_SQL();
}
