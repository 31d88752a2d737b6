/*
 * router.c
 *	  Which of several databases is responsible for a key.
 *
 * Here a store is a database registered by register_store, and a route maps a
 * key to a store.  Keys without a route are mapped by the default rule: to one
 * store, by a consistent hash over all stores, or to none.
 *
 * There are only a few stores, and one default rule: each backend keeps copies
 * (cached_table.c).  There can be 100,000 routes, and a change of one must not
 * make every session read all others again.  So a backend caches only the
 * answers that it has given, in the memo; for other keys it searches the index
 * of the routes.
 *
 * A trigger on each of the three tables (outbox._routes_changed) sends a
 * relcache invalidation at each change, which makes copies and memo invalid.
 * So a change takes effect with the next call of each session after the
 * commit.  A transaction sends the invalidation once, however many routes it
 * changes, and caches nothing from then on: so its own calls see its changes,
 * and nothing of them remains if it rolls back.
 *
 * The consistent hash is rendezvous hashing: each pair of key and store has a
 * weight, and the store with the highest weight gets the key.  So a store that
 * is added takes its share from all others, one that is dropped leaves its
 * share to them, and no other keys move.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_collation.h"
#include "common/hashfn.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "queue/router.h"
#include "table/cached_table.h"
#include "table/catalog.h"
#include "table/table.h"
#include "util/grow.h"
#include "util/hash.h"

/* The memo is emptied when it takes more than this: some 30,000 keys. */
#define MEMO_BYTES (4 * 1024 * 1024)

#define HASH_RULE "hash"
#define STORE_RULE "store:"

/* outbox.routes */
enum
{
	RT_ROUTING_KEY = 1,
	RT_STORE,
	RT_CREATED_AT,
	RT_NATTS = RT_CREATED_AT
};

/* outbox.store_connections */
enum
{
	SC_STORE = 1,
	SC_CONNECTION,
	SC_CREATED_AT,
	SC_NATTS = SC_CREATED_AT
};

/* outbox.default_route */
enum
{
	DR_ONLY_ROW = 1,
	DR_RULE,
	DR_NATTS = DR_RULE
};

typedef struct RegisteredStore
{
	uint64		hash;
	text	   *name;
} RegisteredStore;

/* A cached answer.  If hashes collide, only the last key is cached. */
typedef struct MemoEntry
{
	uint64		hash;			/* hash key */
	text	   *key;
	text	   *store;
} MemoEntry;

static void begin_stores(void);
static void add_store(TupleTableSlot *slot);
static Oid	find_stores(void);
static void begin_rule(void);
static void add_rule(TupleTableSlot *slot);
static Oid	find_rule(void);

static OutboxCachedTable store_cache = {
	.name = "outbox stores",.find = find_stores,
	.begin = begin_stores,.add = add_store
};

static OutboxCachedTable rule_cache = {
	.name = "outbox default route",.find = find_rule,
	.begin = begin_rule,.add = add_rule
};

static RegisteredStore *stores = NULL;
static int	nstores = 0;
static int	max_stores = 0;
static bool rule_is_hash = false;
static text *rule_store = NULL; /* NULL: no default, or the hash */

static MemoryContext memo_context = NULL;
static HTAB *memo = NULL;
static bool memo_valid = false;
static Oid	routes_relid = InvalidOid;

/*
 * The transaction that has changed a route, store or rule, and has sent the
 * invalidation.
 */
static TransactionId changed_in = InvalidTransactionId;
static SubTransactionId sent_in = InvalidSubTransactionId;

static void
forget_all(void)
{
	store_cache.valid = rule_cache.valid = memo_valid = false;
}

/*
 * Invalidation callback: a change of any of the tables makes everything
 * invalid.
 */
static void
forget_routes(Datum arg, Oid relid)
{
	if (!OidIsValid(relid) || relid == routes_relid ||
		relid == store_cache.relid || relid == rule_cache.relid)
		forget_all();
}

/* Called by _PG_init. */
void
outbox_router_init(void)
{
	CacheRegisterRelcacheCallback(forget_routes, (Datum) 0);
}

/* ---------------------------------------------------------------------- */
/* Stores and the default rule                                            */
/* ---------------------------------------------------------------------- */

static Oid
find_stores(void)
{
	return outbox_catalog()->store_connections;
}

static void
begin_stores(void)
{
	stores = NULL;
	nstores = 0;
	max_stores = 0;
}

/* Add a store to the copy, without its connection. */
static void
add_store(TupleTableSlot *slot)
{
	RegisteredStore *store;

	outbox_grow(stores, nstores, max_stores);
	store = &stores[nstores];
	store->name = DatumGetTextPCopy(outbox_row_get(slot, SC_STORE));
	store->hash = outbox_route_hash(store->name);
	nstores++;
}

static Oid
find_rule(void)
{
	return outbox_catalog()->default_route;
}

static void
begin_rule(void)
{
	rule_is_hash = false;
	rule_store = NULL;
}

static void
add_rule(TupleTableSlot *slot)
{
	char	   *rule = TextDatumGetCString(outbox_row_get(slot, DR_RULE));

	rule_is_hash = strcmp(rule, HASH_RULE) == 0;
	if (strncmp(rule, STORE_RULE, strlen(STORE_RULE)) == 0)
		rule_store = cstring_to_text(rule + strlen(STORE_RULE));
	pfree(rule);
}

static int
compare_names(const text *a, const text *b)
{
	int			alen = VARSIZE_ANY_EXHDR(a);
	int			blen = VARSIZE_ANY_EXHDR(b);
	int			result = memcmp(VARDATA_ANY(a), VARDATA_ANY(b), Min(alen, blen));

	return result != 0 ? result : alen - blen;
}

/*
 * The store with the highest weight for this key; NULL if there are no stores.
 * The result does not depend on the order of the stores.
 */
static const text *
heaviest_store(const text *key)
{
	const RegisteredStore *best = NULL;
	uint64		best_weight = 0;
	uint64		hash = outbox_route_hash(key);

	for (int i = 0; i < nstores; i++)
	{
		uint64		weight = outbox_route_weight(hash, stores[i].hash);

		if (best == NULL || weight > best_weight ||
			(weight == best_weight &&
			 compare_names(stores[i].name, best->name) < 0))
		{
			best = &stores[i];
			best_weight = weight;
		}
	}
	return best == NULL ? NULL : best->name;
}

/* ---------------------------------------------------------------------- */
/* Routes                                                                 */
/* ---------------------------------------------------------------------- */

/*
 * Search an index of outbox.routes for a row with this value in the first
 * column, as of now; returns its store, or NULL if there is no such row.
 */
static text *
search_routes(Oid index, const text *value)
{
	Relation	rel = outbox_relation_open(routes_relid, AccessShareLock);
	Relation	indexrel = index_open(index, AccessShareLock);
	Snapshot	snapshot = outbox_snapshot_now();
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	ScanKeyData key;
	IndexScanDesc scan;
	text	   *store = NULL;

	ScanKeyEntryInitialize(&key, 0, 1, BTEqualStrategyNumber, InvalidOid,
						   C_COLLATION_OID, F_TEXTEQ, PointerGetDatum(value));
	scan = outbox_index_beginscan(rel, indexrel, snapshot, 1);
	index_rescan(scan, &key, 1, NULL, 0);
	if (index_getnext_slot(scan, ForwardScanDirection, slot))
		store = DatumGetTextPCopy(outbox_row_get(slot, RT_STORE));
	index_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	index_close(indexrel, AccessShareLock);
	table_close(rel, NoLock);
	return store;
}

/* Make the memo empty and valid. */
static void
empty_memo(void)
{
	HASHCTL		ctl;

	if (memo_context == NULL)
		memo_context = AllocSetContextCreate(CacheMemoryContext,
											 "outbox routes",
											 ALLOCSET_DEFAULT_SIZES);
	memo = NULL;
	memo_valid = false;
	MemoryContextReset(memo_context);
	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = sizeof(uint64);
	ctl.entrysize = sizeof(MemoEntry);
	ctl.hcxt = memo_context;
	memo = hash_create("outbox routes", 64, &ctl,
					   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	/* an invalidation from here on makes it invalid again */
	memo_valid = true;
}

static void
remember(uint64 hash, const text *key, const text *store)
{
	MemoryContext old;
	text	   *key_copy;
	text	   *store_copy;
	MemoEntry  *entry;

	if (MemoryContextMemAllocated(memo_context, true) > MEMO_BYTES)
		empty_memo();
	/* do first what can fail */
	old = MemoryContextSwitchTo(memo_context);
	key_copy = DatumGetTextPCopy(PointerGetDatum(key));
	store_copy = DatumGetTextPCopy(PointerGetDatum(store));
	MemoryContextSwitchTo(old);
	entry = hash_search(memo, &hash, HASH_ENTER, NULL);
	entry->key = key_copy;
	entry->store = store_copy;
}

/* Has the current transaction changed one of the tables? */
static bool
changed_here(void)
{
	return TransactionIdIsValid(changed_in) &&
		TransactionIdEquals(changed_in, GetTopTransactionIdIfAny());
}

/* Look up the answer in the tables, and cache it. */
static const text *
decide(uint64 hash, const text *key)
{
	const text *store;

	routes_relid = outbox_catalog()->routes;
	if (!memo_valid)
		empty_memo();
	outbox_cached_table_load(&rule_cache);
	outbox_cached_table_load(&store_cache);
	store = search_routes(outbox_catalog()->routes_pkey, key);
	if (store == NULL)
		store = rule_is_hash ? heaviest_store(key) : rule_store;
	if (changed_here())
		forget_all();
	else if (store != NULL && memo_valid)
		remember(hash, key, store);
	return store;
}

/*
 * The store that is responsible for this key; NULL if there is none.  The
 * result is valid until the next call.
 */
const text *
outbox_router_find(const text *key)
{
	uint64		hash = hash_bytes_extended((const unsigned char *) VARDATA_ANY(key),
										   VARSIZE_ANY_EXHDR(key), 0);

	/* see what others have committed since our transaction began */
	AcceptInvalidationMessages();
	if (changed_here())
		forget_all();
	if (memo_valid)
	{
		const MemoEntry *entry = hash_search(memo, &hash, HASH_FIND, NULL);

		if (entry != NULL && outbox_text_equal(entry->key, key))
			return entry->store;
	}
	return decide(hash, key);
}

/* ---------------------------------------------------------------------- */
/* Changes                                                                */
/* ---------------------------------------------------------------------- */

/*
 * A row of one of the tables was changed: send an invalidation to all sessions
 * at commit.  It is sent once in each subtransaction, because subtransactions
 * can be rolled back separately; not for each row, because 100,000 messages
 * would make all sessions discard all their caches.
 */
void
outbox_router_note_change(Relation rel)
{
	TransactionId xid = GetTopTransactionId();
	SubTransactionId subid = GetCurrentSubTransactionId();

	if (!TransactionIdEquals(changed_in, xid) || sent_in != subid)
		CacheInvalidateRelcache(rel);
	changed_in = xid;
	sent_in = subid;
}

/* Is there a route to this store, or is it the default? */
bool
outbox_router_uses(const text *store)
{
	bool		is_default;

	routes_relid = outbox_catalog()->routes;
	if (search_routes(outbox_catalog()->routes_store, store) != NULL)
		return true;
	/* read the rule again, as it is now */
	rule_cache.valid = false;
	outbox_cached_table_load(&rule_cache);
	is_default = rule_store != NULL && outbox_text_equal(rule_store, store);
	if (changed_here())
		forget_all();
	return is_default;
}
