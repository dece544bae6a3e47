/* program.h - instances (thread blocks running a template) and connections.
 *
 * Hardware  One thread block per channel runs NCCL-like primitives over 8-slot FIFOs.
 * Model     Contract, section 7.
 * Not modelled  Warps inside a block, instruction fetch, polling traffic.
 */
#ifndef CLUSIM_PROGRAM_H
#define CLUSIM_PROGRAM_H

#include "state.h"

STATUS program_init(clusim_sim *s);
void program_free(clusim_sim *s);

/* Start an instance in its slot; advance a due one as far as possible at this timestamp. */
STATUS program_begin(clusim_sim *s, inst_id instance, uint32_t slot);
STATUS program_run(clusim_sim *s, inst_id instance);

/* The data of a slice begin to move, at an endpoint that works in windows. */
STATUS program_move(clusim_sim *s, inst_id instance);

STATUS program_complete(clusim_sim *s, xfer_id xfer_index);
STATUS program_counter_visible(clusim_sim *s, conn_id conn, uint32_t slots, bool tail);
STATUS program_ready(clusim_sim *s, inst_id instance);
void program_read(const clusim_sim *s, inst_id instance, clusim_instance_state *out);

#endif
