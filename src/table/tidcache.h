/*
 * tidcache.h
 *	  Where this backend has last seen the messages that it claimed.
 */
#ifndef OUTBOX_TIDCACHE_H
#define OUTBOX_TIDCACHE_H

#include "table/table.h"

extern void outbox_tid_remember(Oid relid, int64 id, ItemPointer tid,
								int64 first_at);
extern bool outbox_tid_was_first(Oid relid, int64 id, int64 seq);
extern BlockNumber outbox_tid_end(OutboxTable *queue);
extern bool outbox_tid_fetch(OutboxTable *queue, BlockNumber end, int64 id,
							 TupleTableSlot *slot);

#endif							/* OUTBOX_TIDCACHE_H */
