/*
 * shmem.h
 *	  The one block of shared memory, and how a backend reaches it.
 */
#ifndef OUTBOX_SHMEM_H
#define OUTBOX_SHMEM_H

#include "postgres.h"

struct OutboxShared;

extern void outbox_shmem_preload(void);
extern struct OutboxShared *outbox_shmem(void);
extern bool outbox_preloaded(void);

#endif							/* OUTBOX_SHMEM_H */
