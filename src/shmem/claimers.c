/*
 * claimers.c
 *	  Which sessions have claimed, for which owners and from which topics, and
 *	  what the owners have done.
 *
 * An owner is a UUID chosen by a worker, so a lease does not say where the
 * worker is.  Each claim that gets messages records the process, the
 * application and the host of its session here: once under the owner's token,
 * for views that show leases and workers, and once under each topic, for views
 * that show when a topic was last claimed from.  Under the owner's token it
 * also counts what was claimed, and the calls that settle messages count these,
 * and for how long the owner had them.
 *
 * Both are tables of fixed size, in which an entry replaces another with the
 * same hash; correctness does not depend on them.  They are written by the
 * call, before its transaction commits, and never cleaned up: readers compare
 * the token, and a claim that was rolled back counts as a claim.
 *
 * Many workers have a new token for each claim, so there is room for some owners
 * with the same hash, and those give way first that have settled all that they
 * have claimed.  A set of these is protected by its spinlock, and so is the
 * entry of a topic.  The latter is not written again if it was written a moment
 * ago, so sessions that claim from one topic do not contend for it.
 */
#include "postgres.h"

#include <sys/socket.h>
#include <netdb.h>

#include "common/ip.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/backend_status.h"
#include "utils/guc.h"

#include "compat.h"
#include "outbox.h"
#include "shmem/claimers.h"
#include "shmem/shmem.h"
#include "util/hash.h"
#include "util/uuid.h"

/* The tables use this fraction of the memory for lanes, in addition to it. */
#define BUDGET_PART 64

/* How old the entry of a topic must be to be written again. */
#define TOPIC_USECS (INT64CONST(10) * 1000)

/* ---------------------------------------------------------------------- */
/* Layout                                                                 */
/* ---------------------------------------------------------------------- */

static int
places_for(Size budget, Size size)
{
	return (int) Min(Max(budget / BUDGET_PART / 2 / size, 16), 100000);
}

static Size
topics_offset(Size budget)
{
	return MAXALIGN(offsetof(OutboxClaimers, sets) +
					places_for(budget, sizeof(OutboxOwnerSet)) *
					sizeof(OutboxOwnerSet));
}

/* The size of the tables, for a budget of so much memory for lanes. */
Size
outbox_claimers_size(Size budget)
{
	return topics_offset(budget) +
		places_for(budget, sizeof(OutboxTopicClaim)) * sizeof(OutboxTopicClaim);
}

static OutboxTopicClaim *
topic_places(OutboxClaimers *claimers)
{
	return (OutboxTopicClaim *) ((char *) claimers + claimers->topics);
}

/* Initialize the tables, when the block of shared memory is created. */
void
outbox_claimers_init(OutboxClaimers *claimers, Size budget)
{
	memset(claimers, 0, outbox_claimers_size(budget));
	claimers->nsets = places_for(budget, sizeof(OutboxOwnerSet));
	claimers->ntopics = places_for(budget, sizeof(OutboxTopicClaim));
	claimers->topics = topics_offset(budget);
	for (int i = 0; i < claimers->nsets; i++)
		SpinLockInit(&claimers->sets[i].mutex);
	for (int i = 0; i < claimers->ntopics; i++)
		SpinLockInit(&topic_places(claimers)[i].mutex);
}

/* ---------------------------------------------------------------------- */
/* Writing                                                                */
/* ---------------------------------------------------------------------- */

/* Copy as much of a name as fits, zero-terminated, at a character boundary. */
void
outbox_claimers_clip(char *name, Size size, const text *value)
{
	const char *data = VARDATA_ANY(value);
	int			len = pg_mbcliplen(data, VARSIZE_ANY_EXHDR(value), size - 1);

	Assert(len < size);
	memcpy(name, data, len);
	name[len] = '\0';
}

/* The numeric address of this session's client; empty if there is none. */
static const char *
client_host(void)
{
	static char host[OUTBOX_HOST_SIZE];
	static bool known = false;

	if (known)
		return host;
	known = true;
	if (MyBEEntry == NULL || MyBEEntry->st_clientaddr.salen == 0)
		return host;
	if (MyBEEntry->st_clientaddr.addr.ss_family == AF_UNIX)
		strlcpy(host, "[local]", sizeof(host));
	else if (pg_getnameinfo_all(&MyBEEntry->st_clientaddr.addr,
								MyBEEntry->st_clientaddr.salen, host,
								sizeof(host), NULL, 0, NI_NUMERICHOST) != 0)
		host[0] = '\0';
	return host;
}

/* Describe this session. */
static void
describe_session(OutboxClaimer *claimer, TimestampTz now)
{
	claimer->at = now;
	claimer->pid = MyProcPid;
	strlcpy(claimer->application, application_name != NULL ? application_name : "",
			sizeof(claimer->application));
	strlcpy(claimer->host, client_host(), sizeof(claimer->host));
}

/* The set that the owner's entry is in, or would be. */
static OutboxOwnerSet *
set_of(OutboxClaimers *claimers, const pg_uuid_t *owner)
{
	return &claimers->sets[outbox_uuid_hash(owner) % claimers->nsets];
}

/* The owner's entry; NULL if there is none.  The caller must hold the lock. */
static OutboxOwnerClaim *
find_owner(OutboxOwnerSet *set, const pg_uuid_t *owner)
{
	for (int i = 0; i < OUTBOX_OWNER_WAYS; i++)
	{
		OutboxOwnerClaim *claim = &set->claims[i];

		if (claim->claimer.pid != 0 && claim->dbid == MyDatabaseId &&
			outbox_uuid_equal(&claim->owner, owner))
			return claim;
	}
	return NULL;
}

/*
 * Would this entry rather be replaced than the other one?  First one that is
 * unused, then one whose owner has settled everything, then the older one.
 */
static bool
gives_way(const OutboxOwnerClaim *claim, const OutboxOwnerClaim *other)
{
	bool		idle = claim->work.ended + claim->work.released >= claim->work.claimed;
	bool		other_idle = other->work.ended + other->work.released >= other->work.claimed;

	if (claim->claimer.pid == 0 || other->claimer.pid == 0)
		return other->claimer.pid != 0;
	if (idle != other_idle)
		return idle;
	return claim->claimer.at < other->claimer.at;
}

/* Make an entry for the owner.  The caller must hold the lock. */
static OutboxOwnerClaim *
make_owner(OutboxOwnerSet *set, const pg_uuid_t *owner, TimestampTz now)
{
	OutboxOwnerClaim *made = &set->claims[0];

	for (int i = 1; i < OUTBOX_OWNER_WAYS; i++)
	{
		if (gives_way(&set->claims[i], made))
			made = &set->claims[i];
	}
	made->dbid = MyDatabaseId;
	made->owner = *owner;
	made->work = OUTBOX_MAKE(OutboxOwnerWork,.since = now);
	return made;
}

/* Record that this session has leased so many messages to the owner. */
void
outbox_claimers_note_owner(const pg_uuid_t *owner, int nclaimed, TimestampTz now)
{
	OutboxClaimers *claimers = outbox_shmem_claimers();
	OutboxOwnerSet *set;
	OutboxOwnerClaim *claim;
	OutboxClaimer claimer;

	Assert(nclaimed > 0);
	if (claimers == NULL)
		return;
	set = set_of(claimers, owner);
	describe_session(&claimer, now);
	SpinLockAcquire(&set->mutex);
	claim = find_owner(set, owner);
	if (claim == NULL)
		claim = make_owner(set, owner, now);
	claim->claimer = claimer;
	claim->work.claims++;
	claim->work.claimed += nclaimed;
	SpinLockRelease(&set->mutex);
}

/*
 * Record that the owner has ended so many messages, which it had for so long in
 * all, and has released others.
 */
void
outbox_claimers_note_ended(const pg_uuid_t *owner, int nended, int nreleased,
						   int64 service_usecs, TimestampTz now)
{
	OutboxClaimers *claimers = outbox_shmem_claimers();
	OutboxOwnerSet *set;
	OutboxOwnerClaim *claim;

	Assert(nended >= 0 && nreleased >= 0 && nended + nreleased > 0);
	Assert(service_usecs >= 0);
	if (claimers == NULL)
		return;
	set = set_of(claimers, owner);
	SpinLockAcquire(&set->mutex);
	claim = find_owner(set, owner);
	if (claim != NULL)
	{
		claim->work.ended += nended;
		claim->work.released += nreleased;
		claim->work.service_usecs += service_usecs;
		if (nended > 0)
			claim->work.ended_at = now;
	}
	SpinLockRelease(&set->mutex);
}

/*
 * Record that this session has leased messages of the topic or subscription
 * with this hash.
 */
void
outbox_claimers_note_topic(const text *namespace, const text *name,
						   bool is_subscription, uint64 hash, TimestampTz now)
{
	OutboxClaimers *claimers = outbox_shmem_claimers();
	OutboxTopicClaim *claim;
	OutboxTopicClaim new;
	bool		same;

	if (claimers == NULL)
		return;
	claim = &topic_places(claimers)[hash % claimers->ntopics];
	/* read without the lock: at worst, the decision to write is wrong */
	same = claim->hash == hash && claim->dbid == MyDatabaseId;
	if (same && claim->claimer.at > now - TOPIC_USECS)
		return;
	describe_session(&new.claimer, now);
	outbox_claimers_clip(new.namespace, sizeof(new.namespace), namespace);
	outbox_claimers_clip(new.name, sizeof(new.name), name);
	SpinLockAcquire(&claim->mutex);
	claim->dbid = MyDatabaseId;
	claim->hash = hash;
	claim->claimer = new.claimer;
	memcpy(claim->namespace, new.namespace, sizeof(claim->namespace));
	claim->is_subscription = is_subscription;
	memcpy(claim->name, new.name, sizeof(claim->name));
	SpinLockRelease(&claim->mutex);
}

/* ---------------------------------------------------------------------- */
/* Reading                                                                */
/* ---------------------------------------------------------------------- */

/* The number of entries for owners; 0 if there is no shared memory. */
int
outbox_claimers_owner_places(void)
{
	OutboxClaimers *claimers = outbox_shmem_claimers();

	return claimers == NULL ? 0 : claimers->nsets * OUTBOX_OWNER_WAYS;
}

/* The number of entries for topics; 0 if there is no shared memory. */
int
outbox_claimers_topic_places(void)
{
	OutboxClaimers *claimers = outbox_shmem_claimers();

	return claimers == NULL ? 0 : claimers->ntopics;
}

/* Copy an entry for an owner; false if it is unused, or another database's. */
bool
outbox_claimers_read_owner(int place, OutboxOwnerClaim *claim)
{
	OutboxClaimers *claimers = outbox_shmem_claimers();
	OutboxOwnerSet *set = &claimers->sets[place / OUTBOX_OWNER_WAYS];

	Assert(place >= 0 && place < claimers->nsets * OUTBOX_OWNER_WAYS);
	SpinLockAcquire(&set->mutex);
	*claim = set->claims[place % OUTBOX_OWNER_WAYS];
	SpinLockRelease(&set->mutex);
	return claim->claimer.pid != 0 && claim->dbid == MyDatabaseId;
}

/* Copy an entry for a topic; false if it is unused, or another database's. */
bool
outbox_claimers_read_topic(int place, OutboxTopicClaim *claim)
{
	OutboxClaimers *claimers = outbox_shmem_claimers();
	OutboxTopicClaim *from = &topic_places(claimers)[place];

	Assert(place >= 0 && place < claimers->ntopics);
	SpinLockAcquire(&from->mutex);
	*claim = *from;
	SpinLockRelease(&from->mutex);
	return claim->claimer.pid != 0 && claim->dbid == MyDatabaseId;
}
