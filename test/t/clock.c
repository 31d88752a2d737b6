/*
 * clock.c
 *	  The time of day, moved, for programs that load this before libc.
 *
 * The file named by OUTBOX_CLOCK holds how many seconds the clock is ahead, as
 * an int64.  It is mapped by the first process and inherited by all others, so a
 * change holds for all of them at once, also in signal handlers.  Monotonic time
 * is left alone, as it is when a clock is set.
 *
 * libfaketime would not do: processes that are forked by a signal handler, as
 * background workers are before PostgreSQL 16, get the true time from it, and it
 * allocates memory in signal handlers.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead = NULL;

static void __attribute__((constructor))
map_clock(void)
{
	const char *name = getenv("OUTBOX_CLOCK");
	int			file = name == NULL ? -1 : open(name, O_RDONLY | O_CLOEXEC);
	void	   *mapped;

	if (file < 0)
		return;
	mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
	close(file);
	if (mapped != MAP_FAILED)
		ahead = mapped;
}

int
clock_gettime(clockid_t id, struct timespec *at)
{
	int			result = syscall(SYS_clock_gettime, id, at);

	if (result == 0 && ahead != NULL &&
		(id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		at->tv_sec += *ahead;
	return result;
}

int
gettimeofday(struct timeval *at, void *zone)
{
	struct timespec now;

	(void) zone;
	if (clock_gettime(CLOCK_REALTIME, &now) != 0)
		return -1;
	at->tv_sec = now.tv_sec;
	at->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t
time(time_t *at)
{
	struct timespec now;

	if (clock_gettime(CLOCK_REALTIME, &now) != 0)
		return -1;
	if (at != NULL)
		*at = now.tv_sec;
	return now.tv_sec;
}
