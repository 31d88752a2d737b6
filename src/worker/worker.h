/*
 * worker.h
 *	  A background worker: serves one database.
 */
#ifndef OUTBOX_WORKER_H
#define OUTBOX_WORKER_H

#include "postgres.h"

/* What the launcher tells a worker, in bgw_extra. */
typedef struct OutboxWorkerOrder
{
	Oid			dbid;
	Oid			roleid;			/* invalid: what the extension does by itself */
} OutboxWorkerOrder;

extern PGDLLEXPORT void outbox_worker_main(Datum arg);

#endif							/* OUTBOX_WORKER_H */
