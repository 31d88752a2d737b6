/*
 * hash.c
 *	  Stable hashes: lanes, partitions, dedupe keys and routes.
 *
 * These values are stored, and a dump can be restored elsewhere, so they must
 * not depend on the PostgreSQL version, the machine, the locale or the
 * encoding of the database: the hash functions are our own, and use the bytes
 * of the strings in UTF-8.
 *
 * A lane is the first column of the ready index: all messages of one
 * namespace, topic, tenant, subscription and priority.  Usually it is 31 bits
 * of the namespace's hash, then 32 bits of the topic's; with a tenant, a
 * subscription or a priority it is 63 bits of a hash of everything.  Collisions
 * of lanes only cost time: shared memory distinguishes them by the hashes, and
 * a claim compares the names.
 */
#include "postgres.h"

#include "common/cryptohash.h"
#include "common/sha2.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"

#include "compat.h"
#include "util/hash.h"

/* Mix the bits, so that each one affects all others. */
static uint64
spread_bits(uint64 h)
{
	h ^= h >> 33;
	h *= UINT64CONST(0xff51afd7ed558ccd);
	h ^= h >> 33;
	h *= UINT64CONST(0xc4ceb9fe1a85ec53);
	h ^= h >> 33;
	return h;
}

static uint64
hash_bytes64(const void *data, int len, uint64 seed)
{
	const unsigned char *p = data;
	uint64		h = seed ^ UINT64CONST(0xcbf29ce484222325);

	/* FNV-1a */
	for (int i = 0; i < len; i++)
		h = (h ^ p[i]) * UINT64CONST(0x100000001b3);
	return spread_bits(h);
}

/*
 * A string's bytes in UTF-8.  In SQL_ASCII their meaning is unknown, so they
 * are used as they are.
 */
static const char *
utf8_bytes(const text *string, int *len)
{
	const char *bytes = VARDATA_ANY(string);

	*len = VARSIZE_ANY_EXHDR(string);
	if (GetDatabaseEncoding() != PG_UTF8 &&
		GetDatabaseEncoding() != PG_SQL_ASCII)
	{
		char	   *converted = pg_server_to_any(bytes, *len, PG_UTF8);

		if (converted != bytes)
		{
			*len = strlen(converted);
			bytes = converted;
		}
	}
	return bytes;
}

static uint64
hash_text64(const text *string, uint64 seed)
{
	int			len;
	const char *bytes = utf8_bytes(string, &len);

	return hash_bytes64(bytes, len, seed);
}

/* The hash of a namespace, in 31 bits. */
uint32
outbox_namespace_hash(const text *namespace)
{
	return (uint32) (hash_text64(namespace, 1) & 0x7FFFFFFF);
}

/* The hash of a topic, without its namespace. */
uint32
outbox_topic_hash(const text *topic)
{
	return (uint32) hash_text64(topic, 2);
}

/* The key of a topic: the lane of its messages without tenant and priority. */
int64
outbox_topic_key(const text *namespace, const text *topic)
{
	return ((int64) outbox_namespace_hash(namespace) << 32) |
		outbox_topic_hash(topic);
}

/* The hash of a tenant.  Never 0. */
uint64
outbox_tenant_hash(const pg_uuid_t *tenant)
{
	return hash_bytes64(tenant->data, UUID_LEN, 6) | 1;
}

/* The hash that represents an owner in shared memory.  Never 0. */
uint64
outbox_token_hash(const pg_uuid_t *owner)
{
	return hash_bytes64(owner->data, UUID_LEN, 3) | 1;
}

/* Set the lane of a place whose other members are set. */
void
outbox_place_set_lane(OutboxPlace *place)
{
	uint64		more = place->tenant_hash;

	place->lane = ((int64) place->namespace_hash << 32) | place->topic_hash;
	if (place->subscriber != 0 || place->priority != 0)
		more ^= spread_bits(((uint64) (uint32) place->subscriber << 8) |
							(uint8) place->priority);
	if (more != 0)
		place->lane = (int64) (spread_bits((uint64) place->lane +
										   more * UINT64CONST(0x9e3779b97f4a7c15)) &
							   UINT64CONST(0x7FFFFFFFFFFFFFFF));
}

/*
 * Make the place of messages of this namespace, topic, tenant (or NULL),
 * subscriber (or 0) and priority.
 */
void
outbox_place_of(const text *namespace, const text *topic,
				const pg_uuid_t *tenant, int32 subscriber, int priority,
				OutboxPlace *place)
{
	place->namespace_hash = outbox_namespace_hash(namespace);
	place->topic_hash = outbox_topic_hash(topic);
	place->tenant_hash = tenant == NULL ? 0 : outbox_tenant_hash(tenant);
	place->subscriber = subscriber;
	place->priority = priority;
	outbox_place_set_lane(place);
}

/*
 * A stream is a separate stream in each subscription.  Rows of deliveries
 * contain its id combined with the subscriber; applying this function again
 * undoes it.
 */
void
outbox_subscriber_stream(const pg_uuid_t *stream, int32 subscriber,
						 pg_uuid_t *result)
{
	uint64		mask[2];

	*result = *stream;
	if (subscriber == 0)
		return;
	for (int i = 0; i < 2; i++)
	{
		mask[i] = spread_bits((uint64) (uint32) subscriber +
							  (i + 1) * UINT64CONST(0x9e3779b97f4a7c15));
		for (int k = 0; k < 8; k++)
			result->data[i * 8 + k] ^= (unsigned char) (mask[i] >> (8 * k));
	}
}

/* A hash of a UUID, in 32 bits. */
uint32
outbox_uuid_hash(const pg_uuid_t *uuid)
{
	return (uint32) hash_bytes64(uuid->data, UUID_LEN, 4);
}

/* A hash of a UUID, in 64 bits. */
uint64
outbox_uuid_hash64(const pg_uuid_t *uuid)
{
	return hash_bytes64(uuid->data, UUID_LEN, 4);
}

/* The partition to which a stream belongs. */
int
outbox_partition(const pg_uuid_t *stream, int partition_count)
{
	Assert(partition_count > 0);
	return (int) ((outbox_uuid_hash(stream) & 0x7FFFFFFF) % partition_count);
}

/* The weight of an instance for a partition; the largest weight gets it. */
uint64
outbox_share_hash(const pg_uuid_t *instance, int partition)
{
	return hash_bytes64(instance->data, UUID_LEN,
						5 + ((uint64) partition << 8));
}

/* The hash of a routing key, or of the name of a store, in the router. */
uint64
outbox_route_hash(const text *name)
{
	return hash_text64(name, 7);
}

/* The weight of a store for a key; the largest weight gets it. */
uint64
outbox_route_weight(uint64 key_hash, uint64 store_hash)
{
	return spread_bits(key_hash + store_hash * UINT64CONST(0x9e3779b97f4a7c15));
}

/*
 * Compute a digest of 16 bytes of a list of strings, each preceded by its
 * length, so that different lists cannot be constructed that have the same
 * digest.
 */
static void
digest_of(const text *const *parts, int nparts, pg_uuid_t *digest)
{
	pg_cryptohash_ctx *ctx = pg_cryptohash_create(PG_SHA256);
	uint8		sha[PG_SHA256_DIGEST_LENGTH];
	bool		ok;

	ok = ctx != NULL && pg_cryptohash_init(ctx) >= 0;
	for (int i = 0; ok && i < nparts; i++)
	{
		int			len;
		const char *bytes = utf8_bytes(parts[i], &len);
		uint8		prefix[4] = {len >> 24, len >> 16, len >> 8, len};

		ok = pg_cryptohash_update(ctx, prefix, sizeof(prefix)) >= 0 &&
			pg_cryptohash_update(ctx, (const uint8 *) bytes, len) >= 0;
	}
	ok = ok && pg_cryptohash_final(ctx, sha, sizeof(sha)) >= 0;
	if (ctx != NULL)
		pg_cryptohash_free(ctx);
	if (!ok)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("Failed to compute the digest of a dedupe key.")));
	memcpy(digest->data, sha, UUID_LEN);
}

/*
 * The digest that represents a dedupe key: three strings of up to 255
 * characters do not fit into an index entry.
 */
void
outbox_dedupe_digest(const text *namespace, const text *topic,
					 const text *dedupe_key, pg_uuid_t *digest)
{
	const text *parts[] = {namespace, topic, dedupe_key};

	digest_of(parts, lengthof(parts), digest);
}

/*
 * The same for the dedupe key of a publication; these are separate from
 * messages'.
 */
void
outbox_publication_digest(const text *namespace, const text *topic,
						  const text *dedupe_key, pg_uuid_t *digest)
{
	const text *parts[] = {
		namespace, topic, dedupe_key, cstring_to_text("published")
	};

	digest_of(parts, lengthof(parts), digest);
}

/*
 * The digest that represents the id of a publication, if the publisher has
 * given it.
 */
void
outbox_publication_id_digest(const pg_uuid_t *published_id, pg_uuid_t *digest)
{
	/* as text, because digests are of strings */
	Datum		spelled = DirectFunctionCall1(uuid_out, UUIDPGetDatum(published_id));
	const text *parts[] = {cstring_to_text(DatumGetCString(spelled))};

	digest_of(parts, lengthof(parts), digest);
}

/*
 * Compute the message_id of a delivery.  It contains the time of the
 * publication's id, if that has one, because searches in the archive use it.
 * The nonce distinguishes replays.
 */
void
outbox_delivery_id(const pg_uuid_t *published_id, int32 subscriber, uint64 nonce,
				   pg_uuid_t *id)
{
	bool		has_time = (published_id->data[6] >> 4) == 7;
	uint64		more = spread_bits(nonce + 1) ^ (uint32) subscriber;

	for (int i = 0; i < 2; i++)
	{
		uint64		bits = hash_bytes64(published_id->data, UUID_LEN,
										spread_bits(more + i));

		for (int k = 0; k < 8; k++)
			id->data[i * 8 + k] = (unsigned char) (bits >> (8 * k));
	}
	if (has_time)
		memcpy(id->data, published_id->data, 6);
	id->data[6] = (id->data[6] & 0x0F) | (has_time ? 0x70 : 0x80);
	id->data[8] = (id->data[8] & 0x3F) | 0x80;
}

/* Compare ids or keys, for qsort() and bsearch(). */
int
outbox_int64_cmp(const void *a, const void *b)
{
	int64		x = *(const int64 *) a;
	int64		y = *(const int64 *) b;

	return x < y ? -1 : x > y;
}

/* Compare subscribers, for qsort() and bsearch(). */
int
outbox_int32_cmp(const void *a, const void *b)
{
	int32		x = *(const int32 *) a;
	int32		y = *(const int32 *) b;

	return x < y ? -1 : x > y;
}

/* Does a sorted array contain this number? */
bool
outbox_int32s_have(const int32 *sorted, int n, int32 wanted)
{
	return n > 0 && bsearch(&wanted, sorted, n, sizeof(int32),
							outbox_int32_cmp) != NULL;
}

/* Does the list contain this topic? */
bool
outbox_topic_keys_have(const OutboxTopicKeys *topics, int64 key)
{
	return bsearch(&key, topics->keys, topics->n, sizeof(int64),
				   outbox_int64_cmp) != NULL;
}

/* Does a place pass the filter? */
bool
outbox_place_wanted(const OutboxLaneFilter *filter, const OutboxPlace *place)
{
	int			lo = 0;
	int			hi = filter->ntopics;

	if (!filter->any_subscriber &&
		(filter->subscribers == NULL ? place->subscriber != 0 :
		 !outbox_int32s_have(filter->subscribers, filter->nsubscribers,
							 place->subscriber)))
		return false;
	if (filter->namespace_hash != NULL &&
		place->namespace_hash != *filter->namespace_hash)
		return false;
	if (filter->tenant_hash != NULL &&
		place->tenant_hash != *filter->tenant_hash)
		return false;
	if (filter->topic_hashes == NULL)
		return true;
	while (lo < hi)
	{
		int			mid = lo + (hi - lo) / 2;

		if (filter->topic_hashes[mid] == place->topic_hash)
			return true;
		if (filter->topic_hashes[mid] < place->topic_hash)
			lo = mid + 1;
		else
			hi = mid;
	}
	return false;
}
