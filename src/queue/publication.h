/*
 * publication.h
 *	  Publications that are kept, and their pending deliveries.
 */
#ifndef OUTBOX_PUBLICATION_H
#define OUTBOX_PUBLICATION_H

#include "postgres.h"

#include "executor/tuptable.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "table/table.h"

/*
 * A publication of a stream with more pending publications than this before it
 * waits for them in all of its subscriptions; otherwise only in those where it
 * must.
 */
#define OUTBOX_MANY_EXPANSIONS 1000

/* A publication.  Absent values are NULL. */
typedef struct OutboxPublication
{
	int64		seq;
	TimestampTz published_at;
	pg_uuid_t	published_id;
	bool		kept;			/* for future subscriptions and replay */
	bool		given;			/* its id was given by the publisher */
	int32		priority;
	const TimestampTz *due_time;
	const TimestampTz *expires_at;
	const pg_uuid_t *tenant_id;
	const pg_uuid_t *stream_id;
	const text *namespace;
	const text *topic;
	const text *correlation_id;
	const text *dedupe_key;
	const Jsonb *headers;
	const text *payload;
	int32	   *subscribers;	/* that it is delivered to */
	int			nsubscribers;
} OutboxPublication;

extern void outbox_publication_add(OutboxPublication **publications, int n);
extern bool outbox_publication_read(TimestampTz published_at,
									const pg_uuid_t *published_id,
									OutboxPublication *publication);
extern bool outbox_publication_exists(TimestampTz published_at,
									  const pg_uuid_t *published_id);
extern bool outbox_publication_is_kept(const pg_uuid_t *published_id);
extern const text *outbox_publication_payload(TupleTableSlot *message);

/* A row of outbox.expansions. */
typedef struct OutboxExpansion
{
	int64		seq;
	TimestampTz published_at;
	pg_uuid_t	published_id;
	bool		has_stream;
	pg_uuid_t	stream;
	int32	   *subscribers;	/* in order */
	int			nsubscribers;
} OutboxExpansion;

extern void outbox_expansions_open(OutboxTable *table);
extern void outbox_expansion_read(TupleTableSlot *row, OutboxExpansion *expansion);
extern bool outbox_expansion_shorten(OutboxTable *table, TupleTableSlot *row,
									 const int32 *subscribers, int nsubscribers);
extern void outbox_expansion_add(const OutboxPublication *publication, int64 seq,
								 const pg_uuid_t *stream, const int32 *subscribers,
								 int nsubscribers);
extern void outbox_expansions_apart(const pg_uuid_t *stream, const int32 *subscribers,
									int nsubscribers, bool *has,
									TransactionId *writer);
extern int	outbox_expansions_before(const pg_uuid_t *stream, int64 seq,
									 int32 **subscribers, int *nsubscribers,
									 TransactionId *writer);

#endif							/* OUTBOX_PUBLICATION_H */
