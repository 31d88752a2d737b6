/*
 * claimers.c
 *	  Which sessions have claimed, for which owners and from which topics.
 *
 * An owner is a UUID chosen by a worker, so a lease does not say where the
 * worker is.  Each claim that gets messages records the process, the
 * application and the host of its session here: once under the owner's token,
 * for views that show leases, and once under each topic, for views that show
 * when a topic was last claimed from.
 *
 * Both are tables of fixed size, in which an entry replaces another with the
 * same hash; correctness does not depend on them.  They are written by the
 * claim, before its transaction commits, and never cleaned up: readers compare
 * the token, and a claim that was rolled back counts as a claim.
 *
 * An entry is protected by its spinlock.  An entry that was written a moment
 * ago is not written again, so sessions that claim from one topic do not
 * contend for it.
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
#include "shmem/claimers.h"
#include "shmem/shmem.h"
#include "util/hash.h"

/* The tables use this fraction of the memory for lanes, in addition to it. */
#define BUDGET_PART 64

/* How old an entry must be to be written again by its session, or by any. */
#define OWNER_USECS (INT64CONST(1000) * 1000)
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
	return MAXALIGN(offsetof(OutboxClaimers, owners) +
					places_for(budget, sizeof(OutboxOwnerClaim)) *
					sizeof(OutboxOwnerClaim));
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
	claimers->nowners = places_for(budget, sizeof(OutboxOwnerClaim));
	claimers->ntopics = places_for(budget, sizeof(OutboxTopicClaim));
	claimers->topics = topics_offset(budget);
	for (int i = 0; i < claimers->nowners; i++)
		SpinLockInit(&claimers->owners[i].mutex);
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

/* Record that this session has leased messages to the owner. */
void
outbox_claimers_note_owner(const pg_uuid_t *owner, TimestampTz now)
{
	OutboxClaimers *claimers = outbox_shmem_claimers();
	OutboxOwnerClaim *claim;
	OutboxClaimer claimer;

	if (claimers == NULL)
		return;
	claim = &claimers->owners[outbox_uuid_hash(owner) % claimers->nowners];
	describe_session(&claimer, now);
	SpinLockAcquire(&claim->mutex);
	if (claim->claimer.pid != MyProcPid || claim->dbid != MyDatabaseId ||
		claim->claimer.at < now - OWNER_USECS ||
		memcmp(&claim->owner, owner, sizeof(pg_uuid_t)) != 0)
	{
		claim->dbid = MyDatabaseId;
		claim->owner = *owner;
		claim->claimer = claimer;
	}
	SpinLockRelease(&claim->mutex);
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

	return claimers == NULL ? 0 : claimers->nowners;
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
	OutboxOwnerClaim *from = &claimers->owners[place];

	Assert(place >= 0 && place < claimers->nowners);
	SpinLockAcquire(&from->mutex);
	*claim = *from;
	SpinLockRelease(&from->mutex);
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
