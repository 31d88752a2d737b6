/*
 * blocker.h
 *	  Which lanes of a live table wait for the end of which transactions.
 */
#ifndef OUTBOX_BLOCKER_H
#define OUTBOX_BLOCKER_H

#include "postgres.h"

#include "access/transam.h"

#include "shmem/agenda.h"

extern void outbox_agenda_block(OutboxAgenda *agenda, int lane,
								FullTransactionId xid, bool silent);
extern bool outbox_agenda_next_silent(const OutboxAgenda *agenda, int *next,
									  FullTransactionId *xid);
extern int	outbox_agenda_next_blocked(const OutboxAgenda *agenda,
									   FullTransactionId xid, int *cell);
extern void outbox_agenda_unblock(OutboxAgenda *agenda, FullTransactionId xid);
extern void outbox_agenda_unblock_all(OutboxAgenda *agenda);

#endif							/* OUTBOX_BLOCKER_H */
