#include "grow.h"

#include <string.h>

enum { FIRST_SIZE = 256 };

STATUS grow_array(void *array, uint32_t *size, size_t element) {
    void *old;
    memcpy(&old, array, sizeof old);
    uint32_t bigger = *size ? 2 * *size : FIRST_SIZE;
    void *moved = realloc(old, bigger * element);
    if (moved == NULL) return CLUSIM_ERR_NO_MEMORY;
    memcpy(array, &moved, sizeof moved);
    *size = bigger;
    return CLUSIM_OK;
}
