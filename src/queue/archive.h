/*
 * archive.h
 *	  The partitions of outbox.archive.
 */
#ifndef OUTBOX_ARCHIVE_H
#define OUTBOX_ARCHIVE_H

#include "postgres.h"

#include "access/attnum.h"
#include "datatype/timestamp.h"
#include "utils/relcache.h"
#include "utils/uuid.h"

/*
 * Returns whether the message is in this partition, using its index on
 * message_id.
 */
typedef bool (*OutboxArchiveVisit) (Relation partition, Oid index,
									const pg_uuid_t *message_id);

extern void outbox_archive_init(void);
extern Oid	outbox_archive_partition(int *keep, TimestampTz at);
extern Oid	outbox_partition_index(Relation partition, AttrNumber attnum);
extern bool outbox_archive_search(const pg_uuid_t *message_id,
								  OutboxArchiveVisit visit);

#endif							/* OUTBOX_ARCHIVE_H */
