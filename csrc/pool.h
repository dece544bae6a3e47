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

/* Let other threads use packets that are free here. */
void pool_share(clusim_sim *s);

/* Room for free packets: of a thread, and more for the simulation. */
STATUS pool_make_room(packets_part *p, uint32_t room);
void pool_free_room(packets_part *p);

void pool_free_xfer(clusim_sim *s, xfer_id x);

/* Of a list of packets, fetch one that is taken soon. */
static inline void pool_fetch(const clusim_sim *s, packet_id id, packet_id last) {
    enum { AHEAD = 2 };
    for (uint32_t k = 0; k < AHEAD && !packet_is(id, last); k++) id = *next_of(s, id);
    __builtin_prefetch(packet_at(s, id), 1);
}

static inline STATUS pool_packet(clusim_sim *s, packet_id *out) {
    packets_part *p = &s->packets;
    if (UNLIKELY(p->num_spare == 0)) TRY(pool_more_packets(s));
    *out = p->spare[--p->num_spare];
    __builtin_prefetch(packet_at(s, (p->spare + p->num_spare)[-SPARE_AHEAD]), 1);
    p->live++;
    return CLUSIM_OK;
}

static inline void pool_free_packet(clusim_sim *s, packet_id id) {
    if (UNLIKELY(s->packets.num_spare == s->packets.room)) pool_share(s);
    s->packets.spare[s->packets.num_spare++] = id;
    s->packets.live--;
}

#endif
