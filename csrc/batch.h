/* batch.h - fetches and operands of reductions by operation, in queues and in flight.
 *
 * Hardware  A storage format; order, times and counters are those of separate packets.
 * Model     Contract, section 6.
 * Not modelled  Packets that hold a buffer or continue over another wire stay separate.
 *
 * Under load every member of every open operation has a fetch or an operand in a VOQ or in flight:
 * 64 bytes each exceed the caches, 7 do not. Consecutive packets of one size, kind and target
 * become a batch, one element of the VOQ, which lists their operations. Between nodes that work in
 * windows, a grant leaves the packet in its batch: it is identified by the batch and its position
 * there (a member) until it arrives at its unit, or until its response is ready. Elsewhere a grant
 * restores the packet. */
#ifndef CLUSIM_BATCH_H
#define CLUSIM_BATCH_H

#include "parts/packets.h"
#include "state.h"

enum { BATCH_KINDS = 1 << CLUSIM_KIND_RED_FETCH | 1 << CLUSIM_KIND_RED_DATA };

/* Member k of a batch has the batch's id and k + 1 in the bits from here on. */
enum { BATCH_SHIFT = PACKET_BITS };

/* True if the packet may wait in a batch. */
static inline bool batch_suits(const packet *p) { return (1u << p->kind) & BATCH_KINDS; }

static inline bool batch_member(packet_id id) { return id.i >> BATCH_SHIFT != 0; }

/* The packet, or the batch of a member: of that only the common fields are valid. */
static inline packet *batch_at(const clusim_sim *s, packet_id id) {
    return packet_at(s, ID(packet, id.i & ((UINT32_C(1) << BATCH_SHIFT) - 1)));
}

/* Operation of a fetch or an operand. */
static inline packet_id batch_op(const clusim_sim *s, packet_id id) {
    const packet *p = batch_at(s, id);
    return batch_member(id) ? p->ops[(id.i >> BATCH_SHIFT) - 1] : p->op;
}

/* Merge a packet into the tail of a VOQ and free its slot; false if the two differ. */
bool batch_join(clusim_sim *s, packet_id tail, packet_id index);

/* Grant the first queued packet of a batch: returns its member. */
static inline packet_id batch_take(const clusim_sim *s, packet_id batch) {
    uint32_t k = packet_at(s, batch)->held_vc++;
    return ID(packet, batch.i | (k + 1) << BATCH_SHIFT);
}

/* A fetch or an operand is not needed any more. */
void batch_free(clusim_sim *s, packet_id id);

/* Replace the id of a member by that of a separate packet; other packets stay. */
STATUS batch_restore(clusim_sim *s, packet_id *id);

#endif
