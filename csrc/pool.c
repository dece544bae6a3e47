#include "pool.h"

#include <string.h>

#include "grow.h"
#include "parts/xfers.h"

void pool_init(clusim_sim *s) {
    s->packets.free = NO(packet);
    s->buffers.free = NO(buffer);
    s->xfers.free = NO(xfer);
}

void pool_free(clusim_sim *s) {
    for (uint32_t i = 0; i < s->xfers.size; i++) free(s->xfers.all[i].own_group);
    free(s->packets.all);
    free(s->buffers.all);
    free(s->xfers.all);
}

STATUS pool_more_packets(clusim_sim *s) {
    uint32_t old = s->packets.size;
    GROW(s->packets.all, s->packets.size);
    for (uint32_t i = s->packets.size; i-- > old;) {
        s->packets.all[i].next = s->packets.free;
        s->packets.free = ID(packet, i);
    }
    return CLUSIM_OK;
}

STATUS pool_xfer(clusim_sim *s, xfer_id *out) {
    if (UNLIKELY(xfer_none(s->xfers.free))) {
        uint32_t old = s->xfers.size;
        GROW(s->xfers.all, s->xfers.size);
        for (uint32_t i = s->xfers.size; i-- > old;) {
            s->xfers.all[i].own_group = NULL;
            s->xfers.all[i].next_free = s->xfers.free;
            s->xfers.free = ID(xfer, i);
        }
    }
    xfer_id x = s->xfers.free;
    s->xfers.free = xfer_at(s, x)->next_free;
    s->xfers.live++;
    memset(xfer_at(s, x), 0, sizeof(xfer));
    *out = x;
    return CLUSIM_OK;
}

void pool_free_xfer(clusim_sim *s, xfer_id x) {
    free(xfer_at(s, x)->own_group);
    xfer_at(s, x)->own_group = NULL;
    xfer_at(s, x)->next_free = s->xfers.free;
    s->xfers.free = x;
    s->xfers.live--;
}

STATUS pool_buffer(clusim_sim *s, buffer_id *out) {
    if (UNLIKELY(buffer_none(s->buffers.free))) {
        uint32_t old = s->buffers.size;
        GROW(s->buffers.all, s->buffers.size);
        for (uint32_t i = s->buffers.size; i-- > old;) {
            s->buffers.all[i].copies = s->buffers.free.i;
            s->buffers.free = ID(buffer, i);
        }
    }
    buffer_id b = s->buffers.free;
    s->buffers.free = ID(buffer, buffer_at(s, b)->copies);
    s->buffers.live++;
    *out = b;
    return CLUSIM_OK;
}
