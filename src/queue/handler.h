/*
 * handler.h
 *	  Topics that are served inside the database.
 */
#ifndef OUTBOX_HANDLER_H
#define OUTBOX_HANDLER_H

#include "postgres.h"

#include "nodes/pg_list.h"

/* A row of outbox.handlers. */
typedef struct OutboxHandler
{
	int64		lane;
	text	   *namespace;
	text	   *topic;
	char	   *function;		/* with its argument types, qualified */
	char	   *role;
	int			batch_size;
	int			lease_seconds;
} OutboxHandler;

extern void outbox_handler_init(void);
extern void outbox_handler_forget(void);
extern List *outbox_handlers(void);
extern bool outbox_handler_serves(int64 lane, const text *topic);

extern OutboxHandler *outbox_handler_copy(const OutboxHandler *handler);

extern void outbox_handler_add(const OutboxHandler *handler);
extern bool outbox_handler_remove(const text *namespace, const text *topic);

extern bool outbox_handler_role_connects(Oid roleid);
extern bool outbox_handler_role_allowed(Oid roleid);
extern bool outbox_function_may_be_called(Oid function, Oid roleid);

#endif							/* OUTBOX_HANDLER_H */
