/*
 * compat.h
 *	  Differences between PostgreSQL 15, 16, 17 and 18.
 *
 * Where names and arguments differ, the rest of src/ uses the newest API, and
 * this file provides it for older servers.  Four differences are in other
 * files: shmem.c has two ways to get a dynamic segment, handler_bind.c two
 * checks, of a role and of a function, and background.c disables a timeout
 * that older servers do not have.
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
 * From the server's header of libpq, which cannot be included: it needs
 * headers of GSSAPI, which the packages of the server do not contain.
 */
extern PGDLLIMPORT WaitEventSet *FeBeWaitSet;
extern bool pq_check_connection(void);
#define OUTBOX_CLIENT_SOCKET 0	/* FeBeWaitSetSocketPos */

/* 18 also checks generated columns. */
#if PG_VERSION_NUM >= 180000
#define OUTBOX_GENERATED_IS_VALID(p) \
	((p)->gencols_valid_for_update && (p)->gencols_valid_for_delete)
#else
#define OUTBOX_GENERATED_IS_VALID(p) true
#endif

/*
 * Do the publication's row filters and column lists allow UPDATE and DELETE?
 */
#define OUTBOX_PUBLICATION_IS_VALID(p) \
	((p)->rf_valid_for_update && (p)->rf_valid_for_delete && \
	 (p)->cols_valid_for_update && (p)->cols_valid_for_delete && \
	 OUTBOX_GENERATED_IS_VALID(p))

/* 17 has the number of the process in another variable. */
#if PG_VERSION_NUM >= 170000
#define OUTBOX_MY_PROC_NUMBER MyProcNumber
#else
#define OUTBOX_MY_PROC_NUMBER (MyProc->pgprocno)
#endif

#endif							/* OUTBOX_COMPAT_H */
