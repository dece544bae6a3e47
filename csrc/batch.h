/* batch.h - fetches and operands of reductions in a VOQ, by operation.
 *
 * Hardware  A storage format; order, times and counters are those of separate packets.
 * Model     Contract, section 6.
 * Not modelled  Packets that hold a buffer or continue over another wire stay separate.
 *
 * Under load every member of every open operation has a fetch or an operand in a VOQ: 64 bytes each
 * exceed the caches, 7 do not. Consecutive packets of one size, kind and target become a batch, one
 * element of the VOQ, which lists their operations. A grant restores one packet. */
#ifndef CLUSIM_BATCH_H
#define CLUSIM_BATCH_H

#include "parts/packets.h"
#include "state.h"

enum { BATCH_KINDS = 1 << CLUSIM_KIND_RED_FETCH | 1 << CLUSIM_KIND_RED_DATA };

/* True if the packet may wait in a batch. */
static inline bool batch_suits(const packet *p) { return (1u << p->kind) & BATCH_KINDS; }

/* Merge a packet into the tail of a VOQ and free its slot; false if the two differ. */
bool batch_join(clusim_sim *s, packet_id tail, packet_id index);

/* Remove the first packet of a batch; the last one reuses the slot of the batch. */
STATUS batch_take(clusim_sim *s, packet_id batch, packet_id *out);

#endif
