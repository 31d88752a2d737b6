/*
 * instance.h
 *	  Instances: which ones are alive, and which of them takes which streams.
 */
#ifndef OUTBOX_INSTANCE_H
#define OUTBOX_INSTANCE_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "utils/jsonb.h"
#include "utils/uuid.h"

/* What an instance reports of itself. */
typedef struct OutboxInstance
{
	pg_uuid_t	id;
	const text *service_name;
	const text *host_name;
	int			process_id;
	const Jsonb *metadata;		/* NULL: as before */
} OutboxInstance;

/* The instances that are alive, ourselves among them. */
typedef struct OutboxInstances
{
	int			n;
	int			max;
	pg_uuid_t  *ids;
} OutboxInstances;

extern void outbox_instance_heartbeat(const OutboxInstance *instance,
									  TimestampTz now);
extern void outbox_instance_remove_stale(const pg_uuid_t *self,
										 TimestampTz now, int threshold_seconds,
										 OutboxInstances *alive);
extern int	outbox_instance_remove(const pg_uuid_t *id);
extern const pg_uuid_t *outbox_instance_owner(const OutboxInstances *alive,
											  int partition);

#endif							/* OUTBOX_INSTANCE_H */
