#include "verify.h"

#include <string.h>

#include "parts/congestion.h"
#include "parts/packets.h"
#include "parts/spreads.h"
#include "parts/units.h"
#include "parts/wires.h"
#include "parts/xfers.h"

static STATUS unbalanced(clusim_error *e, uint64_t index, const char *what, int64_t found,
                         int64_t expected) {
    e->status = CLUSIM_ERR_CONSERVATION;
    e->index = (uint32_t)index;
    snprintf(e->message, sizeof e->message, "%s %llu: %lld, expected %lld", what,
             (unsigned long long)index, (long long)found, (long long)expected);
    return CLUSIM_ERR_CONSERVATION;
}

static packet_id following(const clusim_sim *s, uint64_t q, packet_id p) {
    return packet_is(p, s->wires.voqs[q].tail) ? NO(packet) : *next_of(s, p);
}

/* Bytes of packets in the receive buffer of a wire that wait for a wire that is down. */
static void count_held(const clusim_sim *s, int64_t *held) {
    for (uint64_t q = 0; q < s->model->num_voqs; q++) {
        for (packet_id p = s->wires.voqs[q].head; !packet_none(p); p = following(s, q, p)) {
            const packet *x = packet_at(s, p);
            if (x->batch || wire_none(x->held_wire) || (x->copy && !buffer_none(x->shared)))
                continue;
            held[x->held_wire.i * s->wires.nvc + x->held_vc] += x->held_bytes;
        }
    }
}

/* Buffers of multicast packets with stuck copies: found through any one copy. */
static void count_shared(const clusim_sim *s, int64_t *held, uint8_t *seen) {
    for (uint64_t q = 0; q < s->model->num_voqs; q++) {
        for (packet_id p = s->wires.voqs[q].head; !packet_none(p); p = following(s, q, p)) {
            const packet *x = packet_at(s, p);
            if (x->batch || wire_none(x->held_wire) || !x->copy || buffer_none(x->shared) ||
                seen[x->shared.i])
                continue;
            seen[x->shared.i] = 1;
            const shared_buffer *b = buffer_at(s, x->shared);
            held[b->wire.i * s->wires.nvc + b->vc] += b->bytes;
        }
    }
}

static STATUS check_credits(const clusim_sim *s, const int64_t *held, clusim_error *e) {
    for (uint64_t i = 0; i < s->model->image.num_wires * s->wires.nvc; i++) {
        if (s->wires.info[i / s->wires.nvc].traits & PAUSES) {
            int64_t left = (int64_t)s->congestion.pauses[i].held;
            if (left != held[i])
                return unbalanced(e, i / s->wires.nvc, "held by wire", left, held[i]);
            continue;
        }
        const credit_pool *c = &s->wires.credits[i];
        int64_t total = c->available + held[i];
        for (uint32_t k = c->head; k < c->end; k++) total += c->pending[k].bytes;
        int64_t buffer = (int64_t)s->model->image.wires[i / s->wires.nvc].buffer_bytes;
        if (total != buffer)
            return unbalanced(e, i / s->wires.nvc, "credit of wire", total, buffer);
    }
    return CLUSIM_OK;
}

bool verify_may_wait(const clusim_sim *s) {
    if (s->wires.down) return true;
    for (uint32_t w = 0; w < s->model->image.num_wires; w++) {
        if (s->wires.info[w].traits & PAUSES) continue;
        for (uint32_t q = 0; q < s->wires.info[w].num_voqs; q++) {
            packet_id head = s->wires.all[w].queues[q].head;
            if (!packet_none(head) &&
                packet_at(s, head)->wire_bytes > s->model->image.wires[w].buffer_bytes)
                return true;
        }
    }
    return false;
}

STATUS verify_balances(clusim_sim *s, clusim_error *e) {
    memset(e, 0, sizeof *e);
    int64_t *held = calloc(s->model->image.num_wires * s->wires.nvc + 1, sizeof *held);
    uint8_t *seen = calloc(s->buffers.size + 1, 1);
    enum clusim_status status = CLUSIM_ERR_NO_MEMORY;
    if (held && seen) {
        count_held(s, held);
        count_shared(s, held, seen);
        status = check_credits(s, held, e);
    }
    free(held);
    free(seen);
    if (status != CLUSIM_OK) return status;
    if (!verify_may_wait(s)) {
        if (s->packets.live) return unbalanced(e, 0, "packets left", s->packets.live, 0);
        if (s->xfers.live) return unbalanced(e, 0, "transfers left", s->xfers.live, 0);
        const orders_part *o = &s->spreads.orders;
        uint64_t sent = o->begun_bytes + o->repeated_bytes;
        uint64_t ended = o->arrived_bytes + o->dropped_bytes + o->trimmed_bytes;
        if (o->lines && sent != ended)
            return unbalanced(e, 0, "bytes received and dropped of receivers in order",
                              (int64_t)ended, (int64_t)sent);
        if (s->buffers.live) return unbalanced(e, 0, "shared buffers left", s->buffers.live, 0);
        for (uint32_t u = 0; u < s->model->image.num_units; u++) {
            if (s->units.all[u].in_use)
                return unbalanced(e, u, "bytes in unit", (int64_t)s->units.all[u].in_use, 0);
        }
    }
    return CLUSIM_OK;
}
