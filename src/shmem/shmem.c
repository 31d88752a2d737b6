/*
 * shmem.c
 *	  The one block of shared memory, and how a backend reaches it.
 *
 * With shared_preload_libraries the block is part of the server's main shared
 * memory.  Without, the first backend that needs it creates it as a dynamic
 * segment, pinned for the life of the server; the way to it is a handle in a
 * few bytes of main shared memory, which the server keeps some slack for
 * (PostgreSQL 17 has a registry for this).
 *
 * The block is a cache of what the tables say.  Where it cannot be had, the
 * extension works without it: outbox_shmem() returns NULL, every scan starts at
 * the beginning, and those who have the block are kept from trusting it
 * (epoch.c).
 */
#include "postgres.h"

#include "access/parallel.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/memutils.h"
#include "utils/resowner.h"

#if PG_VERSION_NUM >= 170000
#include "storage/dsm_registry.h"
#endif

#include "shmem/claimers.h"
#include "shmem/epoch.h"
#include "shmem/shmem.h"
#include "shmem/stream_cursor.h"
#include "shmem/waiters.h"
#include "util/guc.h"

/* Counts changes of the layout that do not change its size. */
#define LAYOUT 3

/* Without preloading the memory for lanes is smaller, and no setting. */
#define UNLOADED_BUDGET ((Size) 4 * 1024 * 1024)

static const OutboxShmemLayout *layout = NULL;
static OutboxShared *shared_block = NULL;
static bool shared_ready = false;	/* it is there, or known not to be */
static bool preloaded = false;
static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

/*
 * The name of the block.  A server can run on while its library is replaced,
 * and a new library must not read an old one's block: the name changes with
 * the layout.
 */
static const char *
block_name(void)
{
	static char name[SHMEM_INDEX_KEYSIZE];

	snprintf(name, sizeof(name), "outbox %s %d %zu", OUTBOX_VERSION, LAYOUT,
			 layout->size(UNLOADED_BUDGET));
	return name;
}

/* What tells this library from others. */
static uint64
library_id(void)
{
	const char *name = block_name();

	return hash_bytes_extended((const unsigned char *) name, strlen(name), 0) | 1;
}

static Size
configured_budget(void)
{
	return (Size) outbox_lane_memory_mb * 1024 * 1024;
}

static void
request_shmem(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	outbox_epoch_request();
	RequestAddinShmemSpace(layout->size(configured_budget()));
}

static void
start_shmem(void)
{
	bool		found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	outbox_epoch_startup();
	shared_block = ShmemInitStruct(block_name(),
								   layout->size(configured_budget()),
								   &found);
	if (!found)
		layout->init(shared_block, configured_budget());
	LWLockRelease(AddinShmemInitLock);
	/* not later: the first use can be at the end of a transaction */
	LWLockRegisterTranche(shared_block->tranche, "outbox");
}

/* From _PG_init; preload: the library is being preloaded. */
void
outbox_shmem_init(const OutboxShmemLayout *block_layout, bool preload)
{
	layout = block_layout;
	if (!preload)
		return;
	preloaded = true;
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = request_shmem;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = start_shmem;
}

#if PG_VERSION_NUM >= 170000

static void
init_segment(void *ptr)
{
	layout->init(ptr, UNLOADED_BUDGET);
}

static OutboxShared *
attach_segment(void)
{
	bool		found;

	return GetNamedDSMSegment(block_name(),
							  layout->size(UNLOADED_BUDGET),
							  init_segment, &found);
}

#else

static OutboxShared *
attach_segment(void)
{
	Size		size = layout->size(UNLOADED_BUDGET);
	dsm_handle *handle;
	dsm_segment *segment;
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	handle = ShmemInitStruct(block_name(), sizeof(dsm_handle), &found);
	if (!found)
		*handle = DSM_HANDLE_INVALID;
	if (*handle == DSM_HANDLE_INVALID)
	{
		segment = dsm_create(size, DSM_CREATE_NULL_IF_MAXSEGMENTS);
		if (segment != NULL)
		{
			layout->init(dsm_segment_address(segment), UNLOADED_BUDGET);
			dsm_pin_segment(segment);
			*handle = dsm_segment_handle(segment);
		}
	}
	else
		segment = dsm_attach(*handle);
	if (segment != NULL)
		dsm_pin_mapping(segment);
	LWLockRelease(AddinShmemInitLock);
	return segment == NULL ? NULL : dsm_segment_address(segment);
}

#endif

/* May this session use the memory of its library? */
static bool
may_attach(void)
{
	bool		result;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	outbox_epoch_startup();
	result = outbox_epoch_attach(library_id());
	LWLockRelease(AddinShmemInitLock);
	return result;
}

/*
 * Creating the segment fails when, say, /dev/shm is full.  That must not stop
 * any work: the error becomes a log line, and this session does without until
 * it ends.
 */
static void
attach_or_go_without(void)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(TopMemoryContext);
	PG_TRY();
	{
		shared_block = may_attach() ? attach_segment() : NULL;
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		ereport(LOG,
				(errcode(edata->sqlerrcode),
				 errmsg("outbox works without its shared memory: %s",
						edata->message)));
		FreeErrorData(edata);
		shared_block = NULL;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
}

/* The block, or NULL when there is none. */
OutboxShared *
outbox_shmem(void)
{
	if (likely(shared_ready))
		return shared_block;

	/*
	 * On a standby nobody reports what comes from the primary, and after a
	 * promotion the memory must not know more than that: so nothing is
	 * remembered before.
	 */
	if (!IsUnderPostmaster || RecoveryInProgress())
		return NULL;
	if (shared_block == NULL)
	{
		if (IsInParallelMode() || !IsTransactionState())
			return NULL;
		attach_or_go_without();
		if (shared_block != NULL)
			LWLockRegisterTranche(shared_block->tranche, "outbox");
	}
	shared_ready = true;
	return shared_block;
}

bool
outbox_preloaded(void)
{
	return preloaded;
}

/* Places for claims that wait, one for each process. */
OutboxWaiter *
outbox_shmem_waiters(void)
{
	OutboxShared *shared = outbox_shmem();

	Assert(shared != NULL);
	return (OutboxWaiter *) ((char *) shared + shared->waiters);
}

/* NULL if there is no shared memory. */
OutboxStreamCursors *
outbox_shmem_stream_cursors(void)
{
	OutboxShared *shared = outbox_shmem();

	return shared == NULL ? NULL :
		(OutboxStreamCursors *) ((char *) shared + shared->stream_cursors);
}

/* The same. */
OutboxClaimers *
outbox_shmem_claimers(void)
{
	OutboxShared *shared = outbox_shmem();

	return shared == NULL ? NULL :
		(OutboxClaimers *) ((char *) shared + shared->claimers);
}
