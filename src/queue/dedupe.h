/*
 * dedupe.h
 *	  At most one message per dedupe key.
 */
#ifndef OUTBOX_DEDUPE_H
#define OUTBOX_DEDUPE_H

#include "utils/uuid.h"

extern bool outbox_dedupe_take(const pg_uuid_t *key,
							   const pg_uuid_t *message_id,
							   pg_uuid_t *holder);
extern bool outbox_dedupe_receive(const pg_uuid_t *message_id);
extern bool outbox_dedupe_forget(const pg_uuid_t *key,
								 const pg_uuid_t *message_id);

#endif							/* OUTBOX_DEDUPE_H */
