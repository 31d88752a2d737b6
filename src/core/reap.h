/*
 * reap.h
 *	  Reaping leases that have ended and messages that have expired.
 */
#ifndef OUTBOX_REAP_H
#define OUTBOX_REAP_H

#include "datatype/timestamp.h"

#include "table/catalog.h"

extern int	outbox_reap(const OutboxStore *store, int limit);
extern TimestampTz outbox_reap_next_expiry(const OutboxStore *store);

#endif							/* OUTBOX_REAP_H */
