/*
 * shmem.h
 *	  The one block of shared memory, and how a backend reaches it.
 */
#ifndef OUTBOX_SHMEM_H
#define OUTBOX_SHMEM_H

#include "postgres.h"

#include "shmem/claimers.h"
#include "shmem/directory.h"
#include "shmem/posts.h"
#include "shmem/stream_cursor.h"
#include "shmem/troubles.h"
#include "shmem/waiters.h"

/*
 * The block.  Each part is initialised, locked and used by its own file.  Those
 * whose size depends on settings lie behind the struct.
 */
typedef struct OutboxShared
{
	int			tranche;
	OutboxWorkersState workers;
	OutboxTroubles troubles;
	OutboxDirectory directory;
	Size		waiters;		/* offsets from here */
	Size		stream_cursors;
	Size		claimers;
	Size		lanes;
} OutboxShared;

/* How large the block is, and how its parts are initialised. */
typedef struct OutboxShmemLayout
{
	Size		(*size) (Size budget);
	void		(*init) (OutboxShared *shared, Size budget);
} OutboxShmemLayout;

extern void outbox_shmem_init(const OutboxShmemLayout *block_layout,
							  bool preload);
extern OutboxShared *outbox_shmem(void);
extern OutboxWaiter *outbox_shmem_waiters(void);
extern OutboxClaimers *outbox_shmem_claimers(void);
extern OutboxStreamCursors *outbox_shmem_stream_cursors(void);
extern bool outbox_preloaded(void);

#endif							/* OUTBOX_SHMEM_H */
