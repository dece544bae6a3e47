/* program.h - tasks, instances (thread blocks running a template) and connections.
 *
 * Hardware  One thread block per channel runs NCCL-like primitives over 8-slot FIFOs.
 * Model     Contract, sections 7 and 9.
 * Not modelled  Warps inside a block, instruction fetch, polling traffic.
 */
#ifndef CLUSIM_PROGRAM_H
#define CLUSIM_PROGRAM_H

#include "sim.h"

void program_injected(clusim_sim *s, uint32_t instance, int64_t done_ps);
void program_complete(clusim_sim *s, uint32_t xfer_index);
void program_task_done(clusim_sim *s, uint32_t task);
void program_counter_visible(clusim_sim *s, uint32_t conn, uint32_t slots, bool tail);
void program_launch(clusim_sim *s, uint32_t instance);
void program_ready(clusim_sim *s, uint32_t instance);
bool program_wave(clusim_sim *s); /* phase A, step 5; false when nothing was due */
void program_read(const clusim_sim *s, uint32_t instance, clusim_instance_state *out);

#endif
