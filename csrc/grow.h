/* grow.h - arrays that grow by doubling. */
#ifndef CLUSIM_GROW_H
#define CLUSIM_GROW_H

#include "base.h"

/* Double the array that the pointer at `array` points to, with `size` elements of `element` bytes
 * each; if memory is short, or `size` would pass 2^32, it stays unchanged. New elements are
 * uninitialised. */
__attribute__((cold)) STATUS grow_array(void *array, uint32_t *size, size_t element);

/* The same, of `first` elements at first. */
__attribute__((cold)) STATUS grow_array_from(void *array, uint32_t *size, size_t element,
                                             uint32_t first);

/* GROW(q->ready, q->ready_size) */
#define GROW(array, size) TRY(grow_array(&(array), &(size), sizeof *(array)))

/* The same of elements that fill cache lines: `array` lies aligned in `block`. Large blocks are not
 * copied when they grow, as pages move; the first line then has the same offset in the block. */
__attribute__((cold)) STATUS grow_lines(void **block, void *array, uint32_t *size, size_t element);

/* GROW_LINES(s->xfers) */
#define GROW_LINES(part) grow_lines(&(part).block, &(part).all, &(part).size, sizeof *(part).all)

/* Ensure that a queue has space for a further item: `items` from `first` to `len`, of `size`. */
STATUS grow_queue(void *array, uint32_t *first, uint32_t *len, uint32_t *size, size_t item);

/* QUEUE_ROOM(&f->sent) */
#define QUEUE_ROOM(list)                                                                           \
    TRY(grow_queue(&(list)->items, &(list)->first, &(list)->len, &(list)->size,                    \
                   sizeof *(list)->items))

#endif
