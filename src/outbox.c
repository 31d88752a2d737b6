/*
 * outbox.c
 *	  The library: what happens when it is loaded, and at the end of each
 *	  transaction.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"

#include "util/guc.h"
#include "queue/handler.h"
#include "queue/history.h"
#include "shmem/lane.h"
#include "shmem/lane_xact.h"
#include "queue/policy.h"
#include "shmem/shmem.h"
#include "table/table.h"
#include "shmem/wake.h"
#include "worker/worker.h"

PG_MODULE_MAGIC;

void		_PG_init(void);

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
	if (process_shared_preload_libraries_in_progress)
	{
		outbox_shmem_preload();
		outbox_launcher_register();
	}
	outbox_catalog_init();
	outbox_table_init();
	outbox_history_init();
	outbox_policy_init();
	outbox_handler_init();
	RegisterXactCallback(at_xact_event, NULL);
	RegisterSubXactCallback(at_subxact_event, NULL);
}
