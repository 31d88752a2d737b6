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
extern void outbox_background_accept_signals(void);
extern void outbox_background_check_for_interrupts(void);
extern void outbox_background_begin(void);
extern void outbox_background_commit(void);
extern void outbox_background_abort(void);
extern void outbox_background_hold_extension(void);
extern void outbox_background_pin(Oid roleid);
extern const char *outbox_background_database(void);

#endif							/* OUTBOX_BACKGROUND_H */
