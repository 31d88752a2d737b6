/*
 * shmem.c
 *	  The one block of shared memory, and how a backend reaches it.
 *
 * With shared_preload_libraries the block is part of the server's main shared
 * memory.  Without, the first backend that needs it creates it as a dynamic
 * segment, pinned for the life of the server; its handle is in a few bytes of
 * main shared memory, for which the server has some slack (PostgreSQL 17 has a
 * registry for this).
 *
 * The block is a cache of what the tables say.  If it is not available, the
 * extension works without it: outbox_shmem() returns NULL, every scan starts
 * at the beginning, and sessions that use the block are kept from trusting it
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

#include "outbox.h"
#include "shmem/claimers.h"
#include "shmem/counters.h"
#include "shmem/counters_file.h"
#include "shmem/epoch.h"
#include "shmem/shmem.h"
#include "shmem/sleepers.h"
#include "shmem/stream_cursor.h"
#include "util/guc.h"

/* Number of the layout, for changes that do not change its size. */
#define LAYOUT 4

/* Without preloading, the block is smaller, and not configurable. */
static const OutboxShmemSizes unloaded_sizes = {
	.lanes = (Size) 4 * 1024 * 1024,.topics = 500
};

static const OutboxShmemLayout *layout = NULL;
static OutboxShared *shared_block = NULL;
static bool shared_ready = false;	/* attached, or known to be unavailable */
static bool preloaded = false;
static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

/*
 * The name of the block.  The library can be replaced while the server runs,
 * and a new version must not read the block of an old one: the name changes
 * with the layout.
 */
static const char *
block_name(void)
{
	static char name[SHMEM_INDEX_KEYSIZE];

	snprintf(name, sizeof(name), "outbox %s %d %zu", outbox_version, LAYOUT,
			 layout->size(&unloaded_sizes));
	return name;
}

/* A number that identifies this version of the library. */
static uint64
library_id(void)
{
	const char *name = block_name();

	return hash_bytes_extended((const unsigned char *) name, strlen(name), 0) | 1;
}

static const OutboxShmemSizes *
configured_sizes(void)
{
	static OutboxShmemSizes sizes;

	sizes.lanes = (Size) outbox_lane_memory_mb * 1024 * 1024;
	sizes.topics = outbox_topic_counters_max;
	return &sizes;
}

static void
request_shmem(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	outbox_epoch_request();
	RequestAddinShmemSpace(layout->size(configured_sizes()));
}

/* Make the block, when the server starts or has recovered from a crash. */
static void
start_shmem(void)
{
	bool		found;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	outbox_epoch_startup();
	shared_block = ShmemInitStruct(block_name(),
								   layout->size(configured_sizes()),
								   &found);
	if (!found)
		layout->init(shared_block, configured_sizes());
	LWLockRelease(AddinShmemInitLock);
	/* do it now: the first use can be at the end of a transaction */
	LWLockRegisterTranche(shared_block->tranche, "outbox");
	if (!found)
		outbox_counters_file_startup((OutboxCounterMemory *) ((char *) shared_block + shared_block->counters));
}

/* Called by _PG_init; preload: the library is being preloaded. */
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
	layout->init(ptr, &unloaded_sizes);
}

/* Find or create the dynamic segment, and map it. */
static OutboxShared *
attach_segment(void)
{
	bool		found;

	return GetNamedDSMSegment(block_name(),
							  layout->size(&unloaded_sizes),
							  init_segment, &found);
}

#else

/* Find or create the dynamic segment, and map it. */
static OutboxShared *
attach_segment(void)
{
	Size		size = layout->size(&unloaded_sizes);
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
			layout->init(dsm_segment_address(segment), &unloaded_sizes);
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
 * Attach the segment.  Creating it fails if, for example, /dev/shm is full.
 * That must not cause errors: it is logged, and this session works without
 * shared memory until it ends.
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
				 errmsg("outbox continues without its shared memory: %s",
						edata->message)));
		FreeErrorData(edata);
		shared_block = NULL;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
}

/* The block, or NULL if there is none. */
OutboxShared *
outbox_shmem(void)
{
	if (likely(shared_ready))
		return shared_block;

	/*
	 * On a standby, changes that come from the primary are not reported, so
	 * shared memory must not be used before a promotion.
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

/* Was the library loaded by shared_preload_libraries? */
bool
outbox_preloaded(void)
{
	return preloaded;
}

/*
 * The array of sleepers, one for each process; NULL if there is no shared
 * memory.
 */
OutboxSleeper *
outbox_shmem_sleepers(void)
{
	OutboxShared *shared = outbox_shmem();

	Assert(shared != NULL);
	return (OutboxSleeper *) ((char *) shared + shared->sleepers);
}

/* The cache of stream cursors; NULL if there is no shared memory. */
OutboxStreamCursors *
outbox_shmem_stream_cursors(void)
{
	OutboxShared *shared = outbox_shmem();

	return shared == NULL ? NULL :
		(OutboxStreamCursors *) ((char *) shared + shared->stream_cursors);
}

/* The table of claimers; NULL if there is no shared memory. */
OutboxClaimers *
outbox_shmem_claimers(void)
{
	OutboxShared *shared = outbox_shmem();

	return shared == NULL ? NULL :
		(OutboxClaimers *) ((char *) shared + shared->claimers);
}

/* The counters; NULL if there is no shared memory. */
OutboxCounterMemory *
outbox_shmem_counters(void)
{
	OutboxShared *shared = outbox_shmem();

	return shared == NULL ? NULL :
		(OutboxCounterMemory *) ((char *) shared + shared->counters);
}
