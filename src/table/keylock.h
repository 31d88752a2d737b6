/*
 * turn.h
 *	  Taking turns at something named by a hash.
 */
#ifndef OUTBOX_TURN_H
#define OUTBOX_TURN_H

#include "postgres.h"

extern void outbox_turn_take(Oid relid, uint32 hash);
extern void outbox_turn_release(Oid relid, uint32 hash);
extern void outbox_turn_wait(TransactionId xid);
extern bool outbox_turn_is_over(TransactionId xid);

#endif							/* OUTBOX_TURN_H */
