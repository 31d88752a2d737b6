/*
 * epoch.c
 *	  Whether shared memory can be trusted; shared by all versions of the
 *	  library.
 *
 * The contents of shared memory about a live table are valid only as long as
 * all writers of the table report their changes there.  Four kinds of writers
 * do not: sessions that could not map the memory, sessions with another
 * version of the library, which has memory of its own or none, sessions in
 * which the triggers on the table do not fire, and TRUNCATE.  So each table
 * has an epoch.  A session that has written a table without reporting it, or
 * detects that another one may have, raises the epoch; and a session that uses
 * the memory compares the epoch with that of the memory's contents, and
 * discards these if they differ.
 *
 * The epochs are in a small struct in the server's main shared memory, whose
 * name and layout never change.  A table's epoch is found by a hash; if tables
 * collide, raising the epoch of one costs the other a scan.
 *
 * The struct also says which version of the library uses shared memory: the
 * first to attach, until all its sessions have ended.  Sessions with another
 * version are strangers.  They work without shared memory, and raise the epoch
 * at the end of each transaction that has written.  While there are strangers
 * that write, waiting claims must poll, because strangers do not wake them.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#include "shmem/epoch.h"

/* None of these may ever change. */
#define EPOCHS_NAME "outbox epochs"
#define EPOCHS_MAGIC 0x0b0e60c5
#define NEPOCHS 128

typedef struct Epochs
{
	uint32		magic;
	uint32		reserved;
	pg_atomic_uint64 library;	/* that uses shared memory; 0: none */
	pg_atomic_uint32 attached;	/* number of its sessions */
	pg_atomic_uint32 strangers; /* sessions that write without reporting */
	pg_atomic_uint64 epochs[NEPOCHS];
} Epochs;

static Epochs *epochs = NULL;
static bool is_stranger = false;

/* Request space for the struct, while the library is being preloaded. */
void
outbox_epoch_request(void)
{
	RequestAddinShmemSpace(sizeof(Epochs));
}

/*
 * Find the struct, or create it.  The caller must hold AddinShmemInitLock.
 * Without preloading, it fits into the slack of the server's shared memory.
 */
void
outbox_epoch_startup(void)
{
	bool		found;
	Epochs	   *made = ShmemInitStruct(EPOCHS_NAME, sizeof(Epochs), &found);

	if (!found)
	{
		made->magic = EPOCHS_MAGIC;
		made->reserved = 0;
		pg_atomic_init_u64(&made->library, 0);
		pg_atomic_init_u32(&made->attached, 0);
		pg_atomic_init_u32(&made->strangers, 0);
		for (int i = 0; i < NEPOCHS; i++)
			pg_atomic_init_u64(&made->epochs[i], 1);
	}
	Assert(made->magic == EPOCHS_MAGIC);
	epochs = made;
}

static void
detach(int code, Datum arg)
{
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	pg_atomic_fetch_sub_u32(&epochs->attached, 1);
	LWLockRelease(AddinShmemInitLock);
}

/*
 * Register this session as a user of its library's memory; false if another
 * version uses it.  The caller must hold AddinShmemInitLock.
 */
bool
outbox_epoch_attach(uint64 library)
{
	uint64		keeper = pg_atomic_read_u64(&epochs->library);

	Assert(library != 0);
	if (keeper != library && keeper != 0 &&
		pg_atomic_read_u32(&epochs->attached) > 0)
		return false;
	if (keeper != library)
	{
		/* the contents of earlier memory of this library are out of date */
		for (int i = 0; i < NEPOCHS; i++)
			pg_atomic_fetch_add_u64(&epochs->epochs[i], 1);
		pg_atomic_write_u64(&epochs->library, library);
	}
	pg_atomic_fetch_add_u32(&epochs->attached, 1);
	before_shmem_exit(detach, (Datum) 0);
	return true;
}

static pg_atomic_uint64 *
epoch_of(Oid relid)
{
	uint32		hash = (relid ^ MyDatabaseId * 0x9e3779b9) * 0x85ebca6b;

	return &epochs->epochs[(hash >> 16) % NEPOCHS];
}

/* The present epoch of a table. */
uint64
outbox_epoch(Oid relid)
{
	return pg_atomic_read_u64(epoch_of(relid));
}

/*
 * Raise the epoch of a table, to which unreported changes may have been made.
 */
void
outbox_epoch_raise(Oid relid)
{
	if (epochs != NULL)
		pg_atomic_fetch_add_u64(epoch_of(relid), 1);
}

static void
stranger_leaves(int code, Datum arg)
{
	pg_atomic_fetch_sub_u32(&epochs->strangers, 1);
}

/* Count this session as one that writes and cannot report it. */
void
outbox_epoch_be_stranger(void)
{
	if (is_stranger || epochs == NULL)
		return;
	is_stranger = true;
	pg_atomic_fetch_add_u32(&epochs->strangers, 1);
	before_shmem_exit(stranger_leaves, (Datum) 0);
}

/* Are there sessions that write without reporting it? */
bool
outbox_epoch_strangers(void)
{
	return epochs != NULL && pg_atomic_read_u32(&epochs->strangers) > 0;
}
