/*
 * claim_wait.c
 *	  A claim that waits until there is something to claim.
 *
 * It claims, sleeps if there was nothing, and claims again (wake.c).  While it
 * sleeps, it must not block other transactions.  So it does not sleep in a
 * transaction that has an id, since that may have locked rows; and if an
 * attempt finds no message but has written something, because it moved
 * messages to dead, the claim returns at once without a message.
 */
#include "postgres.h"

#include "access/xact.h"
#include "portability/instr_time.h"
#include "utils/memutils.h"

#include "compat.h"
#include "core/claim.h"
#include "core/claim_wait.h"
#include "queue/walk.h"
#include "shmem/claimers.h"
#include "shmem/sleepers.h"
#include "shmem/wake.h"
#include "util/hash.h"

/* Claim once, in a memory context that is reset afterwards. */
static int
look(const OutboxClaim *claim, OutboxClaimSink sink, void *arg,
	 MemoryContext context, bool *for_others)
{
	MemoryContext old = MemoryContextSwitchTo(context);
	int			n = outbox_claim(claim, sink, arg, for_others);

	MemoryContextSwitchTo(old);
	MemoryContextReset(context);
	return n;
}

/*
 * Claim, sleep, and claim again, until there is a message, or the time is
 * over, or the transaction has written something.
 */
static int
look_and_sleep(const OutboxClaim *claim, bool registered, int wait_ms,
			   instr_time began, OutboxClaimSink sink, void *arg,
			   MemoryContext context)
{
	Oid			relid = claim->store->table;

	for (;;)
	{
		bool		for_others;
		int			n;

		outbox_sleep_look(registered, relid);
		n = look(claim, sink, arg, context, &for_others);
		if (n > 0 || TransactionIdIsValid(GetTopTransactionIdIfAny()))
			return n;
		outbox_sleep_pass_on(registered, relid, for_others);
		if (outbox_sleep_until_called(registered, relid, began, wait_ms) !=
			OUTBOX_AWAKE_CALLED)
			return 0;
	}
}

/* Add a name, if there is room for it. */
static void
add_name(OutboxSleeperNames *wants, Size *used, const text *name)
{
	Size		room = sizeof(wants->names) - *used;

	if (room <= VARSIZE_ANY_EXHDR(name) && room < OUTBOX_CLAIMED_NAME_SIZE)
	{
		wants->clipped = true;
		return;
	}
	outbox_claimers_clip(wants->names + *used,
						 Min(room, OUTBOX_CLAIMED_NAME_SIZE), name);
	*used += strlen(wants->names + *used) + 1;
}

/* Describe in names what the claim waits for. */
static void
describe_wants(const OutboxClaim *claim, OutboxSleeperNames *wants)
{
	Size		used = 0;

	memset(wants, 0, sizeof(OutboxSleeperNames));
	wants->any_namespace = claim->namespace == NULL;
	if (claim->namespace != NULL)
		add_name(wants, &used, claim->namespace);
	wants->has_subscription = claim->subscription != NULL;
	if (claim->subscription != NULL)
		add_name(wants, &used, claim->subscription);
	for (int i = 0; i < claim->ntopics && !wants->clipped; i++)
	{
		add_name(wants, &used, claim->topics[i]);
		if (!wants->clipped)
			wants->ntopics++;
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
	bool		may_sleep = !TransactionIdIsValid(GetTopTransactionIdIfAny());
	OutboxLaneFilter filter;
	OutboxSleeperNames wants;
	MemoryContext context;
	instr_time	began;
	volatile bool registered = false;
	int			n;

	INSTR_TIME_SET_CURRENT(began);
	n = outbox_claim(claim, sink, arg, NULL);
	if (n > 0 || wait_ms == 0)
		return n;
	if (!may_sleep)
		ereport(NOTICE,
				(errmsg("claim does not wait, because its transaction has written already"),
				 errhint("Call outbox.claim() in a transaction of its own.")));
	if (TransactionIdIsValid(GetTopTransactionIdIfAny()))
		return n;
	outbox_claim_filter(claim, &filter);
	describe_wants(claim, &wants);
	context = AllocSetContextCreate(CurrentMemoryContext, "outbox waiting claim",
									ALLOCSET_DEFAULT_SIZES);
	PG_TRY();
	{
		registered = outbox_sleep_begin(claim->store->table,
										outbox_walk_uses_memory(claim->store->table) ?
										&filter : NULL,
										outbox_token_hash(&claim->owner),
										claim->batch_size, &wants);
		n = look_and_sleep(claim, registered, wait_ms, began, sink, arg,
						   context);
	}
	PG_FINALLY();
	{
		outbox_sleep_end(registered);
	}
	PG_END_TRY();
	MemoryContextDelete(context);
	return n;
}
