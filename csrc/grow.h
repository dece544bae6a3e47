/* grow.h - arrays that grow by doubling. */
#ifndef CLUSIM_GROW_H
#define CLUSIM_GROW_H

#include "base.h"

/* Double the array that the pointer at `array` points to, whose `size` elements take `element`
 * bytes each; without memory it stays as it is. What is new has no value yet. */
__attribute__((cold)) STATUS grow_array(void *array, uint32_t *size, size_t element);

/* The same, of `first` elements at first. */
__attribute__((cold)) STATUS grow_array_from(void *array, uint32_t *size, size_t element,
                                             uint32_t first);

/* GROW(q->ready, q->ready_size) */
#define GROW(array, size) TRY(grow_array(&(array), &(size), sizeof *(array)))

#endif
