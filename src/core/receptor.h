/*
 * receptor.h
 *	  The progress of receptors and perspectives, as instances report it.
 */
#ifndef OUTBOX_RECEPTOR_H
#define OUTBOX_RECEPTOR_H

#include "postgres.h"

#include "utils/uuid.h"

/* An entry on what an instance has derived from a message. */
typedef struct OutboxDerived
{
	const pg_uuid_t *id;		/* the message, or the stream */
	const text *name;			/* the receptor, or the perspective */
	const pg_uuid_t *last_message_id;
	const int32 *status;
	const text *error;
} OutboxDerived;

typedef struct OutboxDerivedList
{
	int			n;
	OutboxDerived *entries;
} OutboxDerivedList;

/*
 * The sections; each has two lists, for what is completed and what has failed.
 */
typedef struct OutboxDerivedSections
{
	OutboxDerivedList receptors[2];
	OutboxDerivedList perspectives[2];
} OutboxDerivedSections;

extern void outbox_receptors_write(const OutboxDerivedSections *sections);

#endif							/* OUTBOX_RECEPTOR_H */
