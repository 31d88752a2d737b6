/*
 * handler_bind.h
 *	  What a handler is bound to: a function and a role, by identity.
 */
#ifndef OUTBOX_HANDLER_BIND_H
#define OUTBOX_HANDLER_BIND_H

#include "postgres.h"

#include "queue/handler.h"

/* Why a handler cannot be called. */
typedef enum OutboxHandlerProblem
{
	OUTBOX_HANDLER_FINE,
	OUTBOX_HANDLER_UNBOUND,		/* comes from another database */
	OUTBOX_HANDLER_NO_ROLE,
	OUTBOX_HANDLER_SUPERUSER,
	OUTBOX_HANDLER_NO_LOGIN,
	OUTBOX_HANDLER_NO_FUNCTION,
	OUTBOX_HANDLER_OTHER_OWNER,
	OUTBOX_HANDLER_NO_RIGHT,
	OUTBOX_HANDLER_NO_SUBSCRIPTION
} OutboxHandlerProblem;

extern bool outbox_role_exists(Oid roleid);
extern bool outbox_handler_role_connects(Oid roleid);
extern bool outbox_handler_role_allowed(Oid roleid);
extern bool outbox_function_may_be_called(Oid function, Oid roleid);
extern bool outbox_function_fits(Oid function);

extern bool outbox_handler_is_at_home(const OutboxHandler *handler);
extern void outbox_handler_bind(OutboxHandler *handler, Oid function,
								Oid roleid);
extern OutboxHandlerProblem outbox_handler_check(const OutboxHandler *handler,
												 Oid *function);
extern bool outbox_handler_find_binding(const OutboxHandler *handler,
										Oid *function, Oid *roleid);
extern const char *outbox_handler_problem_text(OutboxHandlerProblem problem);
extern int	outbox_handler_problem_code(OutboxHandlerProblem problem);
extern void outbox_handlers_bind(void);

#endif							/* OUTBOX_HANDLER_BIND_H */
