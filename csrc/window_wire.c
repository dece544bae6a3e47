#include "window_wire.h"

#include <string.h>

/* Arrivals from several wires, each sorted by time, are nearly uniform in the window: distribute
 * them over as many time buckets as there are elements; little sorting remains. */
enum { FEW = 10, MOST_BUCKETS = 1 << 10 };

/* Stable. */
static void insert_all(window_arrival *a, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        if (a[i - 1].at_ps <= a[i].at_ps) continue;
        window_arrival moved = a[i];
        uint32_t k = i;
        for (; k > 0 && a[k - 1].at_ps > moved.at_ps; k--) a[k] = a[k - 1];
        a[k] = moved;
    }
}

/* Shift for which the bucket of a time is (time - begin) >> shift. */
static uint32_t bucket_shift(uint64_t length_ps, uint32_t n) {
    uint32_t length_bits = 64 - (uint32_t)__builtin_clzll(length_ps | 1);
    uint32_t bits = 32 - (uint32_t)__builtin_clz(n < MOST_BUCKETS / 2 ? n : MOST_BUCKETS / 2 - 1);
    return length_bits > bits ? length_bits - bits : 0;
}

/* From `a` to `to`. */
static void throw_all(const clusim_sim *s, const window_arrival *a, window_arrival *to,
                      uint32_t n) {
    uint32_t at[MOST_BUCKETS + 1];
    int64_t begin_ps = s->windows.begin_ps;
    uint64_t length_ps = (uint64_t)(s->windows.end_ps - begin_ps);
    uint32_t shift = bucket_shift(length_ps, n), buckets = (uint32_t)(length_ps >> shift) + 1;
    memset(at, 0, (buckets + 1) * sizeof *at);
    for (uint32_t i = 0; i < n; i++) at[((uint64_t)(a[i].at_ps - begin_ps) >> shift) + 1]++;
    for (uint32_t b = 1; b < buckets; b++) at[b] += at[b - 1];
    for (uint32_t i = 0; i < n; i++) to[at[(uint64_t)(a[i].at_ps - begin_ps) >> shift]++] = a[i];
}

STATUS window_wire_sort(clusim_sim *s, window_arrival **all, uint32_t n) {
    window_scratch *d = &s->windows.scratch;
    if (n > FEW) {
        while (d->size_spare <= n) GROW(d->spare, d->size_spare);
        throw_all(s, *all, d->spare, n);
        *all = d->spare;
    }
    insert_all(*all, n);
    return CLUSIM_OK;
}
