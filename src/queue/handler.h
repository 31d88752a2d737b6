/*
 * handler.h
 *	  Topics and subscriptions that are served inside the database.
 */
#ifndef OUTBOX_HANDLER_H
#define OUTBOX_HANDLER_H

#include "postgres.h"

#include "nodes/pg_list.h"

#include "util/hash.h"

/* A row of outbox.handlers. */
typedef struct OutboxHandler
{
	int64		lane;			/* identifies it: key of the topic or of the
								 * subscription */
	text	   *namespace;
	text	   *topic;			/* for a subscription, the pattern */
	text	   *subscription;	/* NULL: it serves the topic */
	int32		subscriber;		/* its number; 0 if it does not exist */
	char	   *function;		/* with its argument types, qualified */
	char	   *role;			/* that has registered it */
	int			batch_size;
	int			lease_seconds;
	int			timeout_ms;		/* 0: as the setting says */
	char	   *owner;			/* of the function */
	/* the same as OIDs, which are valid in one database only: "home" */
	Oid			function_oid;
	Oid			role_oid;
	Oid			owner_oid;
	char	   *home;
} OutboxHandler;

extern void outbox_handler_init(void);
extern void outbox_handler_forget(void);
extern List *outbox_handlers(void);
extern bool outbox_handlers_of_topics(void);
extern bool outbox_handler_serves(int64 lane, const text *topic);
extern OutboxHandler *outbox_handler_of_subscription(const text *namespace,
													 const text *name);
extern const char *outbox_handler_domain(const OutboxHandler *handler);
extern void outbox_handler_filter(const OutboxHandler *handler,
								  OutboxLaneFilter *filter);
extern bool outbox_handler_is_paused(const OutboxHandler *handler);

extern OutboxHandler *outbox_handler_copy(const OutboxHandler *handler);

extern void outbox_handler_add(const OutboxHandler *handler);
extern bool outbox_handler_remove(const text *namespace, const text *topic,
								  const text *subscription);

extern int	outbox_handler_rewrite(bool (*rewrite) (OutboxHandler *handler));

#endif							/* OUTBOX_HANDLER_H */
