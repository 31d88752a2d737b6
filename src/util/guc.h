/*
 * guc.h
 *	  The settings, outbox.*
 */
#ifndef OUTBOX_GUC_H
#define OUTBOX_GUC_H

#include "postgres.h"

/* How workers divide their time among databases. */
typedef enum OutboxSelectionStrategy
{
	OUTBOX_ROUND_ROBIN,
	OUTBOX_DRAIN_FIRST
} OutboxSelectionStrategy;

extern int	outbox_lease_seconds;
extern int	outbox_batch_size;
extern int	outbox_poll_interval;
extern int	outbox_max_attempts;
extern int	outbox_backoff_base;
extern int	outbox_backoff_max;
extern bool outbox_backoff_jitter;
extern int	outbox_retention;
extern int	outbox_dead_retention;
extern bool outbox_check_dedupe_tenant;
extern char *outbox_join_wait_topic;
extern int	outbox_join_retention;
extern int	outbox_deduplication_retention;
extern bool outbox_notify;
extern bool outbox_dispatch_timers;
extern bool outbox_allow_superuser_handlers;
extern char *outbox_databases;
extern int	outbox_discovery_interval;
extern int	outbox_max_workers;
extern int	outbox_max_handler_workers;
extern int	outbox_handler_timeout;
extern bool outbox_workers;
extern int	outbox_selection_strategy;
extern int	outbox_log_level;
extern bool outbox_use_cursor;
extern bool outbox_use_direct;
extern int	outbox_lane_memory_mb;

extern void outbox_guc_define(void);

/* Write one line about an operation at outbox.log_level. */
#define outbox_log(...) \
	ereport(outbox_log_level, (errmsg(__VA_ARGS__), errhidestmt(true)))

#endif							/* OUTBOX_GUC_H */
