/*
 * publish.c
 *	  Messages for all subscriptions.
 *
 * A publication becomes one message, a delivery, for each subscription that
 * matches it at the time of the call.  The deliveries of a call are enqueued
 * together.
 *
 * Some deliveries are made later, in the background (outbox._expand): those of a
 * publication with many subscriptions; in a stream, those to subscriptions that must
 * still get an earlier publication of the stream; and those to subscriptions that must
 * still get what was published in the stream before they existed.  What remains to be
 * done is a row of outbox.expansions.  A subscription of the last kind has rows of its
 * own there, in the stream of its deliveries, until it has got them all.
 *
 * Three rules guarantee that no delivery is missed or made twice while
 * subscriptions come and go:
 *
 * - The publishing transaction gets its id before it reads the subscriptions.
 *	 So only transactions that had an id when a subscription was committed can
 *	 publish without knowing it; when these have ended, all that was published
 *	 without it is visible (outbox._replay).
 * - The ids of deliveries are derived from the publication and the subscriber,
 *	 and are unique in the queue.
 * - A subscription that is created again after unsubscribing is another
 *   subscriber.
 *
 * Publications in a stream take turns, as messages do.  There is a turn in the
 * stream of each of the subscriptions, and one for the stream's rows in
 * outbox.expansions; a lock on the stream makes it possible to check all of
 * them and to write at one moment, and no process waits for a transaction
 * while it holds this lock.  Lock order: dedupe keys, the lock on a stream,
 * then what enqueue locks.
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "core/cause.h"
#include "core/enqueue.h"
#include "core/publish.h"
#include "outbox.h"
#include "queue/dedupe.h"
#include "queue/policy.h"
#include "queue/publication.h"
#include "queue/stream.h"
#include "queue/subscriber.h"
#include "shmem/wake.h"
#include "table/catalog.h"
#include "table/keylock.h"
#include "table/table.h"
#include "util/hash.h"
#include "util/uuid.h"

/*
 * Publications for more subscriptions than this are delivered in the
 * background.
 */
#define MAX_DIRECT 8

/* Larger payloads are stored once for all deliveries. */
#define MAX_COPIED_PAYLOAD 2048

/* State of one publication. */
typedef struct Publisher
{
	OutboxMessage *message;
	OutboxPublication publication;
	bool		recorded;		/* it has a row in publications */
	int			ndirect;		/* subscribers to deliver to now: the first
								 * ones */
	int32	   *later;			/* subscribers to deliver to later */
	int			nlater;
	int32	   *apart;			/* and each of these behind its own backlog */
	int			napart;
} Publisher;

/* What must be known about a stream to publish in it. */
typedef struct Turn
{
	const pg_uuid_t *stream;
	int32	   *waiting;		/* must still get something of it, in order */
	int			nwaiting;
	int			nexpansions;	/* number of these publications */
	int32	   *asked;			/* for these, has_backlog is known */
	bool	   *has_backlog;
	int			nasked;
	TransactionId writer;		/* a transaction that must end first */
} Turn;

/* Deliveries being made. */
typedef struct Deliveries
{
	OutboxMessage *messages;
	int			n;
	int			max;
} Deliveries;

/* ---------------------------------------------------------------------- */
/* Deliveries                                                             */
/* ---------------------------------------------------------------------- */

static bool
is_large(const OutboxPublication *publication)
{
	return VARSIZE_ANY_EXHDR(publication->payload) > MAX_COPIED_PAYLOAD;
}

static bool
shares_payload(const OutboxPublication *publication, int nsubscribers)
{
	return nsubscribers > 1 && is_large(publication);
}

/*
 * Add the delivery of a publication to one subscriber.  "shares": its payload is only
 * in the publication's row.
 *
 * That row is kept as long as a delivery refers to it, which costs an index entry in
 * the queue and one in history.  So only deliveries refer to it that need it for their
 * payload, or so that its id or dedupe key stays taken.
 */
static void
add_delivery(Deliveries *deliveries, const OutboxPublication *publication,
			 int32 subscriber, uint64 nonce, bool shares)
{
	OutboxMessage *added;

	Assert(subscriber > 0);
	if (deliveries->n == deliveries->max)
	{
		deliveries->max = Max(deliveries->max * 2, 16);
		deliveries->messages = deliveries->messages == NULL ?
			MemoryContextAllocHuge(CurrentMemoryContext,
								   deliveries->max * sizeof(OutboxMessage)) :
			repalloc_huge(deliveries->messages,
						  deliveries->max * sizeof(OutboxMessage));
	}
	added = &deliveries->messages[deliveries->n++];
	memset(added, 0, sizeof(OutboxMessage));
	added->topic = publication->topic;
	added->payload = shares ? cstring_to_text("") : publication->payload;
	added->namespace = publication->namespace;
	added->correlation_id = publication->correlation_id;
	added->headers = publication->headers;
	added->due_time = publication->due_time;
	added->expires_at = publication->expires_at;
	added->tenant_id = publication->tenant_id;
	added->priority = &publication->priority;
	added->subscriber = subscriber;
	added->published_id = &publication->published_id;
	if (shares || publication->given || publication->dedupe_key != NULL)
		added->published_at = &publication->published_at;
	if (publication->stream_id != NULL)
	{
		pg_uuid_t  *stream = palloc_object(pg_uuid_t);

		outbox_subscriber_stream(publication->stream_id, subscriber, stream);
		added->stream_id = stream;
	}
	outbox_delivery_id(&publication->published_id, subscriber, nonce,
					   &added->message_id);
}

static void
enqueue_deliveries(Deliveries *deliveries)
{
	if (deliveries->n > 0)
		outbox_enqueue(outbox_store(OUTBOX_QUEUE), deliveries->messages,
					   deliveries->n);
}

/*
 * Deliver publications, each of which has a row, to each of these subscribers;
 * returns the number of deliveries.  "nonce" is 0 unless this is a replay: the
 * ids of deliveries depend on it.
 */
int64
outbox_deliver(OutboxPublication *publications, int npublications,
			   const int32 *subscribers, int nsubscribers, uint64 nonce)
{
	Deliveries	deliveries = {NULL};

	/*
	 * what goes into one lane together, so that rows are inserted in large
	 * batches
	 */
	for (int k = 0; k < nsubscribers; k++)
	{
		CHECK_FOR_INTERRUPTS();
		for (int i = 0; i < npublications; i++)
			add_delivery(&deliveries, &publications[i], subscribers[k], nonce,
						 is_large(&publications[i]));
	}
	enqueue_deliveries(&deliveries);
	return deliveries.n;
}

/* ---------------------------------------------------------------------- */
/* Finding subscribers                                                    */
/* ---------------------------------------------------------------------- */

/* Fill in the publication for a message, which must have its message_id. */
static void
set_publication(Publisher *publisher, OutboxMessage *message, TimestampTz now)
{
	OutboxPublication *publication = &publisher->publication;
	OutboxPolicy policy;

	outbox_policy_get(outbox_store(OUTBOX_QUEUE), message->namespace,
					  message->topic, &policy);
	memset(publisher, 0, sizeof(Publisher));
	publisher->message = message;
	publication->published_at = now;
	publication->published_id = message->message_id;
	publication->given = message->given_id != NULL;
	publication->kept = policy.publish_retention != 0;
	publication->priority = message->priority != NULL ? *message->priority :
		outbox_policy_priority(message->namespace, message->topic);
	publication->due_time = message->due_time;
	publication->expires_at = message->expires_at;
	publication->tenant_id = message->tenant_id;
	publication->stream_id = message->stream_id;
	publication->namespace = message->namespace;
	publication->topic = message->topic;
	publication->correlation_id = message->correlation_id;
	publication->dedupe_key = message->dedupe_key;
	publication->headers = message->headers;
	publication->payload = message->payload;
}

/* Find out which subscribers must still get earlier publications of the stream. */
static void
ask_for_backlogs(Turn *turn, const OutboxSubscriberList *list)
{
	bool		known = turn->nasked == list->n;

	for (int i = 0; i < list->n && known; i++)
		known = turn->asked[i] == list->subscribers[i]->id;
	if (known)
		return;
	turn->nasked = list->n;
	turn->asked = palloc_array(int32, list->n + 1);
	turn->has_backlog = palloc0(list->n + 1);
	for (int i = 0; i < list->n; i++)
		turn->asked[i] = list->subscribers[i]->id;
	outbox_expansions_apart(turn->stream, turn->asked, list->n, turn->has_backlog,
							&turn->writer);
}

/*
 * Divide the subscribers into those that get it now and those that get it later.
 * "turn" is that of its stream; NULL if it has none.
 *
 * A subscription can be starting for as long as any transaction is open.  What it
 * must wait for is kept apart, so that the others need not look at it.
 */
static void
find_subscribers(Publisher *publisher, Turn *turn)
{
	OutboxPublication *publication = &publisher->publication;
	OutboxSubscriberList list;
	bool		all_later;

	outbox_subscribers_of(publication->namespace, publication->topic,
						  publication->headers, &list);
	publication->subscribers = palloc_array(int32, list.n + 1);
	publisher->later = palloc_array(int32, list.n + 1);
	publisher->apart = palloc_array(int32, list.n + 1);
	publisher->ndirect = publisher->nlater = publisher->napart = 0;
	all_later = list.n > MAX_DIRECT ||
		(turn != NULL && turn->nexpansions > OUTBOX_MANY_EXPANSIONS);
	if (turn != NULL)
		ask_for_backlogs(turn, &list);
	for (int i = 0; i < list.n; i++)
	{
		const OutboxSubscriber *subscriber = list.subscribers[i];

		if (turn != NULL &&
			(subscriber->state == OUTBOX_STARTING || turn->has_backlog[i]))
			publisher->apart[publisher->napart++] = subscriber->id;
		else if (all_later ||
				 (turn != NULL &&
				  outbox_int32s_have(turn->waiting, turn->nwaiting, subscriber->id)))
			publisher->later[publisher->nlater++] = subscriber->id;
		else
			publication->subscribers[publisher->ndirect++] = subscriber->id;
	}
	/* all subscribers, those that get it now first */
	publication->nsubscribers = publisher->ndirect;
	for (int i = 0; i < publisher->nlater; i++)
		publication->subscribers[publication->nsubscribers++] = publisher->later[i];
	for (int i = 0; i < publisher->napart; i++)
		publication->subscribers[publication->nsubscribers++] = publisher->apart[i];
	Assert(publication->nsubscribers == list.n);
	publisher->recorded = publication->kept || publisher->ndirect < list.n ||
		publication->dedupe_key != NULL || publication->given ||
		shares_payload(publication, list.n);
}

/* ---------------------------------------------------------------------- */
/* Publishing                                                             */
/* ---------------------------------------------------------------------- */

/* Record the deliveries that must be made later, of a publication that was written. */
static void
write_expansions(const Publisher *publisher)
{
	const OutboxPublication *publication = &publisher->publication;

	if (publisher->nlater > 0)
		outbox_expansion_add(publication, publication->seq, publication->stream_id,
							 publisher->later, publisher->nlater);
	for (int i = 0; i < publisher->napart; i++)
	{
		pg_uuid_t	own;

		outbox_subscriber_stream(publication->stream_id, publisher->apart[i], &own);
		outbox_expansion_add(publication,
							 nextval_internal(outbox_catalog()->sequence, false), &own,
							 &publisher->apart[i], 1);
	}
	if (publisher->nlater + publisher->napart > 0)
		outbox_wake_note_worker();
}

/* Write publications whose subscribers are known, with their deliveries. */
static void
write_publications(Publisher *publishers, int n)
{
	OutboxPublication **recorded = palloc_array(OutboxPublication *, n + 1);
	Deliveries	deliveries = {NULL};
	int			nrecorded = 0;

	for (int i = 0; i < n; i++)
	{
		Publisher  *publisher = &publishers[i];
		OutboxPublication *publication = &publisher->publication;
		bool		shares = shares_payload(publication, publication->nsubscribers);

		Assert(publisher->recorded || !shares);
		Assert(publisher->ndirect + publisher->nlater + publisher->napart ==
			   publication->nsubscribers);
		Assert(publisher->recorded || publisher->ndirect == publication->nsubscribers);
		if (publisher->recorded)
		{
			publication->seq = nextval_internal(outbox_catalog()->sequence, false);
			recorded[nrecorded++] = publication;
		}
		for (int k = 0; k < publisher->ndirect; k++)
			add_delivery(&deliveries, publication, publication->subscribers[k], 0, shares);
	}
	outbox_publication_add(recorded, nrecorded);
	enqueue_deliveries(&deliveries);
	for (int i = 0; i < n; i++)
		write_expansions(&publishers[i]);
	if (deliveries.messages != NULL)
		pfree(deliveries.messages);
	pfree(recorded);
}

/*
 * The transaction in progress that publishes in this stream for one of these
 * subscribers; InvalidTransactionId if there is none.
 */
TransactionId
outbox_publish_writer(const pg_uuid_t *stream, const int32 *subscribers,
					  int nsubscribers)
{
	TransactionId writer = InvalidTransactionId;
	OutboxTable queue;

	outbox_store_open(&queue, outbox_store(OUTBOX_QUEUE));
	for (int i = 0; i < nsubscribers && !TransactionIdIsValid(writer); i++)
	{
		pg_uuid_t	own;

		CHECK_FOR_INTERRUPTS();
		outbox_subscriber_stream(stream, subscribers[i], &own);
		writer = outbox_stream_last_writer(&queue, &own);
	}
	outbox_table_close_unchanged(&queue);
	return writer;
}

/* Do two publications go to the same subscribers? */
static bool
same_subscribers(const OutboxPublication *a, const OutboxPublication *b)
{
	return a->nsubscribers == b->nsubscribers &&
		memcmp(a->subscribers, b->subscribers, a->nsubscribers * sizeof(int32)) == 0;
}

/*
 * Wait for the turn of publications of one stream, and find their subscribers.
 * On return the lock on the stream is held.
 */
static void
take_turn(Publisher *publishers, int n, bool *any_later)
{
	const pg_uuid_t *stream = publishers[0].publication.stream_id;
	uint64		hash = outbox_uuid_hash64(stream);
	Oid			relid = outbox_catalog()->expansions;

	for (;;)
	{
		Turn		turn = {.stream = stream};
		TimestampTz now;

		CHECK_FOR_INTERRUPTS();
		outbox_keylock_acquire_long(relid, hash);
		/* the same for all, so that they go into one partition */
		now = GetCurrentTimestamp();
		turn.nexpansions = outbox_expansions_before(stream, PG_INT64_MAX, &turn.waiting,
													&turn.nwaiting, &turn.writer);
		*any_later = false;
		for (int i = 0; i < n && !TransactionIdIsValid(turn.writer); i++)
		{
			OutboxPublication *publication = &publishers[i].publication;

			publication->published_at = now;
			find_subscribers(&publishers[i], &turn);
			*any_later |= publishers[i].ndirect < publication->nsubscribers;
			/* most have the same subscribers, for which this is known by now */
			if (!TransactionIdIsValid(turn.writer) &&
				(i == 0 ||
				 !same_subscribers(publication, &publishers[i - 1].publication)))
				turn.writer = outbox_publish_writer(stream, publication->subscribers,
													publication->nsubscribers);
		}
		if (!TransactionIdIsValid(turn.writer))
			return;
		outbox_keylock_release_long(relid, hash);
		outbox_xact_wait(turn.writer);
	}
}

/* Publish publications of one stream. */
static void
publish_stream(Publisher *publishers, int n)
{
	uint64		hash = outbox_uuid_hash64(publishers[0].publication.stream_id);
	Oid			relid = outbox_catalog()->expansions;
	bool		any_later;
	int			next;

	/* all together, except where one must wait for another */
	for (int i = 0; i < n; i = next)
	{
		next = i == 0 ? n : i + 1;
		take_turn(&publishers[i], next - i, &any_later);
		if (any_later && next > i + 1)
			next = i + 1;
		write_publications(&publishers[i], next - i);
		outbox_keylock_release_long(relid, hash);
	}
}

static int
cmp_stream(const void *a, const void *b)
{
	const Publisher *pa = a;
	const Publisher *pb = b;
	int			cmp = outbox_uuid_cmp(pa->publication.stream_id,
									  pb->publication.stream_id);

	if (cmp == 0)
		cmp = pa->message < pb->message ? -1 : 1;
	return cmp;
}

static void
publish_streams(Publisher *publishers, int n)
{
	int			next;

	qsort(publishers, n, sizeof(Publisher), cmp_stream);
	for (int i = 0; i < n; i = next)
	{
		for (next = i + 1; next < n; next++)
		{
			if (!outbox_uuid_equal(publishers[i].publication.stream_id,
								   publishers[next].publication.stream_id))
				break;
		}
		publish_stream(&publishers[i], next - i);
	}
}

/* ---------------------------------------------------------------------- */
/* Keys                                                                   */
/* ---------------------------------------------------------------------- */

/* A dedupe key, or a given id, and the message that wants it. */
typedef struct KeyWanted
{
	pg_uuid_t	digest;
	OutboxMessage *message;
	bool		is_id;
} KeyWanted;

static int
cmp_key(const void *a, const void *b)
{
	const KeyWanted *ka = a;
	const KeyWanted *kb = b;
	int			cmp = (int) ka->is_id - (int) kb->is_id;

	if (cmp == 0)
		cmp = outbox_uuid_cmp(&ka->digest, &kb->digest);
	if (cmp == 0)
		cmp = ka->message < kb->message ? -1 : 1;
	return cmp;
}

/*
 * Take dedupe keys and then given ids, each in one order.  A publication whose
 * key is taken gets the id of the publication that has the key, and its given
 * id is not used; a given id that is taken is an error.
 */
static void
take_keys(OutboxMessage *messages, int nmessages)
{
	KeyWanted  *keys = MemoryContextAllocHuge(CurrentMemoryContext,
											  (Size) (2 * nmessages + 1) * sizeof(KeyWanted));
	int			n = 0;

	for (int i = 0; i < nmessages; i++)
	{
		OutboxMessage *message = &messages[i];

		if (message->dedupe_key != NULL)
		{
			keys[n] = OUTBOX_MAKE(KeyWanted,.message = message);
			outbox_publication_digest(message->namespace, message->topic,
									  message->dedupe_key, &keys[n++].digest);
		}
		if (message->given_id != NULL)
		{
			keys[n] = OUTBOX_MAKE(KeyWanted,.message = message,.is_id = true);
			outbox_publication_id_digest(message->given_id, &keys[n++].digest);
		}
	}
	qsort(keys, n, sizeof(KeyWanted), cmp_key);
	for (int i = 0; i < n; i++)
	{
		OutboxMessage *message = keys[i].message;
		OutboxKeyTake take = {
			.key = &keys[i].digest,
			.message_id = &message->message_id,
			.taken_for = keys[i].is_id ? NULL : message->dedupe_for,
			.is_kept = outbox_publication_is_kept
		};

		if (!message->enqueued || outbox_dedupe_take(&take))
			continue;
		if (keys[i].is_id)
			ereport(ERROR,
					(errcode(ERRCODE_UNIQUE_VIOLATION),
					 errmsg("message_id already exists"),
					 errdetail("Publication %s is kept.",
							   DatumGetCString(DirectFunctionCall1(uuid_out,
																   UUIDPGetDatum(message->given_id))))));
		message->enqueued = false;
		message->message_id = take.holder;
	}
	pfree(keys);
}

/* ---------------------------------------------------------------------- */
/* The call                                                               */
/* ---------------------------------------------------------------------- */

/*
 * Publish messages in the current transaction.  The caller must have checked
 * them.  Fills in their results, and sets ndeliveries to how many deliveries of
 * each there are, or will be.
 */
void
outbox_publish(OutboxMessage *messages, int nmessages, int *ndeliveries)
{
	TimestampTz now = GetCurrentTimestamp();
	Publisher  *publishers;
	bool		any_key = false;
	int			nplain = 0;
	int			nstreamed = 0;

	/* before anything is read; see the head of the file */
	(void) GetTopFullTransactionId();
	for (int i = 0; i < nmessages; i++)
	{
		OutboxMessage *message = &messages[i];

		message->enqueued = true;
		if (message->given_id != NULL)
			message->message_id = *message->given_id;
		else
			outbox_uuid7(now, &message->message_id);
		outbox_cause_note(message);
		any_key |= message->dedupe_key != NULL || message->given_id != NULL;
	}
	if (any_key)
	{
		take_keys(messages, nmessages);
		now = GetCurrentTimestamp();
	}
	/* those without a stream from the front, the others from the back */
	publishers = MemoryContextAllocHuge(CurrentMemoryContext,
										(Size) (nmessages + 1) * sizeof(Publisher));
	for (int i = 0; i < nmessages; i++)
	{
		if (!messages[i].enqueued)
			continue;
		if (messages[i].stream_id != NULL)
		{
			set_publication(&publishers[nmessages - ++nstreamed], &messages[i], now);
			continue;
		}
		set_publication(&publishers[nplain], &messages[i], now);
		find_subscribers(&publishers[nplain++], NULL);
	}
	Assert(nplain + nstreamed <= nmessages);
	if (nplain > 0)
		write_publications(publishers, nplain);
	if (nstreamed > 0)
		publish_streams(&publishers[nmessages - nstreamed], nstreamed);
	if (ndeliveries != NULL)
	{
		memset(ndeliveries, 0, nmessages * sizeof(int));
		for (int i = 0; i < nplain; i++)
			ndeliveries[publishers[i].message - messages] =
				publishers[i].publication.nsubscribers;
		for (int i = nmessages - nstreamed; i < nmessages; i++)
			ndeliveries[publishers[i].message - messages] =
				publishers[i].publication.nsubscribers;
	}
	pfree(publishers);
}
