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
extern int	outbox_priority_boost;
extern int	outbox_debounce_max;
extern int	outbox_max_attempts;
extern int	outbox_backoff_base;
extern int	outbox_backoff_max;
extern bool outbox_backoff_jitter;
extern int	outbox_retention;
extern int	outbox_dead_retention;
extern bool outbox_check_dedupe_tenant;
extern char *outbox_join_wait_topic;
extern int	outbox_publish_retention;
extern int	outbox_join_retention;
extern int	outbox_deduplication_retention;
extern int	outbox_depth_retention;
extern int	outbox_metrics_topics;
extern bool outbox_notify;
extern char *outbox_traceparent;
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
extern int	outbox_topic_counters_max;
extern bool outbox_track_counters;

/* The length of a traceparent of version 00. */
#define OUTBOX_TRACEPARENT_LEN 55

extern bool outbox_is_traceparent(const char *value, int len);
extern void outbox_guc_define(void);

/*
 * In a background process, the name of its database, else NULL: the %d of
 * log_line_prefix is the database of a client.
 */
extern const char *outbox_log_database;

/* Write one line about an operation at outbox.log_level. */
#define outbox_log(...) \
	ereport(outbox_log_level, \
			(errmsg(__VA_ARGS__), \
			 outbox_log_database == NULL ? 0 : \
			 (errcontext("background process in database \"%s\"", outbox_log_database)), \
			 errhidestmt(true)))

#endif							/* OUTBOX_GUC_H */
