/* pool.h - allocation of packets, transfers and shared buffers. */
#ifndef CLUSIM_POOL_H
#define CLUSIM_POOL_H

#include "parts/packets.h"
#include "state.h"

void pool_init(clusim_sim *s);
void pool_free(clusim_sim *s);

STATUS pool_more_packets(clusim_sim *s);
STATUS pool_xfer(clusim_sim *s, xfer_id *out);
STATUS pool_buffer(clusim_sim *s, buffer_id *out);
void pool_free_buffer(clusim_sim *s, buffer_id b);

/* Have another thread use the packets that are free here. */
void pool_leave(clusim_sim *s, packets_part *from);
void pool_free_xfer(clusim_sim *s, xfer_id x);

/* Of a list that begins with a packet, fetch one that is taken soon. */
static inline void pool_fetch(const clusim_sim *s, packet_id id) {
    enum { AHEAD = 2 };
    for (uint32_t k = 0; k < AHEAD; k++) {
        packet_id next = *next_of(s, id);
        if (packet_none(next)) break;
        id = next;
    }
    __builtin_prefetch(packet_at(s, id), 1);
}

static inline STATUS pool_packet(clusim_sim *s, packet_id *out) {
    if (UNLIKELY(packet_none(s->packets.free))) TRY(pool_more_packets(s));
    *out = s->packets.free;
    s->packets.free = *next_of(s, *out);
    if (LIKELY(!packet_none(s->packets.free))) pool_fetch(s, s->packets.free);
    s->packets.live++;
    return CLUSIM_OK;
}

static inline void pool_free_packet(clusim_sim *s, packet_id p) {
    *next_of(s, p) = s->packets.free;
    s->packets.free = p;
    s->packets.live--;
}

#endif
