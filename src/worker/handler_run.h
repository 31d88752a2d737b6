/*
 * handler_run.h
 *	  Running the functions that handle messages inside the database.
 */
#ifndef OUTBOX_HANDLER_RUN_H
#define OUTBOX_HANDLER_RUN_H

#include "queue/handler.h"

extern int	outbox_handler_run(const OutboxHandler *handler, Oid function);

#endif							/* OUTBOX_HANDLER_RUN_H */
