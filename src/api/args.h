/*
 * args.h
 *	  The arguments of SQL-callable functions.
 */
#ifndef OUTBOX_ARGS_H
#define OUTBOX_ARGS_H

#include "postgres.h"

#include "fmgr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

extern void outbox_require_writable(const char *function);
extern void outbox_require(FunctionCallInfo fcinfo, int arg, const char *name);
extern const pg_uuid_t *outbox_arg_uuid(FunctionCallInfo fcinfo, int arg,
										const char *name);
extern const pg_uuid_t *outbox_arg_uuid_or_null(FunctionCallInfo fcinfo,
												int arg);
extern const text *outbox_arg_text_or_null(FunctionCallInfo fcinfo, int arg);
extern bool outbox_is_name(const text *value);
extern void outbox_check_name(const text *value, const char *name);
extern const text *outbox_arg_name(FunctionCallInfo fcinfo, int arg,
								   const char *name);
extern const text *outbox_arg_name_or_null(FunctionCallInfo fcinfo, int arg,
										   const char *name);
extern int	outbox_arg_int(FunctionCallInfo fcinfo, int arg, const char *name,
						   int fallback, int min, int max);
extern void outbox_args_subscribers(const text *namespace,
									const text *subscription,
									const int32 **subscribers,
									int *nsubscribers);
extern const TimestampTz *outbox_arg_time_or_null(FunctionCallInfo fcinfo,
												  int arg, TimestampTz *space);
extern const Interval *outbox_arg_delay_or_null(FunctionCallInfo fcinfo,
												int arg, const char *name);
extern void outbox_arg_array(FunctionCallInfo fcinfo, int arg,
							 const char *name, Oid type, Datum **values,
							 bool **isnull, int *n);
extern void outbox_arg_list(FunctionCallInfo fcinfo, int arg, const char *name,
							Oid type, Datum **values, bool **isnull, int *n);
extern const text *outbox_empty_to_null(const text *value);
extern int64 *outbox_arg_ids(FunctionCallInfo fcinfo, int arg,
							 const char *name, int *n);

#endif							/* OUTBOX_ARGS_H */
