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

/* What a round consists of. */
typedef enum OutboxPart
{
	OUTBOX_PART_WAITS,
	OUTBOX_PART_TIMERS,
	OUTBOX_PART_REAP,
	OUTBOX_PART_HANDLERS,		/* looking who has handlers */
	OUTBOX_PART_RETENTION,
	OUTBOX_PART_JOINS,
	OUTBOX_PART_SCHEDULE,		/* finding out when to be back */
	OUTBOX_PART_BINDING,		/* a handler that cannot be called, told by
								 * its lane */
	OUTBOX_PART_HANDLER			/* running one handler, told by its lane */
} OutboxPart;

/* A part that has failed, and has not worked since. */
typedef struct OutboxTrouble
{
	Oid			dbid;			/* invalid: a free entry */
	OutboxPart	part;
	int64		lane;			/* of a handler, else 0 */
	int			failures;		/* in a row */
	int			sqlerrcode;		/* of the last */
	TimestampTz since;
	TimestampTz next_try;
} OutboxTrouble;

/* Entries are read and written under the lock. */
typedef struct OutboxTroubles
{
	LWLock		lock;
	int			n;				/* none beyond these was ever used */
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
