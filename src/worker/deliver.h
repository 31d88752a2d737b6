/*
 * deliver.h
 *	  A worker's delivery of publications.
 */
#ifndef OUTBOX_DELIVER_H
#define OUTBOX_DELIVER_H

#include "postgres.h"

extern int64 outbox_deliver_pending(bool tries_all, void (*note_failure) (void),
									bool *none_fails);

#endif							/* OUTBOX_DELIVER_H */
