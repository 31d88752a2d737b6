/*
 * counters_file.h
 *	  Keeping counters while the server is down.
 */
#ifndef OUTBOX_COUNTERS_FILE_H
#define OUTBOX_COUNTERS_FILE_H

#include "postgres.h"

#include "shmem/counters.h"

extern void outbox_counters_file_startup(OutboxCounterMemory *memory);

#endif							/* OUTBOX_COUNTERS_FILE_H */
