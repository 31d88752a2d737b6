/*
 * cancel.h
 *	  Taking back what has not been handed out yet.
 */
#ifndef OUTBOX_CANCEL_H
#define OUTBOX_CANCEL_H

#include "postgres.h"

#include "table/catalog.h"
#include "utils/uuid.h"

extern bool outbox_cancel(const OutboxStore *store,
						  const pg_uuid_t *message_id);

#endif							/* OUTBOX_CANCEL_H */
