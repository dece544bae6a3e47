#include "window_wire.h"

#include <string.h>

static uint32_t run_end(const window_arrival *a, uint32_t from, uint32_t n) {
    uint32_t end = from + 1;
    while (end < n && a[end].at_ps >= a[end - 1].at_ps) end++;
    return end;
}

/* Merge neighbouring ascending runs of `from` into `to`; returns how many runs there were. */
static uint32_t merge_runs(const window_arrival *from, window_arrival *to, uint32_t n) {
    uint32_t runs = 0, out = 0;
    for (uint32_t a = 0; a < n;) {
        uint32_t middle = run_end(from, a, n), b = middle;
        uint32_t end = middle < n ? run_end(from, middle, n) : n;
        runs += middle < n ? 2 : 1;
        while (a < middle && b < end)
            to[out++] = from[b].at_ps < from[a].at_ps ? from[b++] : from[a++];
        while (a < middle) to[out++] = from[a++];
        while (b < end) to[out++] = from[b++];
        a = end;
    }
    return runs;
}

STATUS window_wire_sort(clusim_sim *s, window_arrival *a, uint32_t n) {
    if (n <= 24) {
        for (uint32_t i = 1; i < n; i++) {
            window_arrival moved = a[i];
            uint32_t k = i;
            for (; k > 0 && a[k - 1].at_ps > moved.at_ps; k--) a[k] = a[k - 1];
            a[k] = moved;
        }
        return CLUSIM_OK;
    }
    while (s->windows.size_spare < n)
        TRY(grow_array(&s->windows.spare, &s->windows.size_spare, sizeof *a));
    window_arrival *spare = s->windows.spare;
    while (merge_runs(a, spare, n) > 1) memcpy(a, spare, n * sizeof *a);
    return CLUSIM_OK;
}
