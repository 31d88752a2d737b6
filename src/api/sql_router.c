/*
 * sql_router.c
 *	  SQL functions of the router.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/uuid.h"

#include "api/args.h"
#include "queue/router.h"

static text *
route(const text *key)
{
	const text *store;

	/* parallel workers would have copies of the tables of their own */
	PreventCommandIfParallelMode("outbox.route_store()");
	store = outbox_router_find(key);
	if (store == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("no store is mapped to routing key \"%s\"",
						text_to_cstring(key)),
				 errhint("Map one with outbox.map_route, or register stores and set a default with outbox.set_default_route.")));
	return DatumGetTextPCopy(PointerGetDatum(store));
}

/*
 * outbox.route_store(routing_key text) RETURNS text
 *		The store that is responsible for a key.
 */
PG_FUNCTION_INFO_V1(outbox_route_store);
Datum
outbox_route_store(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(route(outbox_arg_name(fcinfo, 0, "routing_key")));
}

/*
 * outbox.route_store(routing_key uuid) RETURNS text
 *		The same for the text form of a UUID, in lower case.
 */
PG_FUNCTION_INFO_V1(outbox_route_store_uuid);
Datum
outbox_route_store_uuid(PG_FUNCTION_ARGS)
{
	Datum		spelling;

	(void) outbox_arg_uuid(fcinfo, 0, "routing_key");
	spelling = DirectFunctionCall1(uuid_out, PG_GETARG_DATUM(0));
	PG_RETURN_TEXT_P(route(cstring_to_text(DatumGetCString(spelling))));
}

/*
 * outbox._store_is_used(store text) RETURNS boolean
 *		Whether a key is mapped to this store, or it is the default, as of now,
 *		whatever the snapshot.
 */
PG_FUNCTION_INFO_V1(outbox_store_is_used);
Datum
outbox_store_is_used(PG_FUNCTION_ARGS)
{
	/* see changes of the same command, too */
	CommandCounterIncrement();
	PG_RETURN_BOOL(outbox_router_uses(PG_GETARG_TEXT_PP(0)));
}
