/*
 * malloc.c
 *	  malloc that fails on request, for programs that load this before libc.
 *
 * The file named by OUTBOX_MALLOC holds the id of a process, and how many more
 * calls of malloc and realloc for more than so many bytes succeed in it; the one
 * after that fails, and no other.  It is mapped by the first process and inherited
 * by all others.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_realloc(void *old, size_t size);

typedef struct Plan
{
	int64_t		pid;
	int64_t		left;
	int64_t		larger;
} Plan;

static volatile Plan *plan = NULL;

static void __attribute__((constructor))
map_plan(void)
{
	const char *name = getenv("OUTBOX_MALLOC");
	int			file = name == NULL ? -1 : open(name, O_RDWR | O_CLOEXEC);
	void	   *mapped;

	if (file < 0)
		return;
	mapped = mmap(NULL, sizeof(Plan), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (mapped != MAP_FAILED)
		plan = mapped;
}

static int
fails(size_t size)
{
	if (plan == NULL || plan->pid != getpid() || (int64_t) size <= plan->larger ||
		plan->left < 0 || plan->left-- > 0)
		return 0;
	errno = ENOMEM;
	return 1;
}

void *
malloc(size_t size)
{
	return fails(size) ? NULL : __libc_malloc(size);
}

void *
realloc(void *old, size_t size)
{
	return fails(size) ? NULL : __libc_realloc(old, size);
}
