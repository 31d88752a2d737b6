/*
 * hash.c
 *	  Stable hashes: lanes, partitions and dedupe keys.
 *
 * These values are stored, so they must never depend on the PostgreSQL
 * version, the machine, the locale or the encoding of the database, which a
 * dump can be restored into: the hashes are our own, over the bytes of the
 * strings in UTF-8.
 *
 * A lane is the first column of the ready index.  There are two kinds:
 *
 *	topic lanes (>= 0): 31 bits of the namespace's hash, then 32 bits of the
 *	topic's.  Two topics that collide share a lane, which costs them speed and
 *	nothing else: whoever scans a lane compares the names.
 *
 *	owner lanes (< 0): a hash of an owner token.  Here lies the first message
 *	of a stream whose earlier messages are all leased by that owner, so that
 *	nobody else stumbles over it (see stream.c).
 */
#include "postgres.h"

#include "common/cryptohash.h"
#include "common/sha2.h"
#include "mb/pg_wchar.h"

#include "compat.h"
#include "util/hash.h"

static uint64
hash_bytes64(const void *data, int len, uint64 seed)
{
	const unsigned char *p = data;
	uint64		h = seed ^ UINT64CONST(0xcbf29ce484222325);

	/* FNV-1a, then a finalizer that spreads every bit over all others */
	for (int i = 0; i < len; i++)
		h = (h ^ p[i]) * UINT64CONST(0x100000001b3);
	h ^= h >> 33;
	h *= UINT64CONST(0xff51afd7ed558ccd);
	h ^= h >> 33;
	h *= UINT64CONST(0xc4ceb9fe1a85ec53);
	h ^= h >> 33;
	return h;
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
outbox_topic_lane(const text *namespace, const text *topic)
{
	return ((int64) outbox_namespace_hash(namespace) << 32) |
		outbox_topic_hash(topic);
}

int64
outbox_owner_lane(const pg_uuid_t *owner)
{
	return (int64) (hash_bytes64(owner->data, UUID_LEN, 3) |
					UINT64CONST(0x8000000000000000));
}

uint32
outbox_uuid_hash(const pg_uuid_t *uuid)
{
	return (uint32) hash_bytes64(uuid->data, UUID_LEN, 4);
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

/* Does a lane pass a filter? */
bool
outbox_lane_wanted(const OutboxLaneFilter *filter, int64 lane)
{
	if (filter->namespace_hash != NULL &&
		outbox_lane_namespace(lane) != *filter->namespace_hash)
		return false;
	if (filter->topic_hashes == NULL)
		return true;
	for (int i = 0; i < filter->ntopics; i++)
	{
		if (outbox_lane_topic(lane) == filter->topic_hashes[i])
			return true;
	}
	return false;
}
