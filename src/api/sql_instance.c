/*
 * sql_instance.c
 *	  SQL functions of instances.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"

#include "api/args.h"
#include "api/sql_instance.h"
#include "core/instance.h"
#include "util/uuid.h"

/*
 * Get the first five arguments of several functions, which describe the
 * instance.
 */
void
outbox_args_instance(FunctionCallInfo fcinfo, OutboxInstance *instance)
{
	instance->id = *outbox_arg_uuid(fcinfo, 0, "instance_id");
	instance->service_name = outbox_arg_name(fcinfo, 1, "service_name");
	instance->host_name = outbox_arg_name(fcinfo, 2, "host_name");
	outbox_require(fcinfo, 3, "process_id");
	instance->process_id = PG_GETARG_INT32(3);
	instance->metadata = PG_ARGISNULL(4) ? NULL : PG_GETARG_JSONB_P(4);
}

/*
 * outbox.heartbeat(instance_id uuid, service_name text, host_name text,
 *					process_id int, metadata jsonb) RETURNS void
 */
PG_FUNCTION_INFO_V1(outbox_heartbeat);
Datum
outbox_heartbeat(PG_FUNCTION_ARGS)
{
	OutboxInstance instance;

	outbox_require_writable("outbox.heartbeat()");
	outbox_args_instance(fcinfo, &instance);
	outbox_instance_heartbeat(&instance, GetCurrentTimestamp());
	PG_RETURN_VOID();
}

/* outbox.deregister_instance(instance_id uuid) RETURNS int */
PG_FUNCTION_INFO_V1(outbox_deregister_instance);
Datum
outbox_deregister_instance(PG_FUNCTION_ARGS)
{
	outbox_require_writable("outbox.deregister_instance()");
	PG_RETURN_INT32(outbox_instance_remove(outbox_arg_uuid(fcinfo, 0,
														   "instance_id")));
}

/* outbox._owns_partition(instance uuid, others uuid[], partition int) */
PG_FUNCTION_INFO_V1(outbox_owns_partition);
Datum
outbox_owns_partition(PG_FUNCTION_ARGS)
{
	pg_uuid_t  *self = PG_GETARG_UUID_P(0);
	OutboxInstances alive;
	Datum	   *values;
	bool	   *isnull;
	const pg_uuid_t *owner;

	memset(&alive, 0, sizeof(alive));
	outbox_arg_array(fcinfo, 1, "instances", UUIDOID, &values, &isnull, &alive.n);
	alive.ids = palloc_array(pg_uuid_t, alive.n + 1);
	for (int i = 0; i < alive.n; i++)
		alive.ids[i] = isnull[i] ? *self : *DatumGetUUIDP(values[i]);
	alive.ids[alive.n++] = *self;
	owner = outbox_instance_owner(&alive, PG_GETARG_INT32(2));
	PG_RETURN_BOOL(outbox_uuid_equal(owner, self));
}

/*
 * outbox._partition_owner(partition int, instances uuid[]) RETURNS uuid
 *		The one of these instances that owns a partition.
 */
PG_FUNCTION_INFO_V1(outbox_partition_owner);
Datum
outbox_partition_owner(PG_FUNCTION_ARGS)
{
	OutboxInstances alive = {0};
	pg_uuid_t  *owner = palloc_object(pg_uuid_t);
	Datum	   *values;
	bool	   *isnull;
	int			n;

	outbox_arg_array(fcinfo, 1, "instances", UUIDOID, &values, &isnull, &n);
	alive.ids = palloc_array(pg_uuid_t, n + 1);
	for (int i = 0; i < n; i++)
	{
		if (!isnull[i])
			alive.ids[alive.n++] = *DatumGetUUIDP(values[i]);
	}
	if (alive.n == 0)
		PG_RETURN_NULL();
	*owner = *outbox_instance_owner(&alive, PG_GETARG_INT32(0));
	PG_RETURN_UUID_P(owner);
}
