/*
 * deliver.c
 *	  A worker's delivery of publications.
 *
 * Pending publications (expand.c) are delivered a few in one transaction.  If that
 * fails, each of them is tried in a transaction of its own, and those that fail are
 * remembered and skipped, so that one that can never be delivered, for example because
 * of a trigger of the user, does not delay others.  They are tried again when the
 * caller says so.
 *
 * A pass goes from the first pending publication to the last one, in as many calls as
 * it takes, however many of them must wait.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "pgstat.h"

#include "core/expand.h"
#include "worker/background.h"
#include "worker/deliver.h"

/* Transactions in one call. */
#define MAX_STEPS 20

/* Failures that are remembered, and with which a call ends. */
#define MAX_FAILED 64

/* The pass: the place up to which it has come, and whether something has failed. */
static int64 place = 0;
static bool has_failed = false;

/* Publications that have failed. */
static int64 failed[MAX_FAILED];
static int	nfailed = 0;

/* How many publications are tried one by one, because some of them have failed. */
static int	nsingle = 0;

/* Deliver a few publications in a transaction; false if nothing is left behind them. */
static bool
deliver_some(int64 *to, int max, int64 *done)
{
	int			n;
	bool		more;

	pgstat_report_activity(STATE_RUNNING, "outbox: delivering publications");
	outbox_background_begin();
	outbox_background_hold_extension();
	more = outbox_expand(to, max, failed, nfailed, &n);
	outbox_background_commit();
	pgstat_report_activity(STATE_IDLE, NULL);
	*done += n;
	return more;
}

/*
 * Deliver several publications, or, if that fails, none; then each must be tried alone.
 * True if there may be more to do.
 */
static bool
deliver_together(int64 *done)
{
	volatile bool more = true;
	MemoryContext context = CurrentMemoryContext;
	volatile int64 next = place;

	PG_TRY();
	{
		int64		to = place;

		more = deliver_some(&to, OUTBOX_EXPAND_LIMIT, done);
		next = to;
	}
	PG_CATCH();
	{
		outbox_background_abort();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		nsingle = OUTBOX_EXPAND_LIMIT;
	}
	PG_END_TRY();
	place = next;
	MemoryContextSwitchTo(context);
	return more;
}

/* Deliver one publication; if that fails, skip it.  Returns false as deliver_some does. */
static bool
deliver_one(void (*note_failure) (void), int64 *done, int *nfailures)
{
	volatile bool more = true;
	MemoryContext context = CurrentMemoryContext;
	int64		from = place;

	nsingle--;
	PG_TRY();
	{
		more = deliver_some(&place, 1, done);
	}
	PG_CATCH();
	{
		note_failure();
		has_failed = true;
		(*nfailures)++;
		/* if the failure is not that of a publication, everything must wait */
		if (place == from)
			more = false;
		else if (nfailed < MAX_FAILED)
			failed[nfailed++] = place;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	return more;
}

/*
 * Do some steps of a pass; returns how many publications were delivered.  "tries_all":
 * also try those that have failed before.  note_failure is called for each failure, in the
 * error's context, and must end the transaction.  *none_fails is set at the end of a
 * pass in which none has failed.
 */
int64
outbox_deliver_pending(bool tries_all, void (*note_failure) (void),
					   bool *none_fails)
{
	int64		done = 0;
	int			nfailures = 0;
	bool		more = true;

	if (place == 0)
	{
		if (tries_all)
			nfailed = 0;
		has_failed = nfailed > 0;
	}
	for (int step = 0; step < MAX_STEPS && more && nfailures < MAX_FAILED;)
	{
		CHECK_FOR_INTERRUPTS();
		if (nsingle > 0)
			more = deliver_one(note_failure, &done, &nfailures);
		else
		{
			more = deliver_together(&done);
			step++;
		}
	}
	if (more)
		return Max(done, 1);
	*none_fails = !has_failed;
	place = 0;
	return done;
}
