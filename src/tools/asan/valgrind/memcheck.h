/*
 * memcheck.h
 *		valgrind's client requests, implemented with AddressSanitizer.
 *
 * A server compiled with USE_VALGRIND reports for each byte of its memory
 * contexts and shared buffers whether it may be accessed (utils/memdebug.h).
 * This header replaces valgrind's, so that AddressSanitizer learns that too;
 * by itself it knows only the blocks that malloc returns.  It does not track
 * whether memory has been initialized.
 */
#ifndef OUTBOX_MEMCHECK_H
#define OUTBOX_MEMCHECK_H

#include <sanitizer/asan_interface.h>

#include "valgrind.h"

#define VALGRIND_MAKE_MEM_NOACCESS(addr, size) \
	ASAN_POISON_MEMORY_REGION(addr, size)
#define VALGRIND_MAKE_MEM_UNDEFINED(addr, size) \
	ASAN_UNPOISON_MEMORY_REGION(addr, size)
#define VALGRIND_MAKE_MEM_DEFINED(addr, size) \
	ASAN_UNPOISON_MEMORY_REGION(addr, size)

/* The requested size, which may be less than that of the chunk */
#define VALGRIND_MEMPOOL_ALLOC(context, addr, size) \
	ASAN_UNPOISON_MEMORY_REGION(addr, size)
#define VALGRIND_MEMPOOL_CHANGE(context, old, addr, size) \
	ASAN_UNPOISON_MEMORY_REGION(addr, size)

/* wipe_mem(), which every context calls, makes freed memory inaccessible */
#define VALGRIND_MEMPOOL_FREE(context, addr) ((void) 0)
#define VALGRIND_CREATE_MEMPOOL(context, redzone, zeroed) ((void) 0)
#define VALGRIND_CREATE_MEMPOOL_EXT(context, redzone, zeroed, flags) ((void) 0)
#define VALGRIND_DESTROY_MEMPOOL(context) ((void) 0)
#define VALGRIND_MEMPOOL_TRIM(context, addr, size) ((void) 0)
#define VALGRIND_MOVE_MEMPOOL(old, context) ((void) 0)

#define VALGRIND_CHECK_MEM_IS_DEFINED(addr, size) ((void) 0)
#define VALGRIND_CHECK_MEM_IS_ADDRESSABLE(addr, size) ((void) 0)
#define VALGRIND_DO_LEAK_CHECK ((void) 0)
#define VALGRIND_DO_ADDED_LEAK_CHECK ((void) 0)
#define VALGRIND_DO_CHANGED_LEAK_CHECK ((void) 0)
#define VALGRIND_DO_QUICK_LEAK_CHECK ((void) 0)

/*
 * UBSan reads UBSAN_OPTIONS when it has something to report, and by then
 * set_ps_display() has overwritten the environment.  Newer versions of main.c
 * define this function; a weak definition makes way for that.
 */
extern const char *__ubsan_default_options(void);

__attribute__((weak)) const char *
__ubsan_default_options(void)
{
	return "abort_on_error=1:print_stacktrace=1";
}

#endif							/* OUTBOX_MEMCHECK_H */
