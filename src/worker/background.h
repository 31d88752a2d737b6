/*
 * background.h
 *	  The common part of background processes.
 */
#ifndef OUTBOX_BACKGROUND_H
#define OUTBOX_BACKGROUND_H

#include "postgres.h"

#include "postmaster/bgworker.h"

extern void outbox_background_describe(BackgroundWorker *worker,
									   const char *type, const char *function);
extern void outbox_background_require_version(void);
extern void outbox_background_accept_signals(void);
extern void outbox_background_check_for_interrupts(void);
extern void outbox_background_begin(void);
extern void outbox_background_commit(void);
extern void outbox_background_abort(void);
extern int64 outbox_background_number(const char *sql);
extern void outbox_background_hold_extension(void);
extern void outbox_background_pin(Oid roleid);
extern const char *outbox_background_database(void);
extern bool outbox_background_extension_is_gone(void);

#endif							/* OUTBOX_BACKGROUND_H */
