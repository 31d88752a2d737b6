/*
 * catalog.c
 *	  The relations of the extension in this database.
 *
 * They are looked up by name, and again after each relcache invalidation,
 * whatever relation it is for: so an extension that was dropped and created
 * again is found.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "outbox.h"
#include "table/catalog.h"

static OutboxCatalog catalog;
static bool catalog_valid = false;
static uint64 ninvalidations = 0;

static void
forget_catalog(Datum arg, Oid relid)
{
	catalog_valid = false;
	ninvalidations++;
}

/* Called by _PG_init. */
void
outbox_catalog_init(void)
{
	CacheRegisterRelcacheCallback(forget_catalog, (Datum) 0);
}

static Oid
find_relation(Oid namespace, const char *name)
{
	Oid			relid = get_relname_relid(name, namespace);

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation \"%s.%s\" does not exist",
						OUTBOX_SCHEMA, name),
				 errhint("Drop and create the extension, or run ALTER EXTENSION outbox UPDATE.")));
	return relid;
}

/* The owner of a relation. */
Oid
outbox_relation_owner(Oid relid)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	Oid			owner;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for relation %u", relid);
	owner = ((Form_pg_class) GETSTRUCT(tuple))->relowner;
	ReleaseSysCache(tuple);
	return owner;
}

static Oid
find_index(Oid namespace, const char *table, const char *suffix)
{
	char		name[NAMEDATALEN];

	snprintf(name, sizeof(name), "%s%s", table, suffix);
	return find_relation(namespace, name);
}

static void
look_up_store(OutboxStoreKind kind, Oid namespace, const char *table,
			  const char *done, const char *dead)
{
	OutboxStore *store = &catalog.stores[kind];

	store->kind = kind;
	store->table = find_relation(namespace, table);
	store->pkey = find_index(namespace, table, "_pkey");
	store->message_id = find_index(namespace, table, "_message_id_key");
	store->ready = find_index(namespace, table, "_ready_idx");
	store->stream = find_index(namespace, table, "_stream_idx");
	store->expires = find_index(namespace, table, "_expires_idx");
	store->done = find_relation(namespace, done);
	store->dead = find_relation(namespace, dead);
	store->dead_pkey = find_index(namespace, dead, "_pkey");
}

/*
 * Get the relations of the extension in this database; an error if there is
 * none.
 */
const OutboxCatalog *
outbox_catalog(void)
{
	uint64		seen = ninvalidations;
	Oid			nsp;

	if (likely(catalog_valid))
		return &catalog;

	nsp = get_namespace_oid(OUTBOX_SCHEMA, true);
	if (!OidIsValid(nsp))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"outbox\" is not installed in this database"),
				 errhint("Run CREATE EXTENSION outbox.")));
	catalog.namespace = nsp;
	catalog.sequence = find_relation(nsp, "message_id_seq");
	look_up_store(OUTBOX_QUEUE, nsp, "queue", "archive", "dead");
	look_up_store(OUTBOX_INBOX, nsp, "inbox_queue", "inbox_done", "inbox_dead");
	look_up_store(OUTBOX_TIMERS, nsp, "timer_queue", "timer_done", "timer_dead");
	look_up_store(OUTBOX_RUNS, nsp, "run_queue", "run_done", "run_dead");
	catalog.archive_unsorted = find_relation(nsp, "archive_unsorted");
	catalog.dead_message_id = find_relation(nsp, "dead_message_id_key");
	catalog.dedupe = find_relation(nsp, "dedupe");
	catalog.dedupe_pkey = find_relation(nsp, "dedupe_pkey");
	catalog.topics = find_relation(nsp, "topics");
	catalog.subscribers = find_relation(nsp, "subscribers");
	catalog.publications = find_relation(nsp, "publications");
	catalog.publications_unsorted = find_relation(nsp, "publications_unsorted");
	catalog.expansions = find_relation(nsp, "expansions");
	catalog.expansions_pkey = find_relation(nsp, "expansions_pkey");
	catalog.expansions_stream = find_relation(nsp, "expansions_stream_idx");
	catalog.joins = find_relation(nsp, "joins");
	catalog.joins_pkey = find_relation(nsp, "joins_pkey");
	catalog.join_members = find_relation(nsp, "join_members");
	catalog.join_members_message = find_relation(nsp, "join_members_message_idx");
	catalog.join_waits = find_relation(nsp, "join_waits");
	catalog.join_waits_pkey = find_relation(nsp, "join_waits_pkey");
	catalog.join_waits_message = find_relation(nsp, "join_waits_message_idx");
	catalog.join_rechecks = find_relation(nsp, "join_rechecks");
	catalog.handlers = find_relation(nsp, "handlers");
	catalog.received = find_relation(nsp, "message_deduplication");
	catalog.received_pkey = find_relation(nsp, "message_deduplication_pkey");
	catalog.instances = find_relation(nsp, "instances");
	catalog.instances_pkey = find_relation(nsp, "instances_pkey");
	catalog.store_connections = find_relation(nsp, "store_connections");
	catalog.routes = find_relation(nsp, "routes");
	catalog.routes_pkey = find_relation(nsp, "routes_pkey");
	catalog.routes_store = find_relation(nsp, "routes_store_idx");
	catalog.default_route = find_relation(nsp, "default_route");
	catalog.message = find_relation(nsp, "message");
	catalog.owner = outbox_relation_owner(catalog.stores[OUTBOX_QUEUE].table);
	/* if there were invalidations in the meantime, look up again next time */
	catalog_valid = seen == ninvalidations;
	return &catalog;
}

/* The live table of a kind. */
const OutboxStore *
outbox_store(OutboxStoreKind kind)
{
	return &outbox_catalog()->stores[kind];
}

/* The live table with this OID; NULL if it is none. */
const OutboxStore *
outbox_store_of(Oid relid)
{
	const OutboxCatalog *known = outbox_catalog();

	for (OutboxStoreKind kind = 0; kind < OUTBOX_NSTORES; kind++)
	{
		if (known->stores[kind].table == relid)
			return &known->stores[kind];
	}
	return NULL;
}
