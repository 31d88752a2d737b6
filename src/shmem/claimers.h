/*
 * claimers.h
 *	  Which sessions have claimed, for which owners and from which topics.
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

/* The last claim for an owner. */
typedef struct OutboxOwnerClaim
{
	slock_t		mutex;
	Oid			dbid;
	pg_uuid_t	owner;
	OutboxClaimer claimer;
} OutboxOwnerClaim;

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
	int			nowners;
	int			ntopics;
	Size		topics;			/* offset from here */
	OutboxOwnerClaim owners[FLEXIBLE_ARRAY_MEMBER];
} OutboxClaimers;

extern Size outbox_claimers_size(Size budget);
extern void outbox_claimers_init(OutboxClaimers *claimers, Size budget);

extern void outbox_claimers_clip(char *name, Size size, const text *value);
extern void outbox_claimers_note_owner(const pg_uuid_t *owner, TimestampTz now);
extern void outbox_claimers_note_topic(const text *namespace, const text *name,
									   bool is_subscription, uint64 hash,
									   TimestampTz now);

extern int	outbox_claimers_owner_places(void);
extern int	outbox_claimers_topic_places(void);
extern bool outbox_claimers_read_owner(int place, OutboxOwnerClaim *claim);
extern bool outbox_claimers_read_topic(int place, OutboxTopicClaim *claim);

#endif							/* OUTBOX_CLAIMERS_H */
