/*
 * valgrind.h
 *		The server does not run under valgrind; see memcheck.h.
 */
#ifndef OUTBOX_VALGRIND_H
#define OUTBOX_VALGRIND_H

#define RUNNING_ON_VALGRIND 0
#define VALGRIND_COUNT_ERRORS 0
#define VALGRIND_PRINTF(...) ((void) 0)
#define VALGRIND_DISABLE_ERROR_REPORTING ((void) 0)
#define VALGRIND_ENABLE_ERROR_REPORTING ((void) 0)

#endif							/* OUTBOX_VALGRIND_H */
