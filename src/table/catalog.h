/*
 * catalog.h
 *	  The relations of the extension in this database.
 */
#ifndef OUTBOX_CATALOG_H
#define OUTBOX_CATALOG_H

#include "postgres.h"

/*
 * The live tables; all have the same structure, and are handled by the same
 * code.
 */
typedef enum OutboxStoreKind
{
	OUTBOX_QUEUE,				/* messages to be delivered */
	OUTBOX_INBOX,				/* messages received */
	OUTBOX_TIMERS,
	OUTBOX_RUNS					/* of jobs */
} OutboxStoreKind;

#define OUTBOX_NSTORES 4

/* A live table, its indexes, and the tables of its history. */
typedef struct OutboxStore
{
	OutboxStoreKind kind;
	Oid			table;
	Oid			pkey;
	Oid			message_id;		/* index */
	Oid			ready;			/* index */
	Oid			stream;			/* index */
	Oid			expires;		/* index */
	Oid			done;			/* for the queue, partitioned */
	Oid			dead;
	Oid			dead_pkey;
} OutboxStore;

/* The relations of the extension, cached until the next invalidation. */
typedef struct OutboxCatalog
{
	Oid			namespace;
	Oid			owner;
	Oid			sequence;
	OutboxStore stores[OUTBOX_NSTORES];
	Oid			archive_unsorted;
	Oid			dead_message_id;
	Oid			dedupe;
	Oid			dedupe_pkey;
	Oid			topics;
	Oid			subscribers;
	Oid			publications;
	Oid			publications_unsorted;
	Oid			expansions;
	Oid			expansions_pkey;
	Oid			expansions_stream;
	Oid			joins;
	Oid			joins_pkey;
	Oid			join_members;
	Oid			join_members_message;
	Oid			join_waits;
	Oid			join_waits_pkey;
	Oid			join_waits_message;
	Oid			join_rechecks;
	Oid			handlers;
	Oid			received;
	Oid			received_pkey;
	Oid			instances;
	Oid			instances_pkey;
	Oid			store_connections;
	Oid			routes;
	Oid			routes_pkey;
	Oid			routes_store;
	Oid			default_route;
	Oid			message;
} OutboxCatalog;

extern void outbox_catalog_init(void);
extern const OutboxCatalog *outbox_catalog(void);
extern Oid	outbox_relation_owner(Oid relid);
extern const OutboxStore *outbox_store(OutboxStoreKind kind);
extern const OutboxStore *outbox_store_of(Oid relid);

#endif							/* OUTBOX_CATALOG_H */
