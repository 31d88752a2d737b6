/*
 * sql_status.c
 *	  C functions called by status() and explain_message().
 */
#include "postgres.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "api/args.h"
#include "compat.h"
#include "shmem/posts.h"
#include "util/hash.h"

/*
 * outbox._lane_of(namespace text, topic text, tenant_id uuid, subscriber int,
 *				   priority int) RETURNS bigint
 *		The lane in which claims look for such a message; null if it has no
 *		namespace or topic.
 */
PG_FUNCTION_INFO_V1(outbox_lane_of_sql);
Datum
outbox_lane_of_sql(PG_FUNCTION_ARGS)
{
	OutboxPlace place;

	if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
		PG_RETURN_NULL();
	outbox_place_of(outbox_arg_text_or_null(fcinfo, 0),
					outbox_arg_text_or_null(fcinfo, 1),
					outbox_arg_uuid_or_null(fcinfo, 2),
					PG_ARGISNULL(3) ? 0 : PG_GETARG_INT32(3),
					PG_ARGISNULL(4) ? 0 : PG_GETARG_INT32(4), &place);
	PG_RETURN_INT64(place.lane);
}

/*
 * outbox._posts(OUT role_oid oid, OUT running boolean, OUT failures int,
 *				 OUT due timestamptz, OUT called boolean) RETURNS SETOF record
 *		The posts of this database, where workers may be needed; the role is
 *		null in that of the extension's own work.
 */
PG_FUNCTION_INFO_V1(outbox_posts_sql);
Datum
outbox_posts_sql(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxWorkersState *state = outbox_workers_state();
	OutboxPost *posts;
	int			n = 0;

	InitMaterializedSRF(fcinfo, 0);
	if (state == NULL)
		return (Datum) 0;
	/* a copy, because nothing is allocated while the lock is held */
	posts = palloc_array(OutboxPost, OUTBOX_MAX_POSTS);
	LWLockAcquire(&state->lock, LW_SHARED);
	for (OutboxPost *post = outbox_post_first(state, MyDatabaseId);
		 post != NULL && n < OUTBOX_MAX_POSTS;
		 post = outbox_post_next(state, post))
		posts[n++] = *post;
	LWLockRelease(&state->lock);
	for (int i = 0; i < n; i++)
	{
		Datum		values[] = {
			ObjectIdGetDatum(posts[i].roleid),
			BoolGetDatum(posts[i].running),
			Int32GetDatum(posts[i].failures),
			TimestampTzGetDatum(posts[i].due),
			BoolGetDatum(posts[i].called)
		};
		bool		isnull[] = {!OidIsValid(posts[i].roleid), false, false, false, false};

		tuplestore_putvalues(result->setResult, result->setDesc, values, isnull);
	}
	return (Datum) 0;
}
