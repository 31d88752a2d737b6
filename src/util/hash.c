/*
 * hash.c
 *	  Stable hashes: lanes, partitions, dedupe keys and routes.
 *
 * These values are stored, so they must never depend on the PostgreSQL
 * version, the machine, the locale or the encoding of the database, which a
 * dump can be restored into: the hashes are our own, over the bytes of the
 * strings in UTF-8.
 *
 * A lane is the first column of the ready index: all messages of one namespace,
 * topic and tenant.  Without a tenant it is 31 bits of the namespace's hash, then
 * 32 bits of the topic's; with one, 63 bits in which all three are mixed.  Lanes
 * that collide cost speed and nothing else: shared memory tells them apart by
 * the hashes, and a claim compares the names.
 */
#include "postgres.h"

#include "common/cryptohash.h"
#include "common/sha2.h"
#include "mb/pg_wchar.h"

#include "compat.h"
#include "util/hash.h"

/* Spread every bit over all others. */
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
 * A string's bytes in UTF-8.  In SQL_ASCII nobody knows what they mean, so
 * they are taken as they are.
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

uint32
outbox_namespace_hash(const text *namespace)
{
	return (uint32) (hash_text64(namespace, 1) & 0x7FFFFFFF);
}

uint32
outbox_topic_hash(const text *topic)
{
	return (uint32) hash_text64(topic, 2);
}

int64
outbox_topic_key(const text *namespace, const text *topic)
{
	return ((int64) outbox_namespace_hash(namespace) << 32) |
		outbox_topic_hash(topic);
}

/* Never 0. */
uint64
outbox_tenant_hash(const pg_uuid_t *tenant)
{
	return hash_bytes64(tenant->data, UUID_LEN, 6) | 1;
}

/* What stands for an owner token in shared memory.  Never 0. */
uint64
outbox_token_hash(const pg_uuid_t *owner)
{
	return hash_bytes64(owner->data, UUID_LEN, 3) | 1;
}

/* Where messages lie whose namespace, topic and tenant (0: none) have these hashes. */
void
outbox_place_of_hashes(uint32 namespace_hash, uint32 topic_hash,
					   uint64 tenant_hash, OutboxPlace *place)
{
	place->namespace_hash = namespace_hash;
	place->topic_hash = topic_hash;
	place->tenant_hash = tenant_hash;
	place->lane = outbox_place_topic_key(place);
	if (tenant_hash != 0)
		place->lane = (int64) (spread_bits((uint64) place->lane +
										   place->tenant_hash *
										   UINT64CONST(0x9e3779b97f4a7c15)) &
							   UINT64CONST(0x7FFFFFFFFFFFFFFF));
}

/* Where messages of this namespace, topic and tenant (or NULL) lie. */
void
outbox_place_of(const text *namespace, const text *topic,
				const pg_uuid_t *tenant, OutboxPlace *place)
{
	outbox_place_of_hashes(outbox_namespace_hash(namespace),
						   outbox_topic_hash(topic),
						   tenant == NULL ? 0 : outbox_tenant_hash(tenant),
						   place);
}

uint32
outbox_uuid_hash(const pg_uuid_t *uuid)
{
	return (uint32) hash_bytes64(uuid->data, UUID_LEN, 4);
}

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

/* How much an instance wants a partition: who wants it most gets it. */
uint64
outbox_share_hash(const pg_uuid_t *instance, int partition)
{
	return hash_bytes64(instance->data, UUID_LEN,
						5 + ((uint64) partition << 8));
}

/* What stands for a routing key, or for the name of a store, in the router. */
uint64
outbox_route_hash(const text *name)
{
	return hash_text64(name, 7);
}

/* How much a store wants a key: the one that wants it most gets it. */
uint64
outbox_route_weight(uint64 key_hash, uint64 store_hash)
{
	return spread_bits(key_hash + store_hash * UINT64CONST(0x9e3779b97f4a7c15));
}

/*
 * The 16 bytes by which a dedupe key is remembered: three strings of up to
 * 255 characters do not fit in an index entry, and nobody must be able to
 * make two different ones meet.
 */
void
outbox_dedupe_digest(const text *namespace, const text *topic,
					 const text *dedupe_key, pg_uuid_t *digest)
{
	const text *parts[3] = {namespace, topic, dedupe_key};
	pg_cryptohash_ctx *ctx = pg_cryptohash_create(PG_SHA256);
	uint8		sha[PG_SHA256_DIGEST_LENGTH];
	bool		ok;

	ok = ctx != NULL && pg_cryptohash_init(ctx) >= 0;
	for (int i = 0; ok && i < 3; i++)
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
		elog(ERROR, "could not compute the digest of a dedupe key");
	memcpy(digest->data, sha, UUID_LEN);
}

/* The order of ids and keys, for qsort() and bsearch(). */
int
outbox_int64_cmp(const void *a, const void *b)
{
	int64		x = *(const int64 *) a;
	int64		y = *(const int64 *) b;

	return x < y ? -1 : x > y;
}

/* Is this one of the topics? */
bool
outbox_topic_keys_have(const OutboxTopicKeys *topics, int64 key)
{
	return bsearch(&key, topics->keys, topics->n, sizeof(int64),
				   outbox_int64_cmp) != NULL;
}

/* Does a place pass a filter? */
bool
outbox_place_wanted(const OutboxLaneFilter *filter, const OutboxPlace *place)
{
	int			lo = 0;
	int			hi = filter->ntopics;

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
