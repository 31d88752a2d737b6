/*
 * expiry.c
 *	  Up to which time the search for expired messages is complete.
 *
 * The index on expires_at keeps the entries of all messages that were finished
 * before, and while an old snapshot is open they cannot be removed.  So the
 * agenda of a table has a time up to which all entries are dead to everyone; a
 * search begins there.
 *
 * An entry can be inserted below that time only if its message has expired
 * already.  So each transaction notes the earliest expires_at that it writes
 * (lane_xact.c), and reports it when it has committed, if a search may have
 * passed it: expired_seen is the latest time that any search has reached.  A
 * search does not raise the time if something was reported since it began.
 *
 * A search does not raise the time beyond what it has found and not removed.
 */
#include "postgres.h"

#include "storage/lwlock.h"

#include "shmem/agenda.h"
#include "shmem/directory.h"
#include "shmem/expiry.h"
#include "shmem/lane_xact.h"

/* Begin a search for messages that have expired by now; sets search->from. */
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
	/* what this transaction has written is not reported yet */
	noted = outbox_lane_noted_expiry(relid);
	search->from = noted == DT_NOEND ? agenda->expired_to :
		Min(agenda->expired_to, noted - 1);
	agenda->expired_seen = Max(agenda->expired_seen, now);
	LWLockRelease(&agenda->lock);
}

/* End a search which has found all entries up to "until" dead to everyone. */
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

/* Report that a message which expires at this time was committed. */
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
