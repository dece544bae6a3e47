#include "fence.h"

#include "parts/programs.h"
#include "parts/scheduler.h"
#include "scheduler.h"

void fence_init(clusim_sim *s) {
    s->programs.held_free = NONE;
    for (uint64_t i = 0; i < s->model->image.num_instances; i++) {
        inst_state *st = &s->programs.insts[i];
        st->xfer = st->fence = NO(xfer);
        st->held = NONE;
    }
}

void fence_free(clusim_sim *s) { free(s->programs.held); }

STATUS fence_post(clusim_sim *s, conn_id conn, uint32_t ordinal) {
    conn_state *c = conn_at(s, conn);
    c->missing[ordinal & 63]--;
    uint32_t width = 0;
    while (c->posted < c->sends && c->missing[c->posted & 63] == 0) {
        width += c->width[c->posted & 63];
        c->posted++;
    }
    if (width)
        TRY(scheduler_event(s, s->scheduler.now_ps + s->model->image.conns[conn.i].tail_ps, EV_TAIL,
                            width, conn.i));
    return CLUSIM_OK;
}

/* ---- the fence --------------------------------------------------------------------------------
 */

static STATUS more_held(programs_part *p) {
    uint32_t first = p->held_size;
    GROW(p->held, p->held_size);
    for (uint32_t k = first; k < p->held_size; k++)
        p->held[k].next = k + 1 < p->held_size ? k + 1 : NONE;
    p->held_free = first;
    return CLUSIM_OK;
}

STATUS fence_post_after(clusim_sim *s, inst_id inst, conn_id conn, uint32_t ordinal) {
    programs_part *p = &s->programs;
    inst_state *st = inst_at(s, inst);
    if (xfer_none(st->fence)) return fence_post(s, conn, ordinal);
    if (p->held_free == NONE) TRY(more_held(p));
    uint32_t k = p->held_free;
    p->held_free = p->held[k].next;
    p->held[k] = (held_slice){conn, ordinal, st->held};
    st->held = k;
    return CLUSIM_OK;
}

void fence_begin(clusim_sim *s, inst_id inst) {
    inst_state *st = inst_at(s, inst);
    st->fence = st->xfer;
}

STATUS fence_end(clusim_sim *s, inst_id inst, xfer_id multicast) {
    inst_state *st = inst_at(s, inst);
    programs_part *p = &s->programs;
    if (xfer_is(st->xfer, multicast)) st->xfer = NO(xfer);
    if (!xfer_is(st->fence, multicast)) return CLUSIM_OK;
    st->fence = NO(xfer);
    while (st->held != NONE) {
        held_slice *held = &p->held[st->held];
        uint32_t next = held->next;
        TRY(fence_post(s, held->conn, held->ordinal));
        held->next = p->held_free;
        p->held_free = st->held;
        st->held = next;
    }
    return CLUSIM_OK;
}
