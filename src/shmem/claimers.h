/*
 * claimers.h
 *	  Which sessions have claimed, for which owners and from which topics, and
 *	  what the owners have done.
 */
#ifndef OUTBOX_CLAIMERS_H
#define OUTBOX_CLAIMERS_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "storage/spin.h"
#include "utils/uuid.h"

#define OUTBOX_HOST_SIZE 64

/* Names of topics and namespaces are truncated to this size. */
#define OUTBOX_CLAIMED_NAME_SIZE 128

/* A session that has claimed, and when. */
typedef struct OutboxClaimer
{
	TimestampTz at;
	int			pid;			/* 0: none */
	char		application[NAMEDATALEN];
	char		host[OUTBOX_HOST_SIZE];
} OutboxClaimer;

/* What an owner has done since its entry was made. */
typedef struct OutboxOwnerWork
{
	TimestampTz since;
	TimestampTz ended_at;		/* when it last ended a message; 0: never */
	int64		claims;			/* calls that got messages */
	int64		claimed;		/* messages */
	int64		ended;			/* by ack, nack or fail */
	int64		released;
	int64		service_usecs;	/* from claim to end, of those that have ended */
} OutboxOwnerWork;

/* The last claim for an owner. */
typedef struct OutboxOwnerClaim
{
	Oid			dbid;
	pg_uuid_t	owner;
	OutboxClaimer claimer;
	OutboxOwnerWork work;
} OutboxOwnerClaim;

/* How many owners with the same hash there is room for. */
#define OUTBOX_OWNER_WAYS 4

typedef struct OutboxOwnerSet
{
	slock_t		mutex;
	OutboxOwnerClaim claims[OUTBOX_OWNER_WAYS];
} OutboxOwnerSet;

/* The last claim from a topic of the queue, or from a subscription. */
typedef struct OutboxTopicClaim
{
	slock_t		mutex;
	Oid			dbid;
	uint64		hash;
	OutboxClaimer claimer;
	char		namespace[OUTBOX_CLAIMED_NAME_SIZE];
	bool		is_subscription;
	char		name[OUTBOX_CLAIMED_NAME_SIZE]; /* the topic, or subscription */
} OutboxTopicClaim;

/* The two tables, in the block of shared memory. */
typedef struct OutboxClaimers
{
	int			nsets;
	int			ntopics;
	Size		topics;			/* offset from here */
	OutboxOwnerSet sets[FLEXIBLE_ARRAY_MEMBER];
} OutboxClaimers;

extern Size outbox_claimers_size(Size budget);
extern void outbox_claimers_init(OutboxClaimers *claimers, Size budget);

extern void outbox_claimers_clip(char *name, Size size, const text *value);
extern void outbox_claimers_note_owner(const pg_uuid_t *owner, int nclaimed,
									   TimestampTz now);
extern void outbox_claimers_note_ended(const pg_uuid_t *owner, int nended,
									   int nreleased, int64 service_usecs,
									   TimestampTz now);
extern void outbox_claimers_note_topic(const text *namespace, const text *name,
									   bool is_subscription, uint64 hash,
									   TimestampTz now);

extern int	outbox_claimers_owner_places(void);
extern int	outbox_claimers_topic_places(void);
extern bool outbox_claimers_read_owner(int place, OutboxOwnerClaim *claim);
extern bool outbox_claimers_read_topic(int place, OutboxTopicClaim *claim);

#endif							/* OUTBOX_CLAIMERS_H */
