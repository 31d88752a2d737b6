/*
 * epoch.h
 *	  Whether shared memory can be trusted; shared by all versions of the
 *	  library.
 */
#ifndef OUTBOX_EPOCH_H
#define OUTBOX_EPOCH_H

#include "postgres.h"

extern void outbox_epoch_request(void);
extern void outbox_epoch_startup(void);
extern bool outbox_epoch_attach(uint64 library);
extern uint64 outbox_epoch(Oid relid);
extern void outbox_epoch_raise(Oid relid);
extern void outbox_epoch_be_stranger(void);
extern bool outbox_epoch_strangers(void);

#endif							/* OUTBOX_EPOCH_H */
