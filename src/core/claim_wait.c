/*
 * claim_wait.c
 *	  A claim that waits until there is something to claim.
 */
#include "postgres.h"

#include "utils/inval.h"
#include "utils/timestamp.h"

#include "core/claim.h"
#include "core/claim_wait.h"
#include "shmem/wake.h"
#include "util/hash.h"

/* Look, sleep, and look again, until there is something or the time is over. */
static int
look_and_sleep(const OutboxClaim *claim, const OutboxLaneFilter *filter,
			   bool registered, TimestampTz deadline,
			   OutboxClaimSink sink, void *arg)
{
	Oid			relid = claim->store->table;

	for (;;)
	{
		int			n;

		outbox_wait_arm();
		n = outbox_claim(claim, sink, arg);
		if (n > 0 || GetCurrentTimestamp() >= deadline)
			return n;
		outbox_wait_sleep(relid, filter, registered, deadline);
		/* we hold all locks already, so nothing else would do this */
		AcceptInvalidationMessages();
	}
}

/*
 * Lease due messages to an owner; if there are none, wait for them, for at
 * most wait_ms.  Returns how many.
 */
int
outbox_claim_or_wait(const OutboxClaim *claim, int wait_ms,
					 OutboxClaimSink sink, void *arg)
{
	OutboxLaneFilter filter;
	uint32		namespace_hash;
	TimestampTz deadline;
	int			n = outbox_claim(claim, sink, arg);

	if (n > 0 || wait_ms == 0)
		return n;
	deadline = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), wait_ms);
	outbox_claim_filter(claim, &filter, &namespace_hash);
	PG_TRY();
	{
		bool		registered;

		registered = outbox_wait_begin(claim->store->table, &filter,
									   outbox_owner_lane(&claim->owner));
		n = look_and_sleep(claim, &filter, registered, deadline, sink, arg);
	}
	PG_FINALLY();
	{
		outbox_wait_end();
	}
	PG_END_TRY();
	return n;
}
