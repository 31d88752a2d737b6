/*
 * columns.h
 *	  The columns of the live tables and of their history, by number.
 *
 * The columns of every other table are known only to the file that reads and
 * writes it.  "make lint" compares all of them with the CREATE TABLE statements
 * in sql/.
 */
#ifndef OUTBOX_COLUMNS_H
#define OUTBOX_COLUMNS_H

/*
 * A live table: outbox.queue, outbox.inbox_queue, outbox.timer_queue,
 * outbox.run_queue.  The columns that a claim changes come first and have a
 * fixed width, because a heap update logs what is between the common prefix
 * and the common suffix of the two versions.
 */
enum
{
	Q_ID = 1,
	Q_LANE,
	Q_NEXT_ATTEMPT_AT,
	Q_UPDATED_AT,
	Q_LEASED_AT,
	Q_LOCKED_UNTIL,
	Q_OWNER_TOKEN,
	Q_ATTEMPTS,
	Q_RETRY_COUNT,
	Q_WAIVED,
	Q_PROGRESS,
	Q_STATUS,
	Q_FAILURE_REASON,
	Q_CREATED_AT,
	Q_MESSAGE_ID,
	Q_STREAM_SEQ,
	Q_DUE_TIME,
	Q_EXPIRES_AT,
	Q_TENANT_ID,
	Q_STREAM_ID,
	Q_PUBLISHED_ID,
	Q_PUBLISHED_AT,
	Q_SUBSCRIBER,
	Q_PRIORITY,
	Q_CAUSED_BY,
	Q_NAMESPACE,
	Q_TOPIC,
	Q_CORRELATION_ID,
	Q_DEDUPE_KEY,
	Q_HEADERS,
	Q_LAST_ERROR,
	Q_ERRORS,
	Q_PAYLOAD,
	Q_NATTS = Q_PAYLOAD
};

/*
 * A history table: the partitions of outbox.archive, outbox.dead, and the
 * _done and _dead tables of the other live tables: outbox.inbox_done,
 * outbox.inbox_dead, outbox.timer_done, outbox.timer_dead, outbox.run_done,
 * outbox.run_dead.
 */
enum
{
	H_ID = 1,
	H_CREATED_AT,
	H_PROCESSED_AT,
	H_KEEP,
	H_ATTEMPTS,
	H_RETRY_COUNT,
	H_PROGRESS,
	H_FAILURE_REASON,
	H_MESSAGE_ID,
	H_PROCESSED_BY,
	H_DUE_TIME,
	H_EXPIRES_AT,
	H_TENANT_ID,
	H_STREAM_ID,
	H_PUBLISHED_ID,
	H_PUBLISHED_AT,
	H_PRIORITY,
	H_CAUSED_BY,
	H_NAMESPACE,
	H_TOPIC,
	H_SUBSCRIPTION,
	H_CORRELATION_ID,
	H_DEDUPE_KEY,
	H_HEADERS,
	H_LAST_ERROR,
	H_ERRORS,
	H_PAYLOAD,
	H_NATTS = H_PAYLOAD
};

#endif							/* OUTBOX_COLUMNS_H */
