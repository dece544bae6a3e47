/* Pools of packets, transfers and shared buffers; all grow by doubling. */
#include <string.h>

#include "grow.h"
#include "sim.h"

STATUS sim_pool_more_packets(clusim_sim *s) {
    uint32_t old = s->packet_size;
    GROW(s->packets, s->packet_size);
    for (uint32_t i = s->packet_size; i-- > old;) {
        s->packets[i].next = s->packet_free;
        s->packet_free = ID(packet, i);
    }
    return CLUSIM_OK;
}

STATUS sim_pool_xfer(clusim_sim *s, xfer_id *out) {
    if (UNLIKELY(xfer_none(s->xfer_free))) {
        uint32_t old = s->xfer_size;
        GROW(s->xfers, s->xfer_size);
        for (uint32_t i = s->xfer_size; i-- > old;) {
            s->xfers[i].own_group = NULL;
            s->xfers[i].next_free = s->xfer_free;
            s->xfer_free = ID(xfer, i);
        }
    }
    xfer_id x = s->xfer_free;
    s->xfer_free = xfer_at(s, x)->next_free;
    s->xfers_live++;
    memset(xfer_at(s, x), 0, sizeof(xfer));
    *out = x;
    return CLUSIM_OK;
}

void sim_pool_free_xfer(clusim_sim *s, xfer_id x) {
    free(xfer_at(s, x)->own_group);
    xfer_at(s, x)->own_group = NULL;
    xfer_at(s, x)->next_free = s->xfer_free;
    s->xfer_free = x;
    s->xfers_live--;
}

STATUS sim_pool_buffer(clusim_sim *s, buffer_id *out) {
    if (UNLIKELY(buffer_none(s->buffer_free))) {
        uint32_t old = s->buffer_size;
        GROW(s->buffers, s->buffer_size);
        for (uint32_t i = s->buffer_size; i-- > old;) {
            s->buffers[i].copies = s->buffer_free.i;
            s->buffer_free = ID(buffer, i);
        }
    }
    buffer_id b = s->buffer_free;
    s->buffer_free = ID(buffer, buffer_at(s, b)->copies);
    s->buffers_live++;
    *out = b;
    return CLUSIM_OK;
}
