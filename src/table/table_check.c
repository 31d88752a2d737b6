/*
 * table_check.c
 *	  Checking whether a table is as the install script made it.
 *
 * Rows are written directly only if it is: then the executor would do nothing
 * that table.c does not do.  If anything was added, the functions here return
 * a description of it, for outbox.status().
 *
 * Objects of the extension are never recognized by a name that users can
 * choose.  A trigger is the extension's if its function is a member of the
 * extension; a foreign key, if both of its tables are tables of joins.  Neither
 * constraints nor columns can be members, so those of the install script are
 * listed here: a check constraint belongs to the extension if it has the name
 * and the expression of this list.  Any other one has been added.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/dependency.h"
#include "catalog/partition.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "commands/trigger.h"
#include "nodes/parsenodes.h"
#include "nodes/primnodes.h"
#include "parser/parse_coerce.h"
#include "parser/parse_collate.h"
#include "parser/parse_expr.h"
#include "parser/parse_node.h"
#include "parser/parse_relation.h"
#include "parser/parser.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "compat.h"
#include "outbox.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "table/table_check.h"

/*
 * Changes of a live table by plain SQL that must be reported to shared memory.
 */
#define WATCHED_EVENTS (TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE | \
						TRIGGER_TYPE_DELETE | TRIGGER_TYPE_TRUNCATE)

/* ---------------------------------------------------------------------- */
/* The tables of the install script                                       */
/* ---------------------------------------------------------------------- */

typedef struct ColumnShape
{
	Oid			type;
	bool		not_null;
} ColumnShape;

typedef struct CheckShape
{
	const char *name;
	const char *expression;
} CheckShape;

typedef struct TableShape
{
	int			natts;
	const ColumnShape *columns;
	int			nchecks;
	const CheckShape *checks;
} TableShape;

static const ColumnShape live_columns[Q_NATTS] = {
	[Q_ID - 1] = {INT8OID, true},
	[Q_LANE - 1] = {INT8OID, true},
	[Q_NEXT_ATTEMPT_AT - 1] = {TIMESTAMPTZOID, true},
	[Q_UPDATED_AT - 1] = {TIMESTAMPTZOID, true},
	[Q_LEASED_AT - 1] = {TIMESTAMPTZOID, false},
	[Q_LOCKED_UNTIL - 1] = {TIMESTAMPTZOID, false},
	[Q_OWNER_TOKEN - 1] = {UUIDOID, false},
	[Q_ATTEMPTS - 1] = {INT4OID, true},
	[Q_RETRY_COUNT - 1] = {INT4OID, true},
	[Q_WAIVED - 1] = {INT4OID, true},
	[Q_PROGRESS - 1] = {INT4OID, true},
	[Q_STATUS - 1] = {INT2OID, true},
	[Q_FAILURE_REASON - 1] = {INT2OID, true},
	[Q_CREATED_AT - 1] = {TIMESTAMPTZOID, true},
	[Q_MESSAGE_ID - 1] = {UUIDOID, true},
	[Q_STREAM_SEQ - 1] = {INT8OID, false},
	[Q_DUE_TIME - 1] = {TIMESTAMPTZOID, false},
	[Q_EXPIRES_AT - 1] = {TIMESTAMPTZOID, false},
	[Q_TENANT_ID - 1] = {UUIDOID, false},
	[Q_STREAM_ID - 1] = {UUIDOID, false},
	[Q_PUBLISHED_ID - 1] = {UUIDOID, false},
	[Q_PUBLISHED_AT - 1] = {TIMESTAMPTZOID, false},
	[Q_SUBSCRIBER - 1] = {INT4OID, false},
	[Q_PRIORITY - 1] = {INT2OID, false},
	[Q_CAUSED_BY - 1] = {UUIDOID, false},
	[Q_NAMESPACE - 1] = {TEXTOID, true},
	[Q_TOPIC - 1] = {TEXTOID, true},
	[Q_CORRELATION_ID - 1] = {TEXTOID, false},
	[Q_DEDUPE_KEY - 1] = {TEXTOID, false},
	[Q_HEADERS - 1] = {JSONBOID, false},
	[Q_LAST_ERROR - 1] = {TEXTOID, false},
	[Q_ERRORS - 1] = {TEXTARRAYOID, false},
	[Q_PAYLOAD - 1] = {TEXTOID, true},
};

static const CheckShape live_checks[] = {
	{
		"outbox_queue_status",
		"status IN (0, 1) AND (status = 1) = (owner_token IS NOT NULL)"
		" AND (status = 1) = (locked_until IS NOT NULL)"
	},
	{
		"outbox_queue_counters",
		"attempts >= 0 AND retry_count >= 0 AND waived BETWEEN 0 AND attempts"
	},
	{
		"outbox_queue_stream",
		"(stream_id IS NULL) = (stream_seq IS NULL)"
	},
};

static const ColumnShape history_columns[H_NATTS] = {
	[H_ID - 1] = {INT8OID, true},
	[H_CREATED_AT - 1] = {TIMESTAMPTZOID, true},
	[H_PROCESSED_AT - 1] = {TIMESTAMPTZOID, true},
	[H_KEEP - 1] = {INT4OID, true},
	[H_ATTEMPTS - 1] = {INT4OID, true},
	[H_RETRY_COUNT - 1] = {INT4OID, true},
	[H_PROGRESS - 1] = {INT4OID, true},
	[H_FAILURE_REASON - 1] = {INT2OID, true},
	[H_MESSAGE_ID - 1] = {UUIDOID, true},
	[H_PROCESSED_BY - 1] = {UUIDOID, false},
	[H_DUE_TIME - 1] = {TIMESTAMPTZOID, false},
	[H_EXPIRES_AT - 1] = {TIMESTAMPTZOID, false},
	[H_TENANT_ID - 1] = {UUIDOID, false},
	[H_STREAM_ID - 1] = {UUIDOID, false},
	[H_PUBLISHED_ID - 1] = {UUIDOID, false},
	[H_PUBLISHED_AT - 1] = {TIMESTAMPTZOID, false},
	[H_PRIORITY - 1] = {INT2OID, false},
	[H_CAUSED_BY - 1] = {UUIDOID, false},
	[H_NAMESPACE - 1] = {TEXTOID, true},
	[H_TOPIC - 1] = {TEXTOID, true},
	[H_SUBSCRIPTION - 1] = {TEXTOID, false},
	[H_CORRELATION_ID - 1] = {TEXTOID, false},
	[H_DEDUPE_KEY - 1] = {TEXTOID, false},
	[H_HEADERS - 1] = {JSONBOID, false},
	[H_LAST_ERROR - 1] = {TEXTOID, false},
	[H_ERRORS - 1] = {TEXTARRAYOID, false},
	[H_PAYLOAD - 1] = {TEXTOID, true},
};

static const ColumnShape publications_columns[] = {
	{DATEOID, true}, {INT8OID, true}, {TIMESTAMPTZOID, true}, {UUIDOID, true},
	{XID8OID, true}, {BOOLOID, true}, {BOOLOID, true}, {INT2OID, false},
	{TIMESTAMPTZOID, false}, {TIMESTAMPTZOID, false}, {UUIDOID, false}, {UUIDOID, false}, {TEXTOID, true},
	{TEXTOID, true}, {TEXTOID, false}, {TEXTOID, false}, {INT4ARRAYOID, true},
	{JSONBOID, false}, {TEXTOID, true}
};

static const ColumnShape expansions_columns[] = {
	{INT8OID, true}, {TIMESTAMPTZOID, true}, {UUIDOID, true}, {UUIDOID, false},
	{INT4ARRAYOID, true}
};

static const ColumnShape dedupe_columns[] = {
	{UUIDOID, true}, {UUIDOID, true}, {TIMESTAMPTZOID, false}
};

static const ColumnShape received_columns[] = {
	{UUIDOID, true}, {TIMESTAMPTZOID, true}
};

static const ColumnShape joins_columns[] = {
	{UUIDOID, true}, {TEXTOID, false}, {INT4OID, true}, {INT4OID, true},
	{INT4OID, true}, {INT2OID, true}, {TIMESTAMPTZOID, true},
	{TIMESTAMPTZOID, true}, {TEXTOID, false}
};

static const CheckShape joins_checks[] = {
	{
		"outbox_joins_grouping_key",
		"char_length(grouping_key) BETWEEN 1 AND 255"
	},
	{
		"outbox_joins_steps",
		"expected_steps > 0 AND completed_steps >= 0 AND failed_steps >= 0"
		" AND completed_steps::bigint + failed_steps <= expected_steps"
	},
	{
		"outbox_joins_status",
		"CASE status"
		" WHEN 0 THEN completed_steps::bigint + failed_steps < expected_steps"
		" WHEN 1 THEN completed_steps = expected_steps"
		" WHEN 2 THEN completed_steps::bigint + failed_steps = expected_steps"
		" AND failed_steps > 0"
		" ELSE status = 3 END"
	},
};

static const ColumnShape members_columns[] = {
	{UUIDOID, true}, {UUIDOID, true}, {INT2OID, true}, {TIMESTAMPTZOID, true}
};

static const CheckShape members_checks[] = {
	{
		"outbox_join_members_status",
		"status BETWEEN 0 AND 2"
	},
};

static const ColumnShape waits_columns[] = {
	{UUIDOID, true}, {UUIDOID, true}
};

static const ColumnShape rechecks_columns[] = {
	{INT8OID, true}, {XIDOID, true}, {UUIDOID, false}, {UUIDOID, false},
	{INT2OID, false}, {TIMESTAMPTZOID, false}
};

static const ColumnShape handlers_columns[] = {
	{TEXTOID, true}, {TEXTOID, true}, {TEXTOID, true}, {TEXTOID, true},
	{NAMEOID, true}, {INT4OID, true}, {INT4OID, true}, {INT4OID, false},
	{NAMEOID, true}, {OIDOID, true}, {OIDOID, true}, {OIDOID, true},
	{TEXTOID, true}
};

static const CheckShape handlers_checks[] = {
	{
		"outbox_handlers_names",
		"char_length(namespace) BETWEEN 1 AND 255"
		" AND char_length(topic) BETWEEN 1 AND 255"
		" AND char_length(subscription) <= 255"
	},
	{
		"outbox_handlers_limits",
		"batch_size BETWEEN 1 AND 10000 AND lease_seconds BETWEEN 1 AND 86400"
		" AND timeout_ms BETWEEN 1 AND 86400000"
	},
};

static const ColumnShape instances_columns[] = {
	{UUIDOID, true}, {TEXTOID, true}, {TEXTOID, true}, {INT4OID, true},
	{JSONBOID, false}, {TIMESTAMPTZOID, true}, {TIMESTAMPTZOID, true}
};

#define SHAPE(columns) {lengthof(columns), columns, 0, NULL}
#define CHECKED_SHAPE(columns, checks) {lengthof(columns), columns, lengthof(checks), checks}

static const TableShape live_shape = CHECKED_SHAPE(live_columns, live_checks);
static const TableShape history_shape = SHAPE(history_columns);
static const TableShape publications_shape = SHAPE(publications_columns);
static const TableShape expansions_shape = SHAPE(expansions_columns);
static const TableShape dedupe_shape = SHAPE(dedupe_columns);
static const TableShape received_shape = SHAPE(received_columns);
static const TableShape joins_shape = CHECKED_SHAPE(joins_columns, joins_checks);
static const TableShape members_shape = CHECKED_SHAPE(members_columns, members_checks);
static const TableShape waits_shape = SHAPE(waits_columns);
static const TableShape rechecks_shape = SHAPE(rechecks_columns);
static const TableShape handlers_shape = CHECKED_SHAPE(handlers_columns, handlers_checks);
static const TableShape instances_shape = SHAPE(instances_columns);

/* The structure that the install script gives a table. */
static const TableShape *
shape_of(Relation rel)
{
	const OutboxCatalog *catalog = outbox_catalog();
	Oid			relid = RelationGetRelid(rel);

	if (outbox_store_of(relid) != NULL)
		return &live_shape;
	if (relid == catalog->publications ||
		(rel->rd_rel->relispartition &&
		 get_partition_parent(relid, true) == catalog->publications))
		return &publications_shape;
	if (relid == catalog->expansions)
		return &expansions_shape;
	if (relid == catalog->dedupe)
		return &dedupe_shape;
	if (relid == catalog->received)
		return &received_shape;
	if (relid == catalog->joins)
		return &joins_shape;
	if (relid == catalog->join_members)
		return &members_shape;
	if (relid == catalog->join_waits)
		return &waits_shape;
	if (relid == catalog->join_rechecks)
		return &rechecks_shape;
	if (relid == catalog->handlers)
		return &handlers_shape;
	if (relid == catalog->instances)
		return &instances_shape;
	/* tables of history, and partitions of the archive */
	return &history_shape;
}

/*
 * The tables that C writes; partitioned tables come before their partitions.
 */
List *
outbox_written_tables(void)
{
	const OutboxCatalog *catalog = outbox_catalog();
	List	   *tables = NIL;

	for (OutboxStoreKind kind = 0; kind < OUTBOX_NSTORES; kind++)
	{
		tables = lappend_oid(tables, catalog->stores[kind].table);
		tables = lappend_oid(tables, catalog->stores[kind].done);
		tables = lappend_oid(tables, catalog->stores[kind].dead);
	}
	tables = lappend_oid(tables, catalog->dedupe);
	tables = lappend_oid(tables, catalog->received);
	tables = lappend_oid(tables, catalog->joins);
	tables = lappend_oid(tables, catalog->join_members);
	tables = lappend_oid(tables, catalog->join_waits);
	tables = lappend_oid(tables, catalog->join_rechecks);
	tables = lappend_oid(tables, catalog->handlers);
	tables = lappend_oid(tables, catalog->instances);
	tables = lappend_oid(tables, catalog->expansions);
	tables = lappend_oid(tables, catalog->publications);
	tables = list_concat(tables, find_inheritance_children(catalog->publications,
														   AccessShareLock));
	return list_concat(tables,
					   find_inheritance_children(catalog->stores[OUTBOX_QUEUE].done,
												 AccessShareLock));
}

/* ---------------------------------------------------------------------- */
/* Columns                                                                */
/* ---------------------------------------------------------------------- */

/*
 * Does the table have the columns that C knows by number, with the types that
 * C assumes?  If not, it can be neither read nor written.  Returns the
 * difference, or NULL.
 */
char *
outbox_columns_why_not(Relation rel)
{
	const TableShape *shape = shape_of(rel);
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < shape->natts; i++)
	{
		Form_pg_attribute att;

		if (i >= desc->natts)
			return psprintf("it has %d columns instead of %d", desc->natts,
							shape->natts);
		att = TupleDescAttr(desc, i);
		if (att->attisdropped)
			return psprintf("column %d was dropped", i + 1);
		if (att->atttypid != shape->columns[i].type)
			return psprintf("column %s has type %s instead of %s",
							quote_identifier(NameStr(att->attname)),
							format_type_be(att->atttypid),
							format_type_be(shape->columns[i].type));
	}
	return NULL;
}

/*
 * Returns what was added to the columns, or changed in them; NULL if nothing
 * was.
 */
static char *
columns_added(Relation rel, const TableShape *shape)
{
	TupleDesc	desc = RelationGetDescr(rel);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		const char *name = quote_identifier(NameStr(att->attname));

		/* a dropped column contains only nulls */
		if (att->attisdropped)
			continue;
		if (i >= shape->natts)
			return psprintf("column %s", name);
		if (att->attnotnull && !shape->columns[i].not_null)
			return psprintf("column %s is not null", name);
		if (att->attidentity != '\0' || att->attgenerated != '\0')
			return psprintf("column %s is generated", name);
	}
	return NULL;
}

/* ---------------------------------------------------------------------- */
/* Check constraints                                                      */
/* ---------------------------------------------------------------------- */

/* Parse an expression, as ALTER TABLE would store it. */
static Node *
parse_check(Relation rel, const char *expression)
{
	ParseState *pstate = make_parsestate(NULL);
	ParseNamespaceItem *item;
	List	   *statements;
	SelectStmt *select;
	Node	   *node;
	int			save_nestlevel = NewGUCNestLevel();

	/* functions and operators are those of pg_catalog */
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET,
							 PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	statements = raw_parser(expression, RAW_PARSE_PLPGSQL_EXPR);
	select = castNode(SelectStmt, linitial_node(RawStmt, statements)->stmt);
	item = addRangeTableEntryForRelation(pstate, rel, AccessShareLock, NULL,
										 false, true);
	addNSItemToQuery(pstate, item, true, true, true);
	node = transformExpr(pstate, linitial_node(ResTarget, select->targetList)->val,
						 EXPR_KIND_CHECK_CONSTRAINT);
	node = coerce_to_boolean(pstate, node, "CHECK");
	assign_expr_collations(pstate, node);
	free_parsestate(pstate);
	AtEOXact_GUC(true, save_nestlevel);
	return node;
}

static bool
check_is_ours(Relation rel, const TableShape *shape, const ConstrCheck *check)
{
	for (int i = 0; i < shape->nchecks; i++)
	{
		if (strcmp(check->ccname, shape->checks[i].name) == 0)
			return equal(stringToNode(check->ccbin),
						 parse_check(rel, shape->checks[i].expression));
	}
	return false;
}

static char *
checks_added(Relation rel, const TableShape *shape)
{
	const TupleConstr *constr = RelationGetDescr(rel)->constr;

	for (int i = 0; constr != NULL && i < constr->num_check; i++)
	{
		if (!check_is_ours(rel, shape, &constr->check[i]))
			return psprintf("check constraint %s",
							quote_identifier(constr->check[i].ccname));
	}
	return NULL;
}

/* ---------------------------------------------------------------------- */
/* Triggers                                                               */
/* ---------------------------------------------------------------------- */

/* Is this function a member of the extension? */
static bool
function_is_ours(Oid function)
{
	return get_func_namespace(function) == outbox_catalog()->namespace &&
		getExtensionOfObject(ProcedureRelationId, function) ==
		get_extension_oid(OUTBOX_EXTENSION, true);
}

/*
 * Returns an array that says which of these triggers were made by the install
 * script, or NULL if there are no triggers.
 */
bool *
outbox_triggers_find_ours(const TriggerDesc *triggers)
{
	bool	   *is_ours;

	if (triggers == NULL)
		return NULL;
	is_ours = palloc_array(bool, triggers->numtriggers);
	for (int i = 0; i < triggers->numtriggers; i++)
		is_ours[i] = function_is_ours(triggers->triggers[i].tgfoid);
	return is_ours;
}

static bool
is_table_of_joins(Oid relid)
{
	const OutboxCatalog *catalog = outbox_catalog();

	return relid == catalog->joins || relid == catalog->join_members ||
		relid == catalog->join_waits;
}

/*
 * Is this one of the triggers by which the server enforces a foreign key
 * between tables of joins?  Direct writes never change such a key, and delete
 * no join, so these triggers have nothing to do then.
 */
static bool
enforces_our_key(Relation rel, const Trigger *trigger)
{
	return trigger->tgisinternal && OidIsValid(trigger->tgconstraint) &&
		is_table_of_joins(RelationGetRelid(rel)) &&
		is_table_of_joins(trigger->tgconstrrelid);
}

static char *
triggers_added(Relation rel, const TriggerDesc *triggers, const bool *is_ours)
{
	for (int i = 0; triggers != NULL && i < triggers->numtriggers; i++)
	{
		const Trigger *trigger = &triggers->triggers[i];

		if (is_ours[i] || enforces_our_key(rel, trigger))
			continue;
		if (trigger->tgisinternal && OidIsValid(trigger->tgconstraint))
			return psprintf("constraint %s",
							quote_identifier(get_constraint_name(trigger->tgconstraint)));
		return psprintf("trigger %s", quote_identifier(trigger->tgname));
	}
	return NULL;
}

/*
 * Do the extension's triggers fire for all changes by plain SQL, in every
 * session?  *life is computed from the transactions that have written their
 * rows in pg_trigger.
 */
bool
outbox_triggers_watch(Relation rel, uint64 *life)
{
	Relation	pg_trigger = table_open(TriggerRelationId, AccessShareLock);
	uint64		trigger_events = 0;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	*life = 1;
	ScanKeyInit(&key, Anum_pg_trigger_tgrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(RelationGetRelid(rel)));
	scan = systable_beginscan(pg_trigger, TriggerRelidNameIndexId, true, NULL,
							  1, &key);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_trigger form = (Form_pg_trigger) GETSTRUCT(tuple);

		if (form->tgenabled != TRIGGER_FIRES_ALWAYS || form->tgisinternal ||
			!heap_attisnull(tuple, Anum_pg_trigger_tgqual, NULL) ||
			!function_is_ours(form->tgfoid))
			continue;
		*life = *life * UINT64CONST(0x9e3779b97f4a7c15) +
			((uint64) form->oid << 32 | HeapTupleHeaderGetRawXmin(tuple->t_data));
		if (TRIGGER_FOR_AFTER(form->tgtype) || TRIGGER_FOR_TRUNCATE(form->tgtype))
			trigger_events |= form->tgtype & WATCHED_EVENTS;
	}
	systable_endscan(scan);
	table_close(pg_trigger, AccessShareLock);
	return trigger_events == WATCHED_EVENTS;
}

/* ---------------------------------------------------------------------- */
/* The table                                                              */
/* ---------------------------------------------------------------------- */

/*
 * Would the executor raise an error for UPDATE or DELETE, because the table is
 * in a publication and has no replica identity?
 */
static bool
changes_are_refused(Relation rel)
{
	PublicationDesc published;

	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
		return false;
	RelationBuildPublicationDesc(rel, &published);
	if (!OUTBOX_PUBLICATION_IS_VALID(&published))
		return true;
	return (published.pubactions.pubupdate || published.pubactions.pubdelete) &&
		rel->rd_rel->relreplident != REPLICA_IDENTITY_FULL &&
		!OidIsValid(RelationGetReplicaIndex(rel));
}

/*
 * Returns why the table cannot be written without the executor; NULL if it
 * can, apart from its indexes.  "is_ours" is the result of
 * outbox_triggers_find_ours.
 *
 * Row level security of a live table depends on the calling role, and is
 * checked each time the table is opened.  All other tables are written as
 * their owner.
 */
char *
outbox_table_why_not(Relation rel, const TriggerDesc *triggers,
					 const bool *is_ours)
{
	const TableShape *shape = shape_of(rel);
	char	   *why;

	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ?
		RelationGetRelid(rel) != outbox_store(OUTBOX_QUEUE)->done &&
		RelationGetRelid(rel) != outbox_catalog()->publications :
		rel->rd_rel->relkind != RELKIND_RELATION ||
		rel->rd_rel->relam != HEAP_TABLE_AM_OID)
		return pstrdup("it is not a plain table");
	if (rel->rd_rules != NULL)
		return pstrdup("a rule");
	if (rel->rd_rel->relrowsecurity && rel->rd_rel->relforcerowsecurity &&
		outbox_store_of(RelationGetRelid(rel)) == NULL)
		return pstrdup("row level security");
	why = columns_added(rel, shape);
	if (why == NULL)
		why = checks_added(rel, shape);
	if (why == NULL)
		why = triggers_added(rel, triggers, is_ours);
	if (why == NULL && changes_are_refused(rel))
		why = pstrdup("a publication, and its replica identity");
	return why;
}

/* Is this index predicate just "column IS NOT NULL"?  Sets *attnum if so. */
static bool
simple_predicate(List *predicate, AttrNumber *attnum)
{
	NullTest   *test;

	*attnum = InvalidAttrNumber;
	if (predicate == NIL)
		return true;
	test = linitial(predicate);
	if (list_length(predicate) != 1 || !IsA(test, NullTest) ||
		test->nulltesttype != IS_NOT_NULL || !IsA(test->arg, Var))
		return false;
	*attnum = ((Var *) test->arg)->varattno;
	return true;
}

/*
 * Returns why entries of this index cannot be inserted without the executor;
 * NULL if they can.  *partial_on is set to the column of its predicate, if it
 * is partial.
 */
char *
outbox_index_why_not(Relation index, const IndexInfo *info,
					 AttrNumber *partial_on)
{
	if (index->rd_index->indimmediate && info->ii_Expressions == NIL &&
		info->ii_ExclusionOps == NULL &&
		index->rd_rel->relam == BTREE_AM_OID &&
		simple_predicate(info->ii_Predicate, partial_on))
		return NULL;
	return psprintf("index %s",
					quote_identifier(RelationGetRelationName(index)));
}
