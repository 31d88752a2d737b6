/*
 * reap.h
 *	  Leases that have ended, and messages that have expired.
 */
#ifndef OUTBOX_REAP_H
#define OUTBOX_REAP_H

#include "table/catalog.h"

extern int	outbox_reap(const OutboxStore *store, int limit);

#endif							/* OUTBOX_REAP_H */
