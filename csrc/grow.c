#include "grow.h"

#include <string.h>

STATUS grow_array_from(void *array, uint32_t *size, size_t element, uint32_t first) {
    void *old;
    memcpy(&old, array, sizeof old);
    if (*size > UINT32_MAX / 2) return CLUSIM_ERR_NO_MEMORY;
    uint32_t bigger = *size ? 2 * *size : first;
    void *moved = realloc(old, bigger * element);
    if (moved == NULL) return CLUSIM_ERR_NO_MEMORY;
    memcpy(array, &moved, sizeof moved);
    *size = bigger;
    return CLUSIM_OK;
}

STATUS grow_array(void *array, uint32_t *size, size_t element) {
    return grow_array_from(array, size, element, 256);
}

STATUS grow_lines(void **block, void *array, uint32_t *size, size_t element) {
    enum { LINE = 64, FIRST = 256 };
    char *old;
    memcpy(&old, array, sizeof old);
    if (*size > UINT32_MAX / 2) return CLUSIM_ERR_NO_MEMORY;
    uint32_t bigger = *size ? 2 * *size : FIRST;
    size_t skipped = *size ? (size_t)(old - (char *)*block) : 0;
    char *moved = realloc(*block, bigger * element + LINE);
    if (moved == NULL) return CLUSIM_ERR_NO_MEMORY;
    size_t skip = (LINE - (uintptr_t)moved % LINE) % LINE;
    if (skip != skipped) memmove(moved + skip, moved + skipped, *size * element);
    *block = moved;
    moved += skip;
    memcpy(array, &moved, sizeof moved);
    *size = bigger;
    return CLUSIM_OK;
}

STATUS grow_queue(void *array, uint32_t *first, uint32_t *len, uint32_t *size, size_t item) {
    if (*len < *size) return CLUSIM_OK;
    char *items;
    memcpy(&items, array, sizeof items);
    uint32_t left = *len - *first;
    if (left >= *size / 2) {
        uint32_t larger = *size ? 2 * *size : 64;
        items = realloc(items, larger * item);
        if (items == NULL) return CLUSIM_ERR_NO_MEMORY;
        memcpy(array, &items, sizeof items);
        *size = larger;
    }
    memmove(items, items + *first * item, left * item);
    *first = 0;
    *len = left;
    return CLUSIM_OK;
}
