/*
 * launcher.h
 *	  The background process that starts workers.
 */
#ifndef OUTBOX_LAUNCHER_H
#define OUTBOX_LAUNCHER_H

#include "postgres.h"

extern void outbox_launcher_register(void);
extern PGDLLEXPORT void outbox_launcher_main(Datum arg);

#endif							/* OUTBOX_LAUNCHER_H */
