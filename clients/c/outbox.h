/*
 * outbox.h
 *	  A client of outbox for libpq: functions that enqueue in the caller's
 *	  transaction, and workers that run handlers in threads.
 *
 * ../README.md is the design that the clients have in common, and says what the
 * options are.  Link with -lpq -pthread.
 */
#ifndef OUTBOX_CLIENT_H
#define OUTBOX_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <libpq-fe.h>

/* The arguments of outbox.enqueue beside topic and payload, as text.  Null is not sent. */
typedef struct outbox_options
{
	const char *correlation_id;
	const char *due_time;
	const char *namespace;
	const char *tenant_id;
	const char *dedupe_key;
	const char *stream_id;
	const char *headers;		/* a JSON object */
	const char *expires_at;
	const char *message_id;
	const char *dedupe_for;
	const char *on_duplicate;
	const char *priority;
	const char *traceparent;	/* null: that of the environment */
} outbox_options;

/* A message of a batch */
typedef struct outbox_new
{
	const char *topic;
	const char *payload;
	outbox_options options;
} outbox_new;

/* What became of it: enqueued and outcome, or deliveries */
typedef struct outbox_result
{
	char		message_id[37];
	bool		enqueued;
	char		outcome[16];
	int			deliveries;
} outbox_result;

/*
 * Each answers whether it has succeeded; if not, the connection has the error.
 * options may be null, and id, too.
 */
bool		outbox_enqueue(PGconn *conn, const char *topic, const char *payload,
						   const outbox_options *options, char id[37]);
bool		outbox_publish(PGconn *conn, const char *topic, const char *payload,
						   const outbox_options *options, char id[37]);
bool		outbox_enqueue_batch(PGconn *conn, const outbox_new *messages, size_t count,
								 outbox_result *results);
bool		outbox_publish_batch(PGconn *conn, const outbox_new *messages, size_t count,
								 outbox_result *results);

/* For tests: all waiting messages become due that much earlier; how many, or -1. */
int			outbox_advance(PGconn *conn, double seconds);

/* A claimed message: the columns of outbox.message, as text.  Null is null. */
typedef struct outbox_message
{
	const char *id,
			   *message_id,
			   *namespace,
			   *topic,
			   *payload,
			   *headers,
			   *correlation_id,
			   *tenant_id,
			   *dedupe_key,
			   *stream_id,
			   *attempts,
			   *retry_count,
			   *created_at,
			   *due_time,
			   *locked_until,
			   *owner_token,
			   *subscription,
			   *published_id,
			   *priority,
			   *traceparent;
} outbox_message;

/* What a handler returns */
typedef enum outbox_outcome
{
	OUTBOX_ACK = 1,				/* it is done */
	OUTBOX_RETRY,				/* it goes back, for the server's backoff */
	OUTBOX_FAIL,				/* it can never be done */
	OUTBOX_LOST					/* another worker has it */
} outbox_outcome;

/*
 * conn is null, but for a handler with transaction: then it is in a transaction,
 * in which the message is acknowledged if the handler returns OUTBOX_ACK.
 */
typedef outbox_outcome (*outbox_handler) (outbox_message *message, PGconn *conn, void *data);

/*
 * To be returned by handlers; text is recorded with the message.  A reason of 0 is
 * none.  If after is negative, the server's backoff decides.
 */
outbox_outcome outbox_permanent(outbox_message *message, const char *text, int reason);
outbox_outcome outbox_retry(outbox_message *message, const char *text, double after);

/* To be returned when a query has failed: its SQLSTATE is recorded, and obeyed. */
outbox_outcome outbox_failed(outbox_message *message, const PGresult *result);

/* Is the message cancelled?  outbox_sleep waits for that, at most so long. */
bool		outbox_cancelled(outbox_message *message);
bool		outbox_sleep(outbox_message *message, double seconds);

/* What a hook is called with; ../README.md says which fields each event has. */
typedef struct outbox_event
{
	const char *name;
	const outbox_message *message;
	const char *outcome;
	double		seconds;
	int			count,
				asked,
				lost;
	const char *error;
} outbox_event;

/* What is zero has its default. */
typedef struct outbox_worker_options
{
	int			concurrency,
				lease_seconds,
				wait_ms,
				max_batch,
				max_attempts;
	double		shutdown_seconds;
	const char *subscription,
			   *namespace,
			   *tenant_id;
	void		(*hook) (const outbox_event *event, void *data);
	outbox_outcome (*wrap) (outbox_message *message, PGconn *conn, outbox_handler handler,
							void *handler_data, void *data);
	void	   *data;			/* for hook and wrap */
} outbox_worker_options;

typedef struct outbox_worker outbox_worker;

/* The strings must outlive the worker.  options may be null. */
outbox_worker *outbox_worker_new(const char *conninfo, const outbox_worker_options *options);

/* If handlers still run when outbox_run has returned, this frees nothing. */
void		outbox_worker_free(outbox_worker *worker);

/* timeout_seconds is 0 for none.  The topic "*" stands for all others. */
void		outbox_handle(outbox_worker *worker, const char *topic, outbox_handler handler,
						  void *data, bool transaction, double timeout_seconds);

/* Work until SIGTERM, SIGINT or outbox_stop.  False: outbox_worker_error says why. */
bool		outbox_run(outbox_worker *worker);

/* For tests: work until nothing is due; how many messages were handled, or -1. */
int			outbox_drain(outbox_worker *worker);

/* Begin to end outbox_run; from any thread or signal handler.  Twice: do not wait. */
void		outbox_stop(outbox_worker *worker);
const char *outbox_worker_error(const outbox_worker *worker);

#endif
