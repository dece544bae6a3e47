#include "pieces.h"

static uint64_t all_loops(const clusim_instance *x, const clusim_template *t) {
    uint64_t span =
        t->mode == CLUSIM_MODE_INTERLEAVED ? t->nchunks * x->chunk_bytes : x->chunk_bytes;
    return base_ceil_div(x->length, span);
}

/* Lowest chunk number that any step of the template has. */
static uint64_t lowest_chunk(const clusim_image *im, const clusim_instance *x,
                             const clusim_template *t) {
    uint64_t lowest = UINT64_MAX;
    for (uint32_t p = t->prim_lo; p < t->prim_hi && lowest; p++) {
        const clusim_prim *prim = &im->prims[p];
        for (uint32_t i = 0; i < prim->repeat && i < t->nchunks; i++) /* then they repeat */
            lowest = base_umin(lowest, pieces_chunk(t, prim, x, i));
    }
    return lowest;
}

enum { STEPS_TO_COUNT = 1 << 20 };

/* Loops of mode 1 after which all pieces are cut off by `limit`: iterating over many of those would
 * be slow and without effect. */
static uint64_t loops_before_limit(const clusim_image *im, const clusim_instance *x,
                                   const clusim_template *t, uint64_t loops) {
    uint64_t steps = 0;
    for (uint32_t p = t->prim_lo; p < t->prim_hi; p++) steps += im->prims[p].repeat;
    if (t->mode == CLUSIM_MODE_INTERLEAVED || (base_u128)steps * loops < STEPS_TO_COUNT)
        return loops;
    if (steps == 0) return 0;
    uint64_t first = lowest_chunk(im, x, t) * x->stride + x->offset;
    if (first >= x->limit) return 0;
    return base_umin(loops, base_ceil_div(x->limit - first, x->chunk_bytes));
}

uint64_t pieces_loops(const clusim_image *im, const clusim_instance *x, const clusim_template *t) {
    for (uint32_t p = t->prim_lo; p < t->prim_hi; p++) {
        if (im->prims[p].flags & CLUSIM_PRIM_FLAG_SYNC) return base_umax(1, all_loops(x, t));
    }
    return loops_before_limit(im, x, t, all_loops(x, t));
}
