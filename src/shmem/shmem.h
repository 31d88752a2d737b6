/*
 * shmem.h
 *	  The one block of shared memory, and how a backend reaches it.
 */
#ifndef OUTBOX_SHMEM_H
#define OUTBOX_SHMEM_H

#include "postgres.h"

#include "shmem/lane_directory.h"
#include "shmem/posts.h"
#include "shmem/wake.h"

/* The block.  Each part is initialised, locked and used by its own file. */
typedef struct OutboxShared
{
	int			tranche;
	OutboxWakeState wake;
	OutboxWorkersState workers;
	OutboxLaneDirectory lanes;	/* last: it goes on behind the struct */
} OutboxShared;

/* How large the block is, and how its parts are initialised. */
typedef struct OutboxShmemLayout
{
	Size		(*size) (int nlanes);
	void		(*init) (OutboxShared *shared, int nlanes);
} OutboxShmemLayout;

extern void outbox_shmem_init(const OutboxShmemLayout *block_layout,
							  bool preload);
extern OutboxShared *outbox_shmem(void);
extern bool outbox_preloaded(void);

#endif							/* OUTBOX_SHMEM_H */
