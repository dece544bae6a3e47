#include "list.h"

void *list_grow(void *ids, uint32_t *size) {
    uint32_t bigger = *size ? 2 * *size : 1024;
    void *moved = realloc(ids, bigger * sizeof(uint32_t));
    if (moved != NULL) *size = bigger;
    return moved;
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

void list_sort(void *ids, uint32_t count) { qsort(ids, count, sizeof(uint32_t), ascending); }
