/*
 * requeue.h
 *	  Bringing dead messages back.
 */
#ifndef OUTBOX_REQUEUE_H
#define OUTBOX_REQUEUE_H

#include "postgres.h"

#include "table/catalog.h"

extern int	outbox_requeue(const OutboxStore *store, const int64 *ids, int nids);

#endif							/* OUTBOX_REQUEUE_H */
