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
#include "shmem/lane_directory.h"
#include "shmem/lane_xact.h"
#include "shmem/posts.h"
#include "shmem/shmem.h"
#include "shmem/wake.h"
#include "table/catalog.h"
#include "table/table.h"
#include "util/guc.h"
#include "worker/launcher.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

static Size
shared_size(int nlanes)
{
	return offsetof(OutboxShared, lanes) + outbox_directory_size(nlanes);
}

static void
init_shared(OutboxShared *shared, int nlanes)
{
	shared->tranche = LWLockNewTrancheId();
	outbox_wake_init(&shared->wake, shared->tranche);
	outbox_workers_init(&shared->workers, shared->tranche);
	outbox_directory_init(&shared->lanes, nlanes, shared->tranche);
}

static const OutboxShmemLayout layout = {shared_size, init_shared};

static void
at_xact_event(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			outbox_lane_xact_end(event == XACT_EVENT_COMMIT);
			outbox_table_xact_end();
			outbox_wake_xact_end(event == XACT_EVENT_PREPARE);
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
	RegisterXactCallback(at_xact_event, NULL);
	RegisterSubXactCallback(at_subxact_event, NULL);
}
