#include "grow.h"

#include <string.h>

STATUS grow_array_from(void *array, uint32_t *size, size_t element, uint32_t first) {
    void *old;
    memcpy(&old, array, sizeof old);
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
