/*
 * troubles.h
 *	  Parts of the workers' rounds that fail, and when they are tried again.
 */
#ifndef OUTBOX_TROUBLES_H
#define OUTBOX_TROUBLES_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "storage/lwlock.h"

#define OUTBOX_MAX_TROUBLES 512

/* The parts of a round. */
typedef enum OutboxPart
{
	OUTBOX_PART_WAITS,
	OUTBOX_PART_TIMERS,
	OUTBOX_PART_DELIVERIES,
	OUTBOX_PART_SUBSCRIPTIONS,
	OUTBOX_PART_REAP,
	OUTBOX_PART_HANDLERS,		/* finding the roles that have handlers */
	OUTBOX_PART_RETENTION,
	OUTBOX_PART_JOINS,
	OUTBOX_PART_DEPTH,			/* taking a sample */
	OUTBOX_PART_SCHEDULE,		/* determining when to run next */
	OUTBOX_PART_BINDING,		/* a handler that cannot be called, identified
								 * by its lane */
	OUTBOX_PART_HANDLER			/* running one handler, identified by its lane */
} OutboxPart;

/* A part that has failed, and has not succeeded since. */
typedef struct OutboxTrouble
{
	Oid			dbid;			/* invalid: a free entry */
	OutboxPart	part;
	int64		lane;			/* of a handler, else 0 */
	int			failures;		/* in a row */
	int			sqlerrcode;		/* of the last failure */
	TimestampTz since;
	TimestampTz next_try;
} OutboxTrouble;

/* The list of entries; protected by the lock. */
typedef struct OutboxTroubles
{
	LWLock		lock;
	int			n;				/* those beyond were never used */
	OutboxTrouble list[OUTBOX_MAX_TROUBLES];
} OutboxTroubles;

extern void outbox_troubles_init(OutboxTroubles *troubles, int tranche);
extern const char *outbox_part_name(OutboxPart part);

extern TimestampTz outbox_trouble_next_try(OutboxPart part, int64 lane);
extern bool outbox_trouble_note(OutboxPart part, int64 lane, int sqlerrcode);
extern bool outbox_trouble_over(OutboxPart part, int64 lane);
extern void outbox_troubles_forget(Oid dbid);
extern void outbox_troubles_forget_databases(bool (*exists) (Oid dbid, void *arg),
											 void *arg);
extern int	outbox_troubles_list(OutboxTrouble *list, int max);

#endif							/* OUTBOX_TROUBLES_H */
