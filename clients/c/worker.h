/*
 * worker.h
 *	  What the files of outbox's workers share; not for their users.
 *
 * The thread that calls outbox_run claims, settles and renews, and is the only one
 * that changes what the worker has in hand.  The threads of slots run handlers; the
 * lock is for what both touch: a slot's message and result, and a message's outcome
 * and whether it is cancelled.
 */
#ifndef OUTBOX_WORKER_H
#define OUTBOX_WORKER_H

#include <pthread.h>
#include <signal.h>
#include "outbox.h"

#define TEXT_CHARACTERS 500

typedef struct message
{
	outbox_message public;		/* first, so that one is the other */
	struct outbox_worker *worker;
	PGresult   *row;			/* where its columns are */
	outbox_outcome outcome;		/* decided once */
	bool		cancelled;
	char		error[4 * TEXT_CHARACTERS + 1];
	char		state[6];		/* SQLSTATE of a query of the handler */
	char		extra[40];		/* reason or delay */
	double		began,
				until;			/* its lease lasts as long, or longer */
} message;

typedef struct handler
{
	const char *topic;
	outbox_handler call;
	void	   *data;
	bool		transaction;
	double		timeout;
	struct handler *next;
} handler;

typedef struct slot
{
	struct outbox_worker *worker;
	pthread_t	thread;
	PGconn	   *conn;			/* for transactions; the thread's alone */
	message    *message;		/* null: it is free */
	outbox_outcome result;		/* what the handler has returned; 0: it runs */
} slot;

/* A list of messages, or of strings that it owns */
typedef struct list
{
	void	  **at;
	int			count,
				size;
} list;

/* What fails, goes back or is released: a statement that waits to be sent */
typedef struct statement
{
	const char *sql;
	int			count;
	char	   *values[5];
} statement;

struct outbox_worker
{
	const char *conninfo;
	outbox_worker_options options;
	handler    *handlers;
	char		error[1024];
	int			pipe[2];
	pthread_mutex_t lock;
	pthread_cond_t changed;		/* a slot has got a message, or one is cancelled */
	slot	   *slots;
	list		waiting,		/* claimed, not begun */
				dropped,		/* no longer waiting; kept until the loop has seen to all */
				acks,
				statements,
				strays,			/* owners of claims without an answer */
				retried;		/* ids and streams, while draining */
	char		owner[37];
	char	   *topics;
	PGconn	   *claimer,
			   *settler;
	int			asked;			/* by the claim that is under way; 0: none is */
	double		claim_sent,
				claim_after,
				claim_delay,
				claimed_at,
				settle_after,
				settle_delay,
				acks_since,
				renew_at,
				deadline;
	int			target,
				handled;
	bool		full,
				acks_repeated,
				draining,
				idle,			/* nothing was in hand when the claim began */
				releasing,
				ending;			/* for the slots */
	volatile sig_atomic_t stops;	/* how often outbox_stop was called */
};

/* worker.c */
double		outbox_now(void);
double		outbox_pause(double *delay, bool stopping);
void		outbox_emit(outbox_worker *w, outbox_event event);
void		outbox_fatal(outbox_worker *w, const char *error);
void		outbox_wake(outbox_worker *w);

/* settle.c */
bool		outbox_repeatable(const PGresult *result, PGconn *conn);
void		outbox_tell(outbox_worker *w, const char *sql, int count, const char *const *values);
void		outbox_tell_judgement(outbox_worker *w, const message *m, outbox_outcome outcome,
								  const char *error, const char *extra);
void		outbox_release(outbox_worker *w);
void		outbox_release_owner(outbox_worker *w, const char *owner);
void		outbox_settle(outbox_worker *w);
void		outbox_forget_statements(outbox_worker *w);

/* slots.c */
void	   *outbox_allocate(void *old, size_t size);
void		outbox_push(list *l, void *item);
void	   *outbox_take(list *l, int i);
void		outbox_free_list(list *l, void (*free_item) (void *));
void		outbox_forget(void *m);
const char *outbox_key(const outbox_message *m);
int			outbox_running(outbox_worker *w);
int			outbox_how_many(outbox_worker *w);
void		outbox_leased(outbox_worker *w, list *leased);
const handler *outbox_handler_of(outbox_worker *w, const char *topic);
bool		outbox_judge(outbox_worker *w, message *m, outbox_outcome outcome, const char *error,
						 const char *extra);
void		outbox_cancel(outbox_worker *w, message *m);
void		outbox_lose(outbox_worker *w, message *m);
void	   *outbox_run_slot(void *argument);
void		outbox_start(outbox_worker *w);
void		outbox_collect(outbox_worker *w);

#endif
