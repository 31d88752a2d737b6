/*
 * sql_claimers.c
 *	  SQL functions for sessions that have claimed, and claims that wait.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "compat.h"
#include "shmem/agenda.h"
#include "shmem/claimers.h"
#include "shmem/directory.h"
#include "shmem/sleepers.h"
#include "table/catalog.h"

static void
set_claimer(Datum *values, bool *isnull, const OutboxClaimer *claimer)
{
	values[0] = TimestampTzGetDatum(claimer->at);
	values[1] = Int32GetDatum(claimer->pid);
	values[2] = CStringGetTextDatum(claimer->application);
	values[3] = CStringGetTextDatum(claimer->host);
	isnull[2] = claimer->application[0] == '\0';
	isnull[3] = claimer->host[0] == '\0';
}

/*
 * outbox._owner_claims() RETURNS TABLE (claimed_at timestamptz, pid int,
 *		application text, host text, owner_token uuid, since timestamptz, ended_at
 *		timestamptz, claims bigint, claimed bigint, ended bigint, released bigint,
 *		service_ms double precision)
 *		The sessions that last claimed for each owner, and what the owners have
 *		done, as far as it is known.
 */
PG_FUNCTION_INFO_V1(outbox_owner_claims);
Datum
outbox_owner_claims(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			nplaces = outbox_claimers_owner_places();

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < nplaces; i++)
	{
		OutboxOwnerClaim claim;
		Datum		values[12];
		bool		isnull[12] = {false};

		if (!outbox_claimers_read_owner(i, &claim))
			continue;
		set_claimer(values, isnull, &claim.claimer);
		values[4] = UUIDPGetDatum(&claim.owner);
		values[5] = TimestampTzGetDatum(claim.work.since);
		values[6] = TimestampTzGetDatum(claim.work.ended_at);
		isnull[6] = claim.work.ended_at == 0;
		values[7] = Int64GetDatum(claim.work.claims);
		values[8] = Int64GetDatum(claim.work.claimed);
		values[9] = Int64GetDatum(claim.work.ended);
		values[10] = Int64GetDatum(claim.work.released);
		values[11] = Float8GetDatum(claim.work.service_usecs / 1000.0);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	}
	return (Datum) 0;
}

/*
 * outbox._topic_claims() RETURNS TABLE (claimed_at timestamptz, pid int,
 *		application text, host text, namespace text, topic text, subscription
 *		text) The last claims from topics and subscriptions, as far as they are
 *		known.
 */
PG_FUNCTION_INFO_V1(outbox_topic_claims);
Datum
outbox_topic_claims(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			nplaces = outbox_claimers_topic_places();

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < nplaces; i++)
	{
		OutboxTopicClaim claim;
		Datum		values[7];
		bool		isnull[7] = {false};

		if (!outbox_claimers_read_topic(i, &claim))
			continue;
		set_claimer(values, isnull, &claim.claimer);
		values[4] = CStringGetTextDatum(claim.namespace);
		values[5] = values[6] = CStringGetTextDatum(claim.name);
		isnull[5] = claim.is_subscription;
		isnull[6] = !claim.is_subscription;
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	}
	return (Datum) 0;
}

/* The topics that a claim waits for. */
static Datum
topics_of(const OutboxSleeperNames *wants, const char *names)
{
	Datum		topics[OUTBOX_SLEEPER_NAMES];

	Assert(wants->ntopics <= OUTBOX_SLEEPER_NAMES);
	for (int i = 0; i < wants->ntopics; i++)
	{
		topics[i] = CStringGetTextDatum(names);
		names += strlen(names) + 1;
	}
	return PointerGetDatum(construct_array(topics, wants->ntopics, TEXTOID, -1,
										   false, TYPALIGN_INT));
}

/*
 * outbox._waiting_claims() RETURNS TABLE (pid int, since timestamptz,
 *		namespace text, topics text[], subscription text)
 *		The claims that wait for messages of the queue.
 */
PG_FUNCTION_INFO_V1(outbox_waiting_claims);
Datum
outbox_waiting_claims(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Oid			relid = outbox_store(OUTBOX_QUEUE)->table;
	OutboxSleeper *sleepers = palloc_array(OutboxSleeper, MaxBackends);
	OutboxAgenda *agenda;
	int			n = 0;

	InitMaterializedSRF(fcinfo, 0);
	agenda = outbox_agenda_lock(relid, LW_SHARED);
	if (agenda != NULL)
	{
		n = outbox_sleepers_copy(agenda, sleepers);
		LWLockRelease(&agenda->lock);
	}
	for (int i = 0; i < n; i++)
	{
		const OutboxSleeperNames *wants = &sleepers[i].wants;
		const char *names = wants->names;
		Datum		values[5];
		bool		isnull[5] = {false};

		values[0] = Int32GetDatum(sleepers[i].pid);
		values[1] = TimestampTzGetDatum(sleepers[i].since);
		isnull[2] = wants->any_namespace;
		if (!wants->any_namespace)
		{
			values[2] = CStringGetTextDatum(names);
			names += strlen(names) + 1;
		}
		isnull[4] = !wants->has_subscription;
		if (!isnull[4])
		{
			values[4] = CStringGetTextDatum(names);
			names += strlen(names) + 1;
		}
		isnull[3] = wants->ntopics == 0;
		if (!isnull[3])
			values[3] = topics_of(wants, names);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, isnull);
	}
	pfree(sleepers);
	return (Datum) 0;
}
