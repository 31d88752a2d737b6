/*
 * subscriber.h
 *	  Subscriptions, and which of them a publication goes to.
 */
#ifndef OUTBOX_SUBSCRIBER_H
#define OUTBOX_SUBSCRIBER_H

#include "postgres.h"

#include "access/transam.h"
#include "utils/jsonb.h"

/* The state of a subscription. */
typedef enum OutboxSubscriberState
{
	OUTBOX_SUBSCRIBED = 0,
	OUTBOX_STARTING = 1,		/* not all it starts with is delivered yet */
	OUTBOX_UNSUBSCRIBED = 2
} OutboxSubscriberState;

/* A row of outbox.subscribers. */
typedef struct OutboxSubscriber
{
	int32		id;				/* hash key; never reused */
	OutboxSubscriberState state;
	text	   *namespace;
	text	   *name;
	int			npatterns;
	text	  **patterns;
	Jsonb	   *filter;			/* or NULL */
	bool		drops;			/* unsubscribed: its messages are dropped */
} OutboxSubscriber;

/* A list of subscriptions. */
typedef struct OutboxSubscriberList
{
	const OutboxSubscriber **subscribers;	/* by their ids */
	int			n;
} OutboxSubscriberList;

extern void outbox_subscriber_init(void);
extern void outbox_subscribers_load(void);
extern int32 outbox_subscriber_find(const text *namespace, const text *name);
extern const OutboxSubscriber *outbox_subscriber_get(int32 id);
extern const OutboxSubscriber *outbox_subscriber_get_latest(int32 id);
extern FullTransactionId outbox_subscribers_horizon(void);
extern const OutboxSubscriber *outbox_subscriber_named(const text *namespace,
													   const text *name);
extern void outbox_subscribers_named(const text *namespace, const text *name,
									 int32 **ids, int *nids);
extern void outbox_subscribers_of(const text *namespace, const text *topic,
								  const Jsonb *headers,
								  OutboxSubscriberList *list);

#endif							/* OUTBOX_SUBSCRIBER_H */
