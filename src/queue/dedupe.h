/*
 * dedupe.h
 *	  At most one message per dedupe key.
 */
#ifndef OUTBOX_DEDUPE_H
#define OUTBOX_DEDUPE_H

#include "utils/timestamp.h"
#include "utils/uuid.h"

/* A key to take, and the result. */
typedef struct OutboxKeyTake
{
	const pg_uuid_t *key;
	const pg_uuid_t *message_id;	/* the message to take it for */
	const Interval *taken_for;	/* NULL: as long as it is kept */
	bool		(*is_kept) (const pg_uuid_t *message_id);
	pg_uuid_t	holder;			/* result: the message that has it, if it is
								 * taken */
} OutboxKeyTake;

extern bool outbox_dedupe_take(OutboxKeyTake *take);
extern bool outbox_dedupe_is_anothers(const pg_uuid_t *key,
									  const pg_uuid_t *message_id);
extern bool outbox_dedupe_receive(const pg_uuid_t *message_id);
extern bool outbox_dedupe_forget(const pg_uuid_t *key,
								 const pg_uuid_t *message_id, bool at_once);

#endif							/* OUTBOX_DEDUPE_H */
