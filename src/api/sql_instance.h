/*
 * sql_instance.h
 *	  Arguments that describe an instance.
 */
#ifndef OUTBOX_SQL_INSTANCE_H
#define OUTBOX_SQL_INSTANCE_H

#include "core/instance.h"
#include "fmgr.h"

extern void outbox_args_instance(FunctionCallInfo fcinfo,
								 OutboxInstance *instance);

#endif							/* OUTBOX_SQL_INSTANCE_H */
