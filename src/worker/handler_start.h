/*
 * handler_start.h
 *	  Running handlers without a launcher.
 */
#ifndef OUTBOX_HANDLER_START_H
#define OUTBOX_HANDLER_START_H

#include "postgres.h"

extern int64 outbox_handlers_start(void);
extern PGDLLEXPORT void outbox_handlers_main(Datum arg);

#endif							/* OUTBOX_HANDLER_START_H */
