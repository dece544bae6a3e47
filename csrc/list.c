#include "list.h"

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

void list_sort(void *ids, uint32_t count) { qsort(ids, count, sizeof(uint32_t), ascending); }
