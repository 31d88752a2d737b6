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
	char	   *role;			/* who has registered it */
	int			batch_size;
	int			lease_seconds;
	int			timeout_ms;		/* 0: as the setting says */
	char	   *owner;			/* of the function */
	/* the same as OIDs, which mean something in one database only: "home" */
	Oid			function_oid;
	Oid			role_oid;
	Oid			owner_oid;
	char	   *home;
} OutboxHandler;

extern void outbox_handler_init(void);
extern void outbox_handler_forget(void);
extern List *outbox_handlers(void);
extern bool outbox_handler_serves(int64 lane, const text *topic);

extern OutboxHandler *outbox_handler_copy(const OutboxHandler *handler);

extern void outbox_handler_add(const OutboxHandler *handler);
extern bool outbox_handler_remove(const text *namespace, const text *topic);

extern int	outbox_handler_rewrite(bool (*rewrite) (OutboxHandler *handler));

#endif							/* OUTBOX_HANDLER_H */
