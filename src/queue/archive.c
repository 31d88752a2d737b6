/*
 * archive.c
 *	  The partitions of outbox.archive.
 *
 * The archive is partitioned by (keep, processed_at): how long messages are
 * kept, and when they were done.  "keep" is -2 for as long as outbox.retention
 * says, -1 forever, else a number of seconds, from the topic's policy.  A
 * partition is called archive_<class>_<time>.  The class is "default",
 * "forever", or the seconds with an "s".  The time is when the partition
 * begins, in UTC; the number of digits says how much it spans: 20261119 is
 * that day, 20261119_05 an hour of it, 20261119_053 ten minutes, 20261119_0538
 * one minute.
 *
 * Only maintenance creates partitions, ahead of time (retention.sql).  Doing
 * so requires a lock on the archive, which a transaction that finishes a
 * message would hold until its end.  A message for which there is no partition
 * goes to archive_unsorted, the partition of all classes below -2; its rows
 * have OUTBOX_KEEP_UNSORTED added to their class.
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

/* Parts of a partition's name. */
#define NAME_PREFIX "archive_"
#define NAME_DEFAULT "default"
#define NAME_FOREVER "forever"

/*
 * What partitions can span, the longest first, and how many characters of the
 * time are in their names.
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
 * A message_id can come from another computer; its clock may be ahead of ours
 * by at most this.
 */
#define CLOCKS_DIFFER USECS_PER_DAY

/* Cache entry for a partition that was looked up by name. */
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

/* Entry in the list of all partitions, for finding a message. */
typedef struct ListedPartition
{
	Oid			relid;
	Oid			index;			/* on message_id; invalid: not looked up yet */
	TimestampTz until;			/* upper bound of processed_at; or DT_NOEND */
} ListedPartition;

static MemoryContext list_context = NULL;
static ListedPartition *list = NULL;
static int	nlisted = 0;
static Oid	listed_parent = InvalidOid;
static uint64 list_changes = 0; /* invalidations so far */
static uint64 list_seen = 0;	/* their number when the list was made */

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

/* Called by _PG_init. */
void
outbox_archive_init(void)
{
	CacheRegisterRelcacheCallback(forget_partitions, (Datum) 0);
}

/* ---------------------------------------------------------------------- */
/* Names                                                                  */
/* ---------------------------------------------------------------------- */

/* The beginning of the span that contains a time. */
static TimestampTz
span_begin(TimestampTz at, int64 usecs)
{
	int64		rest = at % usecs;

	return at - (rest < 0 ? rest + usecs : rest);
}

/*
 * The name of a partition, with "length" characters of the time when it
 * begins.
 */
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
 * The end of a partition according to its name; DT_NOEND if the name is not of
 * the form that maintenance uses.
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
				/* digits that the name does not have are zero */
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

/*
 * Look up the partition for messages of this class and time, and cache it;
 * invalid if there is none.
 */
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
		/* a table that is being restored is not attached yet */
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
 * The partition for messages done at this time.  If there is none, returns the
 * one for unsorted messages, and changes *keep to the class they have there.
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

/* List the partitions, for outbox_archive_search. */
static void
make_list(Oid parent)
{
	List	   *children;
	ListCell   *lc;
	ListedPartition *made;
	int			nmade = 0;

	if (list_context == NULL)
		list_context = AllocSetContextCreate(TopMemoryContext,
											 "outbox partitions",
											 ALLOCSET_SMALL_SIZES);
	/* an invalidation from here on makes the list invalid again */
	list_seen = list_changes;
	listed_parent = parent;
	nlisted = 0;
	list = NULL;
	MemoryContextReset(list_context);

	/* only their OIDs matter, which does not need a lock */
	children = find_inheritance_children(parent, NoLock);
	made = MemoryContextAlloc(list_context,
							  sizeof(ListedPartition) * (list_length(children) + 1));
	foreach(lc, children)
	{
		char	   *name = get_rel_name(lfirst_oid(lc));

		if (name == NULL)
			continue;
		made[nmade++] = OUTBOX_MAKE(ListedPartition, lfirst_oid(lc),
									InvalidOid, end_by_name(name));
		pfree(name);
	}
	/* set it last: an incomplete list must not be used */
	list = made;
	nlisted = nmade;
	list_free(children);
}

/* The valid index of a partition on this column; invalid if there is none. */
Oid
outbox_partition_index(Relation partition, AttrNumber attnum)
{
	List	   *indexes = RelationGetIndexList(partition);
	Oid			result = InvalidOid;
	ListCell   *lc;

	foreach(lc, indexes)
	{
		Relation	index = index_open(lfirst_oid(lc), AccessShareLock);

		if (index->rd_index->indkey.values[0] == attnum &&
			index->rd_index->indisvalid &&
			RelationGetIndexPredicate(index) == NIL)
			result = RelationGetRelid(index);
		index_close(index, AccessShareLock);
	}
	list_free(indexes);
	return result;
}

/*
 * Call "visit" for each partition that may contain this message, until it
 * returns true; returns whether it did.  A partition is locked only while it
 * is visited, so that the search does not keep retention from dropping
 * partitions until the end of the transaction, and locks do not accumulate.
 */
bool
outbox_archive_search(const pg_uuid_t *message_id, OutboxArchiveVisit visit)
{
	Oid			parent = outbox_store(OUTBOX_QUEUE)->done;
	TimestampTz made;
	TimestampTz since = DT_NOBEGIN;
	bool		found = false;

	/* a message can only be in a partition created before it was done */
	AcceptInvalidationMessages();
	/* and no message is done before it is created */
	if (outbox_uuid7_time(message_id, &made) &&
		made < GetCurrentTimestamp() + CLOCKS_DIFFER)
		since = made - CLOCKS_DIFFER;
	if (list == NULL || list_seen != list_changes || listed_parent != parent)
		make_list(parent);

	/* a user's trigger may cause a new list to be made in the meantime */
	for (int i = 0; i < nlisted && !found; i++)
	{
		Relation	partition;

		if (list[i].until <= since)
			continue;
		partition = try_table_open(list[i].relid, AccessShareLock);
		if (partition == NULL)
			continue;			/* dropped concurrently */
		if (i < nlisted && list[i].relid == RelationGetRelid(partition))
		{
			if (!OidIsValid(list[i].index) || list_seen != list_changes)
				list[i].index = outbox_partition_index(partition, H_MESSAGE_ID);
			if (OidIsValid(list[i].index))
				found = visit(partition, list[i].index, message_id);
		}
		table_close(partition, AccessShareLock);
	}
	return found;
}
