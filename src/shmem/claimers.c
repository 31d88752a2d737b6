/*
 * claimers.c
 *	  Which sessions have claimed, for whom and from which topics.
 *
 * An owner is a UUID that a worker has made up, so a lease does not tell where
 * the worker is.  Each claim that has got something leaves the process, the
 * application and the host of its session here: once under the owner's token, for
 * those who look at leases, and once under each topic, for those who want to know
 * when a topic was last claimed from.
 *
 * Both are tables of fixed size, in which an entry replaces another whose hash is
 * the same; nothing depends on them.  They are written by the claim, before it is
 * known whether its transaction commits, and never cleaned: a token is compared,
 * and a claim that was rolled back was a claim.
 *
 * An entry is written and read under its spinlock.  What was written a moment ago
 * is not written again, so sessions that claim from one topic do not wait for each
 * other.
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

/* One part in this many of the memory for lanes is added for this. */
#define BUDGET_PART 64

/* How old an entry must be to be written again by the same session, or any. */
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

/* While the block of shared memory is made. */
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

/* As much of a name as fits, with a zero at the end. */
void
outbox_claimers_clip(char *name, Size size, const text *value)
{
	const char *data = VARDATA_ANY(value);
	int			len = pg_mbcliplen(data, VARSIZE_ANY_EXHDR(value), size - 1);

	Assert(len < size);
	memcpy(name, data, len);
	name[len] = '\0';
}

/* Where this session's client is, in numbers; empty if there is no client. */
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

/* This session. */
static void
describe_session(OutboxClaimer *claimer, TimestampTz now)
{
	claimer->at = now;
	claimer->pid = MyProcPid;
	strlcpy(claimer->application, application_name != NULL ? application_name : "",
			sizeof(claimer->application));
	strlcpy(claimer->host, client_host(), sizeof(claimer->host));
}

/* This session has leased messages to the owner. */
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

/* This session has leased messages of the topic, whose hash is given. */
void
outbox_claimers_note_topic(const text *namespace, const text *topic, uint64 hash,
						   TimestampTz now)
{
	OutboxClaimers *claimers = outbox_shmem_claimers();
	OutboxTopicClaim *claim;
	OutboxTopicClaim new;
	bool		same;

	if (claimers == NULL)
		return;
	claim = &topic_places(claimers)[hash % claimers->ntopics];
	/* looked at without the lock: at worst it is written, or not, by mistake */
	same = claim->hash == hash && claim->dbid == MyDatabaseId;
	if (same && claim->claimer.at > now - TOPIC_USECS)
		return;
	describe_session(&new.claimer, now);
	outbox_claimers_clip(new.namespace, sizeof(new.namespace), namespace);
	outbox_claimers_clip(new.topic, sizeof(new.topic), topic);
	SpinLockAcquire(&claim->mutex);
	claim->dbid = MyDatabaseId;
	claim->hash = hash;
	claim->claimer = new.claimer;
	memcpy(claim->namespace, new.namespace, sizeof(claim->namespace));
	memcpy(claim->topic, new.topic, sizeof(claim->topic));
	SpinLockRelease(&claim->mutex);
}

/* ---------------------------------------------------------------------- */
/* Reading                                                                */
/* ---------------------------------------------------------------------- */

int
outbox_claimers_owner_places(void)
{
	OutboxClaimers *claimers = outbox_shmem_claimers();

	return claimers == NULL ? 0 : claimers->nowners;
}

int
outbox_claimers_topic_places(void)
{
	OutboxClaimers *claimers = outbox_shmem_claimers();

	return claimers == NULL ? 0 : claimers->ntopics;
}

/* Copy an entry; false if it is none, or another database's. */
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
