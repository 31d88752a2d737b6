/*
 * expand.h
 *	  Delivering what was published, in the background.
 */
#ifndef OUTBOX_EXPAND_H
#define OUTBOX_EXPAND_H

#include "postgres.h"

/* Maximum number of publications that one call delivers. */
#define OUTBOX_EXPAND_LIMIT 32

extern bool outbox_expand(int64 *place, int max, const int64 *skipped,
						  int nskipped, int *nexpanded);

#endif							/* OUTBOX_EXPAND_H */
