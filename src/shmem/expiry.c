/*
 * expiry.c
 *	  Up to when expired messages have been looked for.
 *
 * The index of the times at which messages expire keeps the entries of all that
 * was finished before, and with an old snapshot open they cannot be removed.  So
 * the agenda of a table remembers a time up to which every entry is gone for good;
 * a search begins there.
 *
 * An entry can come into the index below that time only if its message had
 * expired already.  So each transaction notes the earliest time in what it writes
 * (lane_xact.c), and reports it when it has committed, if a search may have passed
 * it: expired_seen is the latest time that any search has looked at.  A search
 * that was under way does not raise the time when something was reported since it
 * began.
 *
 * What a search has seen and not removed limits how far it raises the time.
 */
#include "postgres.h"

#include "storage/lwlock.h"

#include "shmem/agenda.h"
#include "shmem/directory.h"
#include "shmem/expiry.h"
#include "shmem/lane_xact.h"

/* Before looking for messages that have expired by now. */
void
outbox_expiry_begin(Oid relid, bool use_memory, TimestampTz now,
					OutboxExpirySearch *search)
{
	OutboxAgenda *agenda = use_memory ?
	outbox_agenda_lock(relid, LW_EXCLUSIVE) : NULL;
	TimestampTz noted;

	search->relid = relid;
	search->tracked = agenda != NULL;
	search->from = DT_NOBEGIN;
	if (agenda == NULL)
		return;
	search->resets = agenda->resets;
	search->version = agenda->expired_version;
	/* what we have written ourselves is not reported yet */
	noted = outbox_lane_noted_expiry(relid);
	search->from = noted == DT_NOEND ? agenda->expired_to :
		Min(agenda->expired_to, noted - 1);
	agenda->expired_seen = Max(agenda->expired_seen, now);
	LWLockRelease(&agenda->lock);
}

/* The search has seen that all entries up to "until" are gone for good. */
void
outbox_expiry_end(const OutboxExpirySearch *search, TimestampTz until)
{
	OutboxAgenda *agenda = search->tracked ?
	outbox_agenda_lock_to_report(search->relid) : NULL;

	if (agenda == NULL)
		return;
	if (agenda->resets == search->resets &&
		agenda->expired_version == search->version)
		agenda->expired_to = Max(agenda->expired_to, until);
	LWLockRelease(&agenda->lock);
}

/* A message was committed that expires, or has expired, at this time. */
void
outbox_expiry_report(Oid relid, TimestampTz expires_at)
{
	OutboxAgenda *agenda = outbox_agenda_lock_to_report(relid);

	if (agenda == NULL)
		return;
	if (expires_at <= agenda->expired_seen)
	{
		agenda->expired_to = Min(agenda->expired_to, expires_at - 1);
		agenda->expired_version++;
	}
	LWLockRelease(&agenda->lock);
}
