/* pieces.h - which bytes a primitive moves (contract, section 7): chunk numbers, sizes, loops. No
 * state. */
#ifndef CLUSIM_PIECES_H
#define CLUSIM_PIECES_H

#include "model.h"

static inline uint64_t pieces_chunk(const clusim_template *t, const clusim_prim *p,
                                    const clusim_instance *x, uint32_t i) {
    int64_t n = t->nchunks; /* below 2^32; each sum stays below 2^63, their sum might not */
    int64_t start = ((int64_t)p->base + (int64_t)p->coef * x->rotation) % n;
    int64_t q = (start + (int64_t)p->step * i % n) % n;
    return (uint64_t)(q < 0 ? q + n : q);
}

static inline uint64_t pieces_up_align(uint64_t bytes, uint64_t align) {
    return base_ceil_div(bytes, align) * align;
}

static inline uint64_t pieces_bytes(const clusim_instance *x, const clusim_template *t,
                                    uint64_t loop, uint64_t q) {
    if (t->mode == CLUSIM_MODE_INTERLEAVED) {
        uint64_t span = t->nchunks * x->chunk_bytes,
                 rem = x->length - base_umin(x->length, loop * span);
        uint64_t c = x->chunk_bytes;
        if (rem < span) c = base_umin(c, pieces_up_align(base_ceil_div(rem, t->nchunks), x->align));
        uint64_t all = base_umin(rem, span);
        return all > q * c ? base_umin(all - q * c, c) : 0;
    }
    uint64_t lo = q * x->stride + x->offset + loop * x->chunk_bytes;
    uint64_t hi = base_umin(lo + x->chunk_bytes, q * x->stride + x->offset + x->length);
    hi = base_umin(hi, x->limit);
    return hi > lo ? hi - lo : 0;
}

/* Loops of an instance that have something to do, or that its primitives synchronise in. */
uint64_t pieces_loops(const clusim_image *im, const clusim_instance *x, const clusim_template *t);

#endif
