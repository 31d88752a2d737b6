/*
 * archive.c
 *	  The partitions of outbox.archive.
 *
 * The archive is partitioned by (keep, processed_at): how long messages are
 * kept, and when they were done.  "keep" is -2 for as long as outbox.retention
 * says, -1 for ever, else a number of seconds, from the topic's policy.  A
 * partition is called archive_<class>_<time>.  The class is "default",
 * "forever", or the seconds with an "s".  The time is when the partition
 * begins, in UTC, in as many digits as tell how much it spans: 20261119 is
 * that day, 20261119_05 an hour of it, 20261119_053 ten minutes, 20261119_0538
 * one minute.
 *
 * Maintenance makes partitions ahead of time (retention.sql).  Nobody else
 * does: to make one takes a lock on the archive, which a transaction that
 * finishes a message would hold until its end.  What has no partition goes to
 * archive_unsorted, the partition of all classes below -2; its rows have
 * OUTBOX_KEEP_UNSORTED added to their class.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/pg_inherits.h"
#include "storage/lmgr.h"
#include "utils/datetime.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/timestamp.h"

#include "outbox.h"
#include "queue/archive.h"
#include "queue/policy.h"
#include "table/catalog.h"
#include "table/columns.h"
#include "util/uuid.h"

/* The name of a partition, before and after the class. */
#define NAME_PREFIX "archive_"
#define NAME_DEFAULT "default"
#define NAME_FOREVER "forever"

/*
 * What partitions can span, the longest first, and how many characters of
 * their beginning are in their names.
 */
static const struct
{
	int			length;
	int64		usecs;
}			spans[] = {
	{8, USECS_PER_DAY},
	{11, USECS_PER_HOUR},
	{12, 10 * USECS_PER_MINUTE},
	{13, USECS_PER_MINUTE},
};

/*
 * A message's id can be some other computer's, whose clock is ahead of ours
 * by at most this.
 */
#define CLOCKS_DIFFER USECS_PER_DAY

/* A partition whose name was looked up before. */
typedef struct KnownPartition
{
	int			keep;
	TimestampTz from;
	TimestampTz until;
	Oid			relid;
} KnownPartition;

#define MAX_KNOWN 16

static KnownPartition known[MAX_KNOWN];
static int	nknown = 0;
static int	next_known = 0;

/* All partitions, for finding a message in them. */
typedef struct ListedPartition
{
	Oid			relid;
	Oid			index;			/* on message_id; invalid: not looked up yet */
	TimestampTz until;			/* nothing was done later; or DT_NOEND */
} ListedPartition;

static MemoryContext list_context = NULL;
static ListedPartition *list = NULL;
static int	nlisted = 0;
static Oid	listed_parent = InvalidOid;
static uint64 list_changes = 0; /* invalidations so far */
static uint64 list_seen = 0;	/* and when the list was made */

static void
forget_partitions(Datum arg, Oid relid)
{
	bool		concerns_list = !OidIsValid(relid) || relid == listed_parent;

	for (int i = 0; i < nknown; i++)
	{
		if (!OidIsValid(relid) || known[i].relid == relid)
		{
			nknown = next_known = 0;
			break;
		}
	}
	for (int i = 0; i < nlisted && !concerns_list; i++)
		concerns_list = list[i].relid == relid;
	if (concerns_list)
		list_changes++;
}

/* From _PG_init. */
void
outbox_archive_init(void)
{
	CacheRegisterRelcacheCallback(forget_partitions, (Datum) 0);
}

/* ---------------------------------------------------------------------- */
/* Names                                                                  */
/* ---------------------------------------------------------------------- */

/* When the span begins in which this time lies. */
static TimestampTz
span_begin(TimestampTz at, int64 usecs)
{
	int64		rest = at % usecs;

	return at - (rest < 0 ? rest + usecs : rest);
}

/* The name of the partition that begins then, with so much of the time. */
static void
partition_name(int keep, TimestampTz from, int length, char *name)
{
	int64		days = span_begin(from, USECS_PER_DAY) / USECS_PER_DAY;
	int			minutes = (from - days * USECS_PER_DAY) / USECS_PER_MINUTE;
	int			year;
	int			month;
	int			dom;
	char		class[32];
	char		time[64];

	Assert(length < (int) sizeof(time));
	j2date((int) days + POSTGRES_EPOCH_JDATE, &year, &month, &dom);
	snprintf(time, sizeof(time), "%04d%02d%02d_%02d%02d", year, month, dom,
			 minutes / MINS_PER_HOUR, minutes % MINS_PER_HOUR);
	time[length] = '\0';
	if (keep == OUTBOX_KEEP_DEFAULT)
		strlcpy(class, NAME_DEFAULT, sizeof(class));
	else if (keep == OUTBOX_KEEP_FOREVER)
		strlcpy(class, NAME_FOREVER, sizeof(class));
	else
		snprintf(class, sizeof(class), "%ds", keep);
	snprintf(name, NAMEDATALEN, NAME_PREFIX "%s_%s", class, time);
}

/*
 * Up to when a partition goes, by its name; DT_NOEND if the name is not one
 * that we give.
 */
static TimestampTz
end_by_name(const char *name)
{
	const char *time = strncmp(name, NAME_PREFIX, strlen(NAME_PREFIX)) == 0 ?
	strchr(name + strlen(NAME_PREFIX), '_') : NULL;
	int			parts[5] = {0};

	if (time == NULL)
		return DT_NOEND;
	time++;
	for (int i = 0; i < lengthof(spans); i++)
	{
		static const int widths[] = {4, 2, 2, 2, 2};
		const char *digits = time;

		if (strlen(time) != spans[i].length)
			continue;
		for (int part = 0; part < lengthof(parts); part++)
		{
			for (int k = 0; k < widths[part]; k++)
			{
				if (*digits != '\0' && (*digits < '0' || *digits > '9'))
					return DT_NOEND;
				/* what is not in the name is zero */
				parts[part] = parts[part] * 10 +
					(*digits == '\0' ? 0 : *digits++ - '0');
			}
			if (part == 2 && *digits == '_')
				digits++;
		}
		return (date2j(parts[0], parts[1], parts[2]) - POSTGRES_EPOCH_JDATE) *
			USECS_PER_DAY + parts[3] * USECS_PER_HOUR +
			parts[4] * USECS_PER_MINUTE + spans[i].usecs;
	}
	return DT_NOEND;
}

/* ---------------------------------------------------------------------- */
/* Where a message goes                                                   */
/* ---------------------------------------------------------------------- */

static Oid
find_partition(int keep, TimestampTz at)
{
	for (int i = 0; i < nknown; i++)
	{
		if (known[i].keep == keep && at >= known[i].from && at < known[i].until)
			return known[i].relid;
	}
	for (int i = 0; i < lengthof(spans); i++)
	{
		TimestampTz from = span_begin(at, spans[i].usecs);
		char		name[NAMEDATALEN];
		Oid			relid;

		partition_name(keep, from, spans[i].length, name);
		relid = get_relname_relid(name, outbox_catalog()->namespace);
		/* a table being restored is no partition yet */
		if (!OidIsValid(relid) || !get_rel_relispartition(relid))
			continue;
		known[next_known] = OUTBOX_MAKE(KnownPartition, keep, from,
										from + spans[i].usecs, relid);
		next_known = (next_known + 1) % MAX_KNOWN;
		nknown = Max(nknown, next_known == 0 ? MAX_KNOWN : next_known);
		return relid;
	}
	return InvalidOid;
}

/*
 * The partition for messages done at this time.  If there is none, it is the
 * one for the unsorted, and *keep becomes what it has of them.
 */
Oid
outbox_archive_partition(int *keep, TimestampTz at)
{
	Oid			relid = find_partition(*keep, at);

	Assert(*keep >= OUTBOX_KEEP_DEFAULT && *keep <= OUTBOX_KEEP_MAX);
	if (!OidIsValid(relid))
	{
		relid = outbox_catalog()->archive_unsorted;
		*keep += OUTBOX_KEEP_UNSORTED;
	}
	return relid;
}

/* ---------------------------------------------------------------------- */
/* Where a message may be                                                 */
/* ---------------------------------------------------------------------- */

static void
make_list(Oid parent)
{
	List	   *children;
	ListCell   *lc;

	if (list_context == NULL)
		list_context = AllocSetContextCreate(TopMemoryContext,
											 "outbox partitions",
											 ALLOCSET_SMALL_SIZES);
	/* an invalidation from here on is for the next call */
	list_seen = list_changes;
	listed_parent = parent;
	nlisted = 0;
	list = NULL;
	MemoryContextReset(list_context);

	/* which they are is all that matters: no lock is needed for that */
	children = find_inheritance_children(parent, NoLock);
	list = MemoryContextAlloc(list_context,
							  sizeof(ListedPartition) * (list_length(children) + 1));
	foreach(lc, children)
	{
		char	   *name = get_rel_name(lfirst_oid(lc));

		if (name == NULL)
			continue;
		list[nlisted++] = OUTBOX_MAKE(ListedPartition, lfirst_oid(lc),
									  InvalidOid, end_by_name(name));
		pfree(name);
	}
	list_free(children);
}

/* The index of a partition that finds a message by its id. */
static Oid
find_index(Relation partition)
{
	List	   *indexes = RelationGetIndexList(partition);
	Oid			result = InvalidOid;
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		if (index->rd_index->indkey.values[0] == H_MESSAGE_ID &&
			index->rd_index->indisvalid &&
			RelationGetIndexPredicate(index) == NIL)
			result = RelationGetRelid(index);
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	return result;
}

/*
 * Call "visit" for each partition in which this message may be, until it
 * returns true; so does this then.  A partition is locked only while it is
 * visited: so nobody who has looked for a message keeps retention from
 * dropping partitions, and the locks do not add up.
 */
bool
outbox_archive_search(const pg_uuid_t *message_id, OutboxArchiveVisit visit)
{
	Oid			parent = outbox_store(OUTBOX_QUEUE)->done;
	TimestampTz made;
	TimestampTz since = DT_NOBEGIN;
	bool		found = false;

	/* a message can only be in a partition that is older than its end */
	AcceptInvalidationMessages();
	/* and no message is done before it is made */
	if (outbox_uuid7_time(message_id, &made) &&
		made < GetCurrentTimestamp() + CLOCKS_DIFFER)
		since = made - CLOCKS_DIFFER;
	if (list == NULL || list_seen != list_changes || listed_parent != parent)
		make_list(parent);

	/* a new list can be made while we are at it, but only by a trigger */
	for (int i = 0; i < nlisted && !found; i++)
	{
		Relation	partition;

		if (list[i].until <= since)
			continue;
		partition = try_table_open(list[i].relid, AccessShareLock);
		if (partition == NULL)
			continue;			/* dropped meanwhile */
		if (i < nlisted && list[i].relid == RelationGetRelid(partition))
		{
			if (!OidIsValid(list[i].index) || list_seen != list_changes)
				list[i].index = find_index(partition);
			if (OidIsValid(list[i].index))
				found = visit(partition, list[i].index, message_id);
		}
		table_close(partition, AccessShareLock);
	}
	return found;
}
