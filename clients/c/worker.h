/*
 * worker.h
 *	  What the two files of outbox's workers share; not for their users.
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

typedef struct message
{
	outbox_message public;		/* first, so that one is the other */
	struct outbox_worker *worker;
	PGresult   *row;			/* where its columns are */
	outbox_outcome outcome;		/* decided once */
	bool		cancelled;
	char		error[501];
	char		state[6];		/* SQLSTATE of a query of the handler */
	char		extra[40];		/* reason or delay */
	double		began;
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

typedef struct list
{
	message   **at;
	int			count,
				size;
} list;

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
				acks;
	char		owner[37];
	char	   *topics;
	PGconn	   *claimer,
			   *settler;
	int			asked;			/* by the claim that is under way; 0: none is */
	double		claim_after,
				claim_delay,
				claimed_at,
				acks_since,
				renew_at,
				deadline;
	int			target,
				handled;
	bool		full,
				draining,
				idle,			/* nothing was in hand when the claim began */
				ending;			/* for the slots */
	volatile sig_atomic_t stops;	/* how often outbox_stop was called */
};

/* worker.c */
double		outbox_now(void);
void	   *outbox_allocate(void *old, size_t size);
void		outbox_emit(outbox_worker *w, outbox_event event);
PGresult   *outbox_call(outbox_worker *w, bool *repeated, const char *sql, int count,
						const char *const *values);
void		outbox_wake(outbox_worker *w);

/* slots.c */
void		outbox_push(list *l, message *m);
message    *outbox_take(list *l, int i);
void		outbox_forget(message *m);
char	   *outbox_array(message *const *messages, int count, bool attempts);
int			outbox_running(outbox_worker *w);
int			outbox_how_many(outbox_worker *w);
const handler *outbox_handler_of(outbox_worker *w, const char *topic);
void		outbox_judge(outbox_worker *w, message *m, outbox_outcome outcome, const char *error);
void		outbox_cancel(outbox_worker *w, message *m);
void	   *outbox_run_slot(void *argument);
void		outbox_start(outbox_worker *w);
void		outbox_collect(outbox_worker *w);

#endif
