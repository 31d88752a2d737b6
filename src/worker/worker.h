/*
 * worker.h
 *	  A background worker: serves one database.
 */
#ifndef OUTBOX_WORKER_H
#define OUTBOX_WORKER_H

#include "postgres.h"

/* The order of the launcher for a worker, in bgw_extra. */
typedef struct OutboxWorkerOrder
{
	Oid			dbid;
	Oid			roleid;			/* invalid: the extension's own work */
} OutboxWorkerOrder;

extern PGDLLEXPORT void outbox_worker_main(Datum arg);

#endif							/* OUTBOX_WORKER_H */
