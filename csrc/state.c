#include "state.h"

#include <string.h>

STATUS state_zeroed(void *array, uint64_t count, size_t element) {
    void *made = calloc(count + 1, element);
    if (made == NULL) return CLUSIM_ERR_NO_MEMORY;
    memcpy(array, &made, sizeof made);
    return CLUSIM_OK;
}
