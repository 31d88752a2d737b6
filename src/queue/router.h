/*
 * router.h
 *	  Which of several databases is responsible for a key.
 */
#ifndef OUTBOX_ROUTER_H
#define OUTBOX_ROUTER_H

#include "postgres.h"

#include "utils/relcache.h"

extern void outbox_router_init(void);
extern const text *outbox_router_find(const text *key);
extern bool outbox_router_uses(const text *store);
extern void outbox_router_note_change(Relation rel);

#endif							/* OUTBOX_ROUTER_H */
