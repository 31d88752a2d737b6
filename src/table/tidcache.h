/*
 * hint.h
 *	  Where this backend has last seen the messages that it claimed.
 */
#ifndef OUTBOX_HINT_H
#define OUTBOX_HINT_H

#include "table/table.h"

extern void outbox_hint_remember(Oid relid, int64 id, ItemPointer tid);
extern BlockNumber outbox_hint_end(OutboxTable *queue);
extern bool outbox_hint_fetch(OutboxTable *queue, BlockNumber end, int64 id,
							  TupleTableSlot *slot);

#endif							/* OUTBOX_HINT_H */
