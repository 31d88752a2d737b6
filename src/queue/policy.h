/*
 * policy.h
 *	  Policies of topics: the settings in outbox.topics.
 */
#ifndef OUTBOX_POLICY_H
#define OUTBOX_POLICY_H

#include "postgres.h"

#include "executor/tuptable.h"

#include "table/catalog.h"
#include "util/hash.h"

/* The settings of a topic, or the server's where it has none. */
typedef struct OutboxPolicy
{
	bool		paused;
	int			max_attempts;
	double		backoff_base;	/* microseconds */
	double		backoff_max;
	bool		backoff_jitter;
	int			retention;		/* seconds; OUTBOX_KEEP_... */
	int			dead_retention;
	bool		check_dedupe_tenant;
	int			publish_retention;	/* seconds; 0: not kept, -1: forever */
} OutboxPolicy;

/* How long finished messages are kept; other values are numbers of seconds. */
#define OUTBOX_KEEP_DEFAULT (-2)	/* as outbox.[dead_]retention says */
#define OUTBOX_KEEP_FOREVER (-1)
#define OUTBOX_KEEP_NOT 0

/* The longest finite retention: 68 years. */
#define OUTBOX_KEEP_MAX 2147483640

/* Added to the class of messages in the archive's unsorted partition. */
#define OUTBOX_KEEP_UNSORTED (-2147483645)

extern void outbox_policy_init(void);
extern void outbox_policy_forget(void);
extern void outbox_policy_get(const OutboxStore *store, const text *namespace,
							  const text *topic, OutboxPolicy *policy);
extern int	outbox_policy_priority(const text *namespace, const text *topic);
extern void outbox_policy_of(const OutboxStore *store, TupleTableSlot *message,
							 OutboxPolicy *policy);
extern bool outbox_policy_topic_is_paused(OutboxStoreKind kind, int64 topic_key);
extern bool outbox_policy_subscriber_is_paused(int32 id);
extern void outbox_policy_paused(OutboxStoreKind kind, OutboxTopicKeys *topics);

#endif							/* OUTBOX_POLICY_H */
