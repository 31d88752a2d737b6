/*
 * epoch.c
 *	  What all versions of the library agree on: whether memory can be trusted.
 *
 * What shared memory knows of a live table is true only as long as everybody who
 * writes the table reports it there.  Four kinds of writers do not: sessions that
 * could not map the memory, sessions with another version of the library, which
 * has a memory of its own or none, sessions in which the triggers on the table
 * do not fire, and TRUNCATE.  So each table has an epoch.  Whoever has written a
 * table without reporting it, or notices that somebody may have, raises the
 * epoch; and whoever uses the memory compares the epoch with that under which
 * the memory was filled, and forgets everything if they differ.
 *
 * The epochs are in a small struct in the server's main shared memory, the name
 * and the layout of which never change.  A table's epoch is found by a hash, and
 * tables that share one cost each other a scan.
 *
 * The struct also says which library keeps a memory: the first that asks, until
 * all its sessions have ended.  Sessions with another one are strangers.  They do
 * without memory, and raise the epoch at the end of each transaction that has
 * written.  While there are strangers that write, claims that wait must look from
 * time to time, because strangers wake nobody.
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
	pg_atomic_uint64 library;	/* that keeps a memory; 0: none */
	pg_atomic_uint32 attached;	/* its sessions */
	pg_atomic_uint32 strangers; /* sessions that write and do not report */
	pg_atomic_uint64 epochs[NEPOCHS];
} Epochs;

static Epochs *epochs = NULL;
static bool is_stranger = false;

/* While the library is being preloaded. */
void
outbox_epoch_request(void)
{
	RequestAddinShmemSpace(sizeof(Epochs));
}

/*
 * Find the struct, or make it.  The caller holds AddinShmemInitLock.  Without
 * preloading there is room for it in what the server keeps spare.
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
 * May this session use the memory that its library keeps?  The caller holds
 * AddinShmemInitLock.
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
		/* whatever an earlier memory of this library knows is out of date */
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

/* Under which epoch is this table now? */
uint64
outbox_epoch(Oid relid)
{
	return pg_atomic_read_u64(epoch_of(relid));
}

/* Something may have been written that was not reported. */
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

/* This session writes, and cannot report what. */
void
outbox_epoch_be_stranger(void)
{
	if (is_stranger || epochs == NULL)
		return;
	is_stranger = true;
	pg_atomic_fetch_add_u32(&epochs->strangers, 1);
	before_shmem_exit(stranger_leaves, (Datum) 0);
}

bool
outbox_epoch_strangers(void)
{
	return epochs != NULL && pg_atomic_read_u32(&epochs->strangers) > 0;
}
