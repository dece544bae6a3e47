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
