/* pool.h - packets, transfers and shared buffers come and go. */
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

static inline STATUS pool_packet(clusim_sim *s, packet_id *out) {
    if (UNLIKELY(packet_none(s->packets.free))) TRY(pool_more_packets(s));
    *out = s->packets.free;
    s->packets.free = packet_at(s, *out)->next;
    __builtin_prefetch(packet_at(s, s->packets.free), 1);
    s->packets.live++;
    return CLUSIM_OK;
}

static inline void pool_free_packet(clusim_sim *s, packet_id p) {
    packet_at(s, p)->next = s->packets.free;
    s->packets.free = p;
    s->packets.live--;
}

#endif
