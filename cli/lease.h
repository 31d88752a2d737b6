/*
 * lease.h
 *		The calls of a worker
 */
#ifndef CLI_LEASE_H
#define CLI_LEASE_H

#include "libpq-fe.h"

/* What a claim asks for; null is what claim itself takes for it. */
typedef struct ClaimRequest
{
	const char *owner;
	int			lease_seconds;
	const char *namespace;
	const char *topics;			/* the text of an array */
	const char *subscription;
	const char *tenant;
	int			wait_ms;
} ClaimRequest;

/* How a call has ended. */
typedef enum CallResult
{
	CALL_DONE,
	CALL_LOST,					/* the lease was lost */
	CALL_CANCELED,				/* by us, or by a timeout */
	CALL_AGAIN,					/* not now: the connection, a conflict */
	CALL_FAILED					/* never, and reported */
} CallResult;

typedef enum Outcome
{
	OUTCOME_ACKED,
	OUTCOME_NACKED,
	OUTCOME_FAILED,
	OUTCOME_RELEASED,
	OUTCOME_LOST
} Outcome;

extern bool send_claim(const ClaimRequest *request);
extern CallResult take_claim(PGresult **messages);
extern void cancel_claim(void);
extern CallResult settle(Outcome outcome, const char *owner, const char *id, const char *attempt,
						 const char *error, const char *delay);
extern CallResult renew(int count, char **owners, char **ids, char **attempts, int lease_seconds, bool *renewed);
extern void release_all(const char *owner);
extern bool reconnect(void);

#endif							/* CLI_LEASE_H */
