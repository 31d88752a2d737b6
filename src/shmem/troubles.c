/*
 * troubles.c
 *	  Parts of the workers' rounds that fail, and when they are tried again.
 *
 * A part of a round that fails must not keep the worker from the other parts,
 * nor fail in a busy loop.  So there is an entry for each part of a database
 * that has failed, with the time of the next retry; the delay grows.  The
 * entry is removed when the part has succeeded.
 *
 * The entries survive the worker that has made them, and are shown by views.
 * After a restart there are none, and everything is tried.  If there is no
 * room for an entry, a part that fails is retried in the next round.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "shmem/shmem.h"
#include "shmem/troubles.h"

/* The delay after the first failure; it doubles. */
#define RETRY_MIN_MS 1000
#define RETRY_MAX_MS 60000

/* Initialize the list, when the block of shared memory is created. */
void
outbox_troubles_init(OutboxTroubles *troubles, int tranche)
{
	LWLockInitialize(&troubles->lock, tranche);
	troubles->n = 0;
}

/* The name of a part of a round, for users. */
const char *
outbox_part_name(OutboxPart part)
{
	static const char *const names[] = {
		[OUTBOX_PART_WAITS] = "waits",
		[OUTBOX_PART_TIMERS] = "timers",
		[OUTBOX_PART_DELIVERIES] = "publications",
		[OUTBOX_PART_SUBSCRIPTIONS] = "subscriptions",
		[OUTBOX_PART_REAP] = "reap",
		[OUTBOX_PART_HANDLERS] = "handlers",
		[OUTBOX_PART_RETENTION] = "retention",
		[OUTBOX_PART_JOINS] = "joins",
		[OUTBOX_PART_DEPTH] = "depth",
		[OUTBOX_PART_SCHEDULE] = "schedule",
		[OUTBOX_PART_BINDING] = "binding",
		[OUTBOX_PART_HANDLER] = "handler"
	};

	Assert(part <= OUTBOX_PART_HANDLER);
	return names[part];
}

/* The list; NULL if there is no shared memory. */
static OutboxTroubles *
get_troubles(void)
{
	OutboxShared *shared = outbox_preloaded() ? outbox_shmem() : NULL;

	return shared == NULL ? NULL : &shared->troubles;
}

/*
 * Find the entry of this part in this database; if dbid is invalid, a free
 * entry.  NULL if there is none.
 */
static OutboxTrouble *
find_trouble(OutboxTroubles *troubles, Oid dbid, OutboxPart part, int64 lane)
{
	Assert(LWLockHeldByMe(&troubles->lock));
	for (int i = 0; i < troubles->n; i++)
	{
		OutboxTrouble *trouble = &troubles->list[i];

		if (trouble->dbid == dbid &&
			(!OidIsValid(dbid) ||
			 (trouble->part == part && trouble->lane == lane)))
			return trouble;
	}
	return NULL;
}

/*
 * The time when this part may be tried; DT_NOBEGIN if it has not failed.
 * Limited to the maximum delay from now, in case the clock was set back.
 */
TimestampTz
outbox_trouble_next_try(OutboxPart part, int64 lane)
{
	OutboxTroubles *troubles = get_troubles();
	const OutboxTrouble *trouble;
	TimestampTz result = DT_NOBEGIN;

	if (troubles == NULL)
		return result;
	LWLockAcquire(&troubles->lock, LW_SHARED);
	trouble = find_trouble(troubles, MyDatabaseId, part, lane);
	if (trouble != NULL)
		result = trouble->next_try;
	LWLockRelease(&troubles->lock);
	if (result > TimestampTzPlusMilliseconds(GetCurrentTimestamp(), RETRY_MAX_MS))
		return DT_NOBEGIN;
	return result;
}

/*
 * Record that a part has failed.  Returns whether this should be logged,
 * because it is new, or the error is another one.
 */
bool
outbox_trouble_note(OutboxPart part, int64 lane, int sqlerrcode)
{
	OutboxTroubles *troubles = get_troubles();
	TimestampTz now = GetCurrentTimestamp();
	OutboxTrouble *trouble;
	bool		is_news = false;

	if (troubles == NULL)
		return true;
	LWLockAcquire(&troubles->lock, LW_EXCLUSIVE);
	trouble = find_trouble(troubles, MyDatabaseId, part, lane);
	if (trouble == NULL)
	{
		trouble = find_trouble(troubles, InvalidOid, part, lane);
		if (trouble == NULL && troubles->n < OUTBOX_MAX_TROUBLES)
			trouble = &troubles->list[troubles->n++];
		if (trouble != NULL)
			*trouble = (OutboxTrouble)
		{
			.dbid = MyDatabaseId,.part = part,.lane = lane,.since = now
		};
	}
	if (trouble != NULL)
	{
		is_news = trouble->failures == 0 || trouble->sqlerrcode != sqlerrcode;
		trouble->next_try =
			TimestampTzPlusMilliseconds(now, Min((int64) RETRY_MIN_MS << Min(trouble->failures, 16),
												 RETRY_MAX_MS));
		trouble->failures++;
		trouble->sqlerrcode = sqlerrcode;
	}
	LWLockRelease(&troubles->lock);
	return is_news;
}

/* Record that a part has succeeded.  Returns whether it had failed before. */
bool
outbox_trouble_over(OutboxPart part, int64 lane)
{
	OutboxTroubles *troubles = get_troubles();
	OutboxTrouble *trouble;

	/* usually there are no entries at all */
	if (troubles == NULL || troubles->n == 0)
		return false;
	LWLockAcquire(&troubles->lock, LW_EXCLUSIVE);
	trouble = find_trouble(troubles, MyDatabaseId, part, lane);
	if (trouble != NULL)
		trouble->dbid = InvalidOid;
	LWLockRelease(&troubles->lock);
	return trouble != NULL;
}

/* Remove the entries of a database that no longer has the extension. */
void
outbox_troubles_forget(Oid dbid)
{
	OutboxTroubles *troubles = get_troubles();

	if (troubles == NULL)
		return;
	LWLockAcquire(&troubles->lock, LW_EXCLUSIVE);
	for (int i = 0; i < troubles->n; i++)
	{
		if (troubles->list[i].dbid == dbid)
			troubles->list[i].dbid = InvalidOid;
	}
	LWLockRelease(&troubles->lock);
}

/*
 * Remove the entries of databases that no longer exist, according to "exists".
 */
void
outbox_troubles_forget_databases(bool (*exists) (Oid dbid, void *arg), void *arg)
{
	OutboxTroubles *troubles = get_troubles();

	if (troubles == NULL)
		return;
	LWLockAcquire(&troubles->lock, LW_EXCLUSIVE);
	for (int i = 0; i < troubles->n; i++)
	{
		OutboxTrouble *trouble = &troubles->list[i];

		if (OidIsValid(trouble->dbid) && !exists(trouble->dbid, arg))
			trouble->dbid = InvalidOid;
	}
	LWLockRelease(&troubles->lock);
}

/* Copy the entries of this database; returns how many. */
int
outbox_troubles_list(OutboxTrouble *list, int max)
{
	OutboxTroubles *troubles = get_troubles();
	int			n = 0;

	if (troubles == NULL)
		return 0;
	LWLockAcquire(&troubles->lock, LW_SHARED);
	for (int i = 0; i < troubles->n && n < max; i++)
	{
		if (troubles->list[i].dbid == MyDatabaseId)
			list[n++] = troubles->list[i];
	}
	LWLockRelease(&troubles->lock);
	return n;
}
