/* slices.h - iteration of an instance over its slices (contract, section 7, iteration). */
#ifndef CLUSIM_SLICES_H
#define CLUSIM_SLICES_H

#include "parts/programs.h"
#include "state.h"

/* Open the present piece or, if it is empty, the next non-empty one; its first slice becomes the
 * present one. False at the end of the program. */
bool slices_first(clusim_sim *s, inst_id id);

/* Advance to the slice after the present one; false at the end of the program. */
bool slices_next(clusim_sim *s, inst_id id);

/* True if no slice follows the present one. */
bool slices_last(clusim_sim *s, inst_id id);

static inline uint64_t slices_bytes(const inst_state *st) {
    return base_umin(st->slice_size, st->piece - base_umin(st->piece, st->slice_at));
}

#endif
