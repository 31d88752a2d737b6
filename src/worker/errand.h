/*
 * errand.h
 *	  Running a statement in another database.
 */
#ifndef OUTBOX_ERRAND_H
#define OUTBOX_ERRAND_H

#include "postgres.h"

extern void outbox_errand_run(const char *database, Oid roleid,
							  const char *statement);
extern PGDLLEXPORT void outbox_errand_main(Datum arg);

#endif							/* OUTBOX_ERRAND_H */
