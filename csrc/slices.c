#include "slices.h"

#include "parts/programs.h"
#include "pieces.h"

/* Set the present piece and its first slice; false if the piece is empty. */
static bool open_piece(clusim_sim *s, inst_id id) {
    const clusim_image *im = &s->model->image;
    inst_state *st = inst_at(s, id);
    const clusim_instance *x = &im->instances[id.i];
    const clusim_template *t = &im->templates[x->template];
    const clusim_prim *p = &im->prims[st->prim];
    st->slice_at = 0;
    st->slice_size = 1;
    st->slices_left = 1;
    if (p->repeat == 0) return false;
    if (p->flags & CLUSIM_PRIM_FLAG_SYNC) {
        st->piece = 0;
        return true;
    }
    st->piece = pieces_bytes(x, t, st->loop, pieces_chunk(t, p, x, st->repeat));
    uint64_t even = base_ceil_div(base_ceil_div(st->piece, x->slices), 16) * 16;
    st->slice_size = base_umax(base_umax(even, x->slice_min), 1);
    st->slices_left = x->slices;
    return st->piece > 0;
}

/* Advance to the next (repeat, primitive, loop); false at the end of the program. */
static bool next_piece(clusim_sim *s, inst_id id) {
    const clusim_image *im = &s->model->image;
    inst_state *st = inst_at(s, id);
    const clusim_template *t = &im->templates[im->instances[id.i].template];
    if (++st->repeat < im->prims[st->prim].repeat) return true;
    st->repeat = 0;
    if (++st->prim < t->prim_hi) return true;
    st->prim = t->prim_lo;
    return ++st->loop < st->loops;
}

bool slices_first(clusim_sim *s, inst_id id) {
    inst_state *st = inst_at(s, id);
    while (!open_piece(s, id)) {
        if (!next_piece(s, id)) return false;
    }
    st->has_slice = 1;
    return true;
}

bool slices_next(clusim_sim *s, inst_id id) {
    inst_state *st = inst_at(s, id);
    st->slice_at += st->slice_size;
    st->slices_left--;
    if (st->slice_at < st->piece) return true;
    return next_piece(s, id) && slices_first(s, id);
}

bool slices_last(clusim_sim *s, inst_id id) {
    inst_state *st = inst_at(s, id), present = *st;
    bool more = slices_next(s, id);
    *st = present;
    return !more;
}
