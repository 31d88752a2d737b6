/*
 * archive.c
 *	  The partitions of outbox.archive.
 *
 * The archive is partitioned by (keep, processed_at): how long messages are
 * to be kept, and the day, in UTC, on which they were done.  "keep" is -2 for
 * as long as outbox.retention says, -1 for ever, else a number of seconds,
 * from the topic's policy.  A partition is called archive_default_<day>,
 * archive_forever_<day> or archive_<seconds>s_<day>.  It is made by the first
 * message that needs it, or ahead of time by maintenance; and whoever writes
 * to today's makes tomorrow's, if nobody else is at it, so that a busy
 * midnight finds it there.
 *
 * A partition is made as a table of its own and then attached: that waits for
 * nobody who reads or writes the others.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_class.h"
#include "commands/tablespace.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "outbox.h"
#include "queue/archive.h"
#include "queue/policy.h"
#include "table/catalog.h"

/* A partition whose name was looked up before. */
typedef struct KnownPartition
{
	int			keep;
	int64		day;
	Oid			relid;
} KnownPartition;

#define MAX_KNOWN 16

static KnownPartition known[MAX_KNOWN];
static int	nknown = 0;
static int	next_known = 0;

static void
forget_partitions(Datum arg, Oid relid)
{
	for (int i = 0; i < nknown; i++)
	{
		if (!OidIsValid(relid) || known[i].relid == relid)
		{
			nknown = next_known = 0;
			return;
		}
	}
}

/* From _PG_init. */
void
outbox_archive_init(void)
{
	CacheRegisterRelcacheCallback(forget_partitions, (Datum) 0);
}

/* Days since the epoch of timestamps, in UTC. */
static int64
day_of(TimestampTz at)
{
	int64		day = at / USECS_PER_DAY;

	return at % USECS_PER_DAY < 0 ? day - 1 : day;
}

static void
day_text(int64 day, char *buffer, const char *format)
{
	int			year;
	int			month;
	int			dom;

	j2date((int) day + POSTGRES_EPOCH_JDATE, &year, &month, &dom);
	snprintf(buffer, NAMEDATALEN, format, year, month, dom);
}

static void
partition_name(int keep, int64 day, char *name)
{
	char		date[NAMEDATALEN];

	day_text(day, date, "%04d%02d%02d");
	if (keep == OUTBOX_KEEP_DEFAULT)
		snprintf(name, NAMEDATALEN, "archive_default_%s", date);
	else if (keep == OUTBOX_KEEP_FOREVER)
		snprintf(name, NAMEDATALEN, "archive_forever_%s", date);
	else
		snprintf(name, NAMEDATALEN, "archive_%ds_%s", keep, date);
}

static Oid
find_partition(int keep, int64 day)
{
	char		name[NAMEDATALEN];
	Oid			relid;

	for (int i = 0; i < nknown; i++)
	{
		if (known[i].day == day && known[i].keep == keep)
			return known[i].relid;
	}
	partition_name(keep, day, name);
	relid = get_relname_relid(name, outbox_catalog()->namespace);
	if (OidIsValid(relid))
	{
		known[next_known] = OUTBOX_MAKE(KnownPartition, keep, day, relid);
		next_known = (next_known + 1) % MAX_KNOWN;
		nknown = Max(nknown, next_known == 0 ? MAX_KNOWN : next_known);
	}
	return relid;
}

static void
run_utility(const char *sql)
{
	if (SPI_execute(sql, false, 0) < 0)
		elog(ERROR, "could not run \"%s\"", sql);
}

/* Whose the archive is, and in which tablespace; an empty name is the default. */
static void
get_archive(Oid *owner, char **tablespace)
{
	HeapTuple	tuple = SearchSysCache1(RELOID,
										ObjectIdGetDatum(outbox_store(OUTBOX_QUEUE)->done));
	Form_pg_class form;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for outbox.archive");
	form = (Form_pg_class) GETSTRUCT(tuple);
	*owner = form->relowner;
	*tablespace = OidIsValid(form->reltablespace) ?
		get_tablespace_name(form->reltablespace) : pstrdup("");
	ReleaseSysCache(tuple);
}

static void
pin_setting(const char *name, const char *value)
{
	(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

/*
 * A partition must not depend on who happens to need it first: it and its indexes
 * go to the archive's tablespace, and whatever the statements call, users' event
 * triggers included, finds the same settings each time.  Only the timeouts are
 * still the caller's, because they limit what the call may take.
 */
static void
pin_settings(const char *tablespace)
{
	static const char *const pinned[][2] = {
		{"search_path", "pg_catalog, pg_temp"},
		{"default_table_access_method", "heap"},
		{"default_toast_compression", "pglz"},
		{"client_min_messages", "warning"},
		{"check_function_bodies", "on"},
		{"row_security", "on"},
		{"standard_conforming_strings", "on"},
		{"transform_null_equals", "off"},
		{"quote_all_identifiers", "off"},
		{"DateStyle", "ISO, MDY"},
		{"IntervalStyle", "postgres"},
		{"TimeZone", "UTC"},
		{"bytea_output", "hex"},
		{"extra_float_digits", "1"},
	};

	for (int i = 0; i < lengthof(pinned); i++)
		pin_setting(pinned[i][0], pinned[i][1]);
	pin_setting("default_tablespace", tablespace);
}

/*
 * Make a partition, as the owner of the archive and whatever the caller's
 * settings are.  The lock that keeps others from making it is held.
 */
static void
make_partition(int keep, int64 day)
{
	char		name[NAMEDATALEN];
	char		from[NAMEDATALEN];
	char		to[NAMEDATALEN];
	Oid			owner;
	char	   *tablespace;
	Oid			save_user;
	int			save_context;
	int			save_nestlevel;

	partition_name(keep, day, name);
	day_text(day, from, "%04d-%02d-%02d 00:00:00+00");
	day_text(day + 1, to, "%04d-%02d-%02d 00:00:00+00");

	get_archive(&owner, &tablespace);
	GetUserIdAndSecContext(&save_user, &save_context);
	SetUserIdAndSecContext(owner, save_context | SECURITY_LOCAL_USERID_CHANGE);
	save_nestlevel = NewGUCNestLevel();
	pin_settings(tablespace);

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	run_utility(psprintf("CREATE TABLE outbox.%s (LIKE outbox.archive"
						 " INCLUDING DEFAULTS INCLUDING CONSTRAINTS"
						 " INCLUDING COMMENTS)", name));
	/* the server finds names, since a detached partition may still have them */
	run_utility(psprintf("CREATE INDEX ON outbox.%s (id)"
						 " WITH (deduplicate_items = off)", name));
	run_utility(psprintf("CREATE INDEX ON outbox.%s (message_id)"
						 " WITH (deduplicate_items = off)", name));
	run_utility(psprintf("ALTER TABLE outbox.archive ATTACH PARTITION outbox.%s"
						 " FOR VALUES FROM (%d, '%s') TO (%d, '%s')",
						 name, keep, from, keep, to));
	run_utility(psprintf("COMMENT ON TABLE outbox.%s IS"
						 " 'Messages done on %.10s, UTC; a partition of outbox.archive.'",
						 name, from));
	if (SPI_finish() != SPI_OK_FINISH)
		elog(ERROR, "could not disconnect from SPI");

	AtEOXact_GUC(true, save_nestlevel);
	SetUserIdAndSecContext(save_user, save_context);
}

/* Make a partition unless it is there; or unless somebody else is at it. */
static void
ensure_partition(int keep, int64 day, bool wait)
{
	Oid			archive = outbox_store(OUTBOX_QUEUE)->done;

	if (wait)
		LockRelationOid(archive, ShareUpdateExclusiveLock);
	else if (!ConditionalLockRelationOid(archive, ShareUpdateExclusiveLock))
		return;
	if (!OidIsValid(find_partition(keep, day)))
		make_partition(keep, day);
	CommandCounterIncrement();
}

/* The partition for messages done at this time, made if need be. */
Oid
outbox_archive_partition(int keep, TimestampTz at)
{
	int64		day = day_of(at);
	Oid			relid = find_partition(keep, day);

	if (!OidIsValid(relid))
	{
		ensure_partition(keep, day, true);
		relid = find_partition(keep, day);
	}
	if (!OidIsValid(find_partition(keep, day + 1)))
		ensure_partition(keep, day + 1, false);
	return relid;
}
