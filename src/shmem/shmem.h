/*
 * shmem.h
 *	  The one block of shared memory, and how a backend reaches it.
 */
#ifndef OUTBOX_SHMEM_H
#define OUTBOX_SHMEM_H

#include "postgres.h"

#include "shmem/claimers.h"
#include "shmem/counters.h"
#include "shmem/directory.h"
#include "shmem/posts.h"
#include "shmem/sleepers.h"
#include "shmem/stream_cursor.h"
#include "shmem/troubles.h"

/*
 * The block.  Each part is initialised, locked and used by its own file.
 * Parts whose size depends on settings follow the struct.
 */
typedef struct OutboxShared
{
	int			tranche;
	OutboxWorkersState workers;
	OutboxTroubles troubles;
	OutboxDirectory directory;
	Size		sleepers;		/* offsets from here */
	Size		stream_cursors;
	Size		claimers;
	Size		counters;
	Size		lanes;
} OutboxShared;

/* What the size of the block depends on. */
typedef struct OutboxShmemSizes
{
	Size		lanes;			/* memory for lanes, in bytes */
	int			topics;			/* that are counted */
} OutboxShmemSizes;

/* How large the block is, and how its parts are initialised. */
typedef struct OutboxShmemLayout
{
	Size		(*size) (const OutboxShmemSizes *sizes);
	void		(*init) (OutboxShared *shared, const OutboxShmemSizes *sizes);
} OutboxShmemLayout;

extern void outbox_shmem_init(const OutboxShmemLayout *block_layout,
							  bool preload);
extern OutboxShared *outbox_shmem(void);
extern OutboxSleeper *outbox_shmem_sleepers(void);
extern OutboxClaimers *outbox_shmem_claimers(void);
extern OutboxStreamCursors *outbox_shmem_stream_cursors(void);
extern OutboxCounterMemory *outbox_shmem_counters(void);
extern bool outbox_preloaded(void);

#endif							/* OUTBOX_SHMEM_H */
