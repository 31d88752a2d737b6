/*
 * background.h
 *	  What background processes have in common.
 */
#ifndef OUTBOX_BACKGROUND_H
#define OUTBOX_BACKGROUND_H

#include "postgres.h"

#include "postmaster/bgworker.h"

extern void outbox_background_describe(BackgroundWorker *worker,
									   const char *type, const char *function);
extern void outbox_background_begin(void);
extern void outbox_background_commit(void);

#endif							/* OUTBOX_BACKGROUND_H */
