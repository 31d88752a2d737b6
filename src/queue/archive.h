/*
 * archive.h
 *	  The partitions of outbox.archive.
 */
#ifndef OUTBOX_ARCHIVE_H
#define OUTBOX_ARCHIVE_H

#include "postgres.h"

#include "datatype/timestamp.h"

extern void outbox_archive_init(void);
extern Oid	outbox_archive_partition(int keep, TimestampTz at);

#endif							/* OUTBOX_ARCHIVE_H */
