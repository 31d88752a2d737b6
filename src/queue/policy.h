/*
 * policy.h
 *	  What outbox.topics says of a topic.
 */
#ifndef OUTBOX_POLICY_H
#define OUTBOX_POLICY_H

#include "postgres.h"

#include "table/catalog.h"
#include "util/hash.h"

/* Settings of a topic, or the general ones where it has none. */
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
} OutboxPolicy;

/* How long finished messages are kept, besides a number of seconds. */
#define OUTBOX_KEEP_DEFAULT (-2)	/* as outbox.[dead_]retention says */
#define OUTBOX_KEEP_FOREVER (-1)
#define OUTBOX_KEEP_NOT 0

/* The longest that is told from others: 68 years. */
#define OUTBOX_KEEP_MAX 2147483640

/* Added to the class of what is in the archive and has no partition. */
#define OUTBOX_KEEP_UNSORTED (-2147483645)

extern void outbox_policy_init(void);
extern void outbox_policy_forget(void);
extern void outbox_policy_get(const OutboxStore *store, const text *namespace,
							  const text *topic, OutboxPolicy *policy);
extern bool outbox_policy_topic_is_paused(OutboxStoreKind kind, int64 topic_key);
extern void outbox_policy_paused(OutboxStoreKind kind, OutboxTopicKeys *topics);

#endif							/* OUTBOX_POLICY_H */
