/*
 * grow.h
 *	  Arrays that grow.
 */
#ifndef OUTBOX_GROW_H
#define OUTBOX_GROW_H

#include "postgres.h"

#include "utils/memutils.h"

#define OUTBOX_GROW_FIRST 16

/*
 * Make room for one more element in an array of n elements, of at most *max.
 * The first allocation is made in the given context; the array stays there.
 */
static inline void *
outbox_grow_in(MemoryContext context, void *array, int n, int *max, Size size)
{
	int			more;

	Assert(n >= 0 && n <= *max);
	if (n < *max)
		return array;
	more = array == NULL ? OUTBOX_GROW_FIRST : *max * 2;
	if (array == NULL)
		array = MemoryContextAlloc(context, more * size);
	else
		array = repalloc_huge(array, more * size);
	/* only now, because the array may outlive an error */
	*max = more;
	return array;
}

/* The same in the current memory context, for typed arrays. */
#define outbox_grow(array, n, max) \
	((array) = outbox_grow_in(CurrentMemoryContext, (array), (n), &(max), \
							  sizeof(*(array))))

#endif							/* OUTBOX_GROW_H */
