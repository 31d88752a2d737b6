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
	Assert(n >= 0 && n <= *max);
	if (n < *max)
		return array;
	if (array == NULL)
	{
		*max = OUTBOX_GROW_FIRST;
		return MemoryContextAlloc(context, *max * size);
	}
	*max *= 2;
	return repalloc_huge(array, *max * size);
}

/* The same in the current memory context, for typed arrays. */
#define outbox_grow(array, n, max) \
	((array) = outbox_grow_in(CurrentMemoryContext, (array), (n), &(max), \
							  sizeof(*(array))))

#endif							/* OUTBOX_GROW_H */
