/* Pools of packets, transfers and shared buffers; all grow by doubling. */
#include <string.h>

#include "sim.h"

/* Double an array of `size` elements; false (and sim->failed) if there is no memory. */
static bool grow(clusim_sim *s, void **array, uint32_t *size, size_t element) {
    uint32_t bigger = *size ? 2 * *size : 1024;
    void *moved = realloc(*array, bigger * element);
    if (moved == NULL) {
        s->failed = true;
        return false;
    }
    memset((char *)moved + *size * element, 0, (bigger - *size) * element);
    *array = moved;
    *size = bigger;
    return true;
}

packet_id sim_pool_packet(clusim_sim *s) {
    if (UNLIKELY(packet_none(s->packet_free))) {
        uint32_t old = s->packet_size;
        void *array = s->packets;
        if (!grow(s, &array, &s->packet_size, sizeof *s->packets)) return NO(packet);
        s->packets = array;
        for (uint32_t i = s->packet_size; i-- > old;) {
            s->packets[i].next = s->packet_free;
            s->packet_free = ID(packet, i);
        }
    }
    packet_id p = s->packet_free;
    s->packet_free = packet_at(s, p)->next;
    s->packets_live++;
    return p;
}

xfer_id sim_pool_xfer(clusim_sim *s) {
    if (UNLIKELY(xfer_none(s->xfer_free))) {
        uint32_t old = s->xfer_size;
        void *array = s->xfers;
        if (!grow(s, &array, &s->xfer_size, sizeof *s->xfers)) return NO(xfer);
        s->xfers = array;
        for (uint32_t i = s->xfer_size; i-- > old;) {
            s->xfers[i].next_free = s->xfer_free;
            s->xfer_free = ID(xfer, i);
        }
    }
    xfer_id x = s->xfer_free;
    s->xfer_free = xfer_at(s, x)->next_free;
    s->xfers_live++;
    memset(xfer_at(s, x), 0, sizeof(xfer));
    return x;
}

void sim_pool_free_xfer(clusim_sim *s, xfer_id x) {
    free(xfer_at(s, x)->own_group);
    xfer_at(s, x)->own_group = NULL;
    xfer_at(s, x)->next_free = s->xfer_free;
    s->xfer_free = x;
    s->xfers_live--;
}

buffer_id sim_pool_buffer(clusim_sim *s) {
    if (UNLIKELY(buffer_none(s->buffer_free))) {
        uint32_t old = s->buffer_size;
        void *array = s->buffers;
        if (!grow(s, &array, &s->buffer_size, sizeof *s->buffers)) return NO(buffer);
        s->buffers = array;
        for (uint32_t i = s->buffer_size; i-- > old;) {
            s->buffers[i].copies = s->buffer_free.i;
            s->buffer_free = ID(buffer, i);
        }
    }
    buffer_id b = s->buffer_free;
    s->buffer_free = ID(buffer, buffer_at(s, b)->copies);
    s->buffers_live++;
    return b;
}
