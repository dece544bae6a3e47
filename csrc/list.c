#include "list.h"

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

enum { SHORT = 16 }; /* up to this length, insertion is faster than a call per comparison */

static void insert_all(uint32_t *ids, uint32_t count) {
    for (uint32_t i = 1; i < count; i++) {
        uint32_t id = ids[i], k = i;
        for (; k > 0 && ids[k - 1] > id; k--) ids[k] = ids[k - 1];
        ids[k] = id;
    }
}

void list_sort(void *ids, uint32_t count) {
    if (count <= SHORT) {
        insert_all(ids, count);
    } else {
        qsort(ids, count, sizeof(uint32_t), ascending);
    }
}
