/*
 * counters_file.c
 *	  Keeping counters while the server is down.
 *
 * When the server is shut down, the postmaster writes the counters to a file,
 * after all other processes have ended; when it starts again, it reads the file
 * and removes it.  So after a crash there is no file, and the counters begin
 * again.  A file that another version of the library has written, or that is
 * damaged, is ignored: counters are not worth a server that does not start.
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "utils/memutils.h"

#include "outbox.h"
#include "shmem/counters.h"
#include "shmem/counters_file.h"

#define COUNTERS_FILE PGSTAT_STAT_PERMANENT_DIRECTORY "/outbox.stat"

/* Changes with the format. */
#define MAGIC 0x6f627802

typedef struct FileHeader
{
	uint32		magic;
	uint32		entry_size;
	int			nentries;
	TimestampTz since;
} FileHeader;

/* An entry in the file; its names follow. */
typedef struct FileEntry
{
	Oid			dbid;
	int			kind;
	int			lengths[OUTBOX_NNAMES];
	int			size;
	TimestampTz since;
	OutboxCounts counts;
} FileEntry;

/* A file, with the checksum of what was written or read. */
typedef struct CheckedFile
{
	FILE	   *file;
	pg_crc32c	crc;
} CheckedFile;

static bool
put(CheckedFile *to, const void *data, Size size)
{
	COMP_CRC32C(to->crc, data, size);
	return size == 0 || fwrite(data, size, 1, to->file) == 1;
}

static bool
get(CheckedFile *from, void *data, Size size)
{
	if (size > 0 && fread(data, size, 1, from->file) != 1)
		return false;
	COMP_CRC32C(from->crc, data, size);
	return true;
}

/* ---------------------------------------------------------------------- */
/* Writing                                                                */
/* ---------------------------------------------------------------------- */

static bool
put_entry(CheckedFile *to, const OutboxCounterCopy *copy)
{
	FileEntry	entry;

	memset(&entry, 0, sizeof(entry));
	entry.dbid = copy->dbid;
	entry.kind = copy->counted.kind;
	memcpy(entry.lengths, copy->counted.lengths, sizeof(entry.lengths));
	entry.size = outbox_counted_size(&copy->counted);
	entry.since = copy->since;
	entry.counts = copy->counts;
	return put(to, &entry, sizeof(entry)) && put(to, copy->counted.bytes, entry.size);
}

/* Write everything, and a checksum at the end. */
static bool
put_all(CheckedFile *to, TimestampTz since, const OutboxCounterCopy *copies, int n)
{
	FileHeader	header;
	pg_crc32c	crc;

	memset(&header, 0, sizeof(header));
	header.magic = MAGIC;
	header.entry_size = sizeof(FileEntry);
	header.nentries = n;
	header.since = since;
	if (!put(to, &header, sizeof(header)))
		return false;
	for (int i = 0; i < n; i++)
	{
		if (!put_entry(to, &copies[i]))
			return false;
	}
	crc = to->crc;
	return put(to, &crc, sizeof(crc));
}

/* Callback of the postmaster: write the file, if the shutdown is a clean one. */
static void
write_file(int code, Datum arg)
{
	OutboxCounterMemory *memory = (OutboxCounterMemory *) DatumGetPointer(arg);
	CheckedFile to;
	OutboxCounterCopy *copies;
	int			n;

	if (code != 0)
		return;
	to.file = AllocateFile(COUNTERS_FILE ".tmp", PG_BINARY_W);
	INIT_CRC32C(to.crc);
	n = outbox_counters_copy_from(memory, InvalidOid, &copies);
	if (to.file == NULL ||
		!put_all(&to, memory->since, copies, n) ||
		FreeFile(to.file) != 0)
	{
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", COUNTERS_FILE ".tmp")));
		unlink(COUNTERS_FILE ".tmp");
		return;
	}
	(void) durable_rename(COUNTERS_FILE ".tmp", COUNTERS_FILE, LOG);
}

/* ---------------------------------------------------------------------- */
/* Reading                                                                */
/* ---------------------------------------------------------------------- */

/* Read an entry; the names are allocated. */
static bool
get_entry(CheckedFile *from, OutboxCounterCopy *copy)
{
	FileEntry	entry;
	char	   *bytes;
	int			size = 0;

	if (!get(from, &entry, sizeof(entry)))
		return false;
	for (int i = 0; i < OUTBOX_NNAMES; i++)
	{
		if (entry.lengths[i] < -1 ||
			entry.lengths[i] > OUTBOX_MAX_NAME * MAX_MULTIBYTE_CHAR_LEN)
			return false;
		size += Max(entry.lengths[i], 0);
	}
	if (size != entry.size || !OidIsValid(entry.dbid))
		return false;
	bytes = palloc(size + 1);
	if (!get(from, bytes, size))
		return false;
	copy->dbid = entry.dbid;
	copy->counted.kind = entry.kind;
	memcpy(copy->counted.lengths, entry.lengths, sizeof(entry.lengths));
	copy->counted.bytes = bytes;
	copy->since = entry.since;
	copy->counts = entry.counts;
	return true;
}

/*
 * How many entries the file can have at most, by its size: the number in its
 * header is not verified yet when memory is allocated for them.
 */
static int
room_for_entries(CheckedFile *from)
{
	struct stat info;

	if (fstat(fileno(from->file), &info) != 0)
		return 0;
	return (int) Min(info.st_size / sizeof(FileEntry),
					 MaxAllocSize / sizeof(OutboxCounterCopy) - 1);
}

/*
 * Read everything, and add it to the counters once its checksum is verified.
 * False if the file is damaged, or has another format.
 */
static bool
get_all(CheckedFile *from, OutboxCounterMemory *memory)
{
	FileHeader	header;
	OutboxCounterCopy *copies;
	pg_crc32c	expected;
	pg_crc32c	crc;

	if (!get(from, &header, sizeof(header)) || header.magic != MAGIC ||
		header.entry_size != sizeof(FileEntry) ||
		header.nentries < 0 || header.nentries > room_for_entries(from))
		return false;
	copies = palloc_array(OutboxCounterCopy, header.nentries + 1);
	for (int i = 0; i < header.nentries; i++)
	{
		if (!get_entry(from, &copies[i]))
			return false;
	}
	expected = from->crc;
	if (!get(from, &crc, sizeof(crc)) || !EQ_CRC32C(crc, expected))
		return false;
	memory->since = header.since;
	for (int i = 0; i < header.nentries; i++)
		outbox_counters_restore(memory, &copies[i]);
	return true;
}

/*
 * Read the file, if there is one, into counters that were just initialized, and
 * have it written when the server is shut down.
 */
void
outbox_counters_file_startup(OutboxCounterMemory *memory)
{
	CheckedFile from;
	MemoryContext context;
	MemoryContext old;

	if (IsUnderPostmaster)
		return;
	on_shmem_exit(write_file, PointerGetDatum(memory));
	from.file = AllocateFile(COUNTERS_FILE, PG_BINARY_R);
	if (from.file == NULL)
	{
		if (errno != ENOENT)
			ereport(LOG,
					(errcode_for_file_access(),
					 errmsg("could not open file \"%s\": %m", COUNTERS_FILE)));
		return;
	}
	INIT_CRC32C(from.crc);
	context = AllocSetContextCreate(CurrentMemoryContext, "outbox counters",
									ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	if (!get_all(&from, memory))
		ereport(LOG,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("ignoring file \"%s\", which has an unknown format or is damaged",
						COUNTERS_FILE)));
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	FreeFile(from.file);
	unlink(COUNTERS_FILE);
}
