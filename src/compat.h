/*
 * compat.h
 *	  The differences between PostgreSQL 15, 16, 17 and 18 that we meet.
 *
 * Where they are names and arguments, the rest of src/ is written against one
 * API, the newest, and this file bends the older ones to it.  Four differences
 * stand where they matter: shmem.c has two ways to a dynamic segment, handler_bind.c
 * two checks, of a role and of a function, and worker.c switches off a timeout
 * that older servers have not.
 */
#ifndef OUTBOX_COMPAT_H
#define OUTBOX_COMPAT_H

#include "postgres.h"

#include "access/genam.h"
#include "access/tableam.h"
#include "funcapi.h"
#include "storage/latch.h"
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

#if PG_VERSION_NUM < 150000
#error "outbox needs PostgreSQL 15 or later"
#endif

/* 16 reports which indexes an update must insert into, 15 only whether. */
#if PG_VERSION_NUM >= 160000
typedef TU_UpdateIndexes OutboxUpdateIndexes;
#define OUTBOX_UPDATE_NEEDS_INDEXES(u) ((u) == TU_All)
#else
typedef bool OutboxUpdateIndexes;
#define OUTBOX_UPDATE_NEEDS_INDEXES(u) (u)
#define InitMaterializedSRF(fcinfo, flags) SetSingleFuncCall(fcinfo, flags)
#endif

/* 16 can report a bad name without raising an error. */
#if PG_VERSION_NUM >= 160000
#define outbox_split_qualified(name) stringToQualifiedNameList(name, NULL)
#else
#define outbox_split_qualified(name) stringToQualifiedNameList(name)
#endif

/* 18 counts index searches for EXPLAIN. */
#if PG_VERSION_NUM >= 180000
#define outbox_index_beginscan(heap, index, snap, nkeys) \
	index_beginscan(heap, index, snap, NULL, nkeys, 0)
#else
#define outbox_index_beginscan(heap, index, snap, nkeys) \
	index_beginscan(heap, index, snap, nkeys, 0)
#endif

/* 17 lets a background worker connect as a role that cannot log in. */
#if PG_VERSION_NUM >= 170000
#define OUTBOX_BGWORKER_ANY_ROLE BGWORKER_BYPASS_ROLELOGINCHECK
#else
#define OUTBOX_BGWORKER_ANY_ROLE 0
#endif

/*
 * From the header of the server's libpq, which cannot be included: it wants
 * headers of GSSAPI, and the packages of the server do not bring them.
 */
extern PGDLLIMPORT WaitEventSet *FeBeWaitSet;
extern bool pq_check_connection(void);
#define OUTBOX_CLIENT_SOCKET 0	/* FeBeWaitSetSocketPos */

/* 17 numbers processes in a variable of its own. */
#if PG_VERSION_NUM >= 170000
#define OUTBOX_MY_PROC_NUMBER MyProcNumber
#else
#define OUTBOX_MY_PROC_NUMBER (MyProc->pgprocno)
#endif

#endif							/* OUTBOX_COMPAT_H */
