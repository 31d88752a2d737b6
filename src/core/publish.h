/*
 * publish.h
 *	  Messages for all subscriptions.
 */
#ifndef OUTBOX_PUBLISH_H
#define OUTBOX_PUBLISH_H

#include "postgres.h"

#include "utils/uuid.h"

#include "core/enqueue.h"
#include "queue/publication.h"

extern void outbox_publish(OutboxMessage *messages, int nmessages,
						   int *ndeliveries);
extern TransactionId outbox_publish_writer(const pg_uuid_t *stream,
										   const int32 *subscribers,
										   int nsubscribers);
extern int64 outbox_deliver(OutboxPublication *publications, int npublications,
							const int32 *subscribers, int nsubscribers,
							uint64 nonce);

#endif							/* OUTBOX_PUBLISH_H */
