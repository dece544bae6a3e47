/* state.h - all mutable state of a run: its parts, and lookups of ids in them.
 *
 * Every array belongs to one part, and is allocated and freed by the file of its mechanism. A
 * file includes the headers of the parts that it touches, and no others
 * (tests/engine/test_sources.py). */
#ifndef CLUSIM_STATE_H
#define CLUSIM_STATE_H

#include "model.h"
#include "parts/congestion.h"
#include "parts/endpoints.h"
#include "parts/laws.h"
#include "parts/packets.h"
#include "parts/programs.h"
#include "parts/results.h"
#include "parts/samples.h"
#include "parts/scheduler.h"
#include "parts/senders.h"
#include "parts/sources.h"
#include "parts/spreads.h"
#include "parts/tasks.h"
#include "parts/units.h"
#include "parts/windows.h"
#include "parts/wires.h"
#include "parts/xfers.h"

struct clusim_sim {
    const clusim_model *model;
    scheduler_part scheduler;
    wires_part wires;
    packets_part packets;
    buffers_part buffers;
    xfers_part xfers;
    congestion_part congestion;
    senders_part senders;
    spreads_part spreads;
    endpoints_part endpoints;
    units_part units;
    trees_part trees;
    programs_part programs;
    tasks_part tasks;
    sources_part sources;
    results_part results;
    samples_part samples;
    laws_part laws;
    windows_part windows;
};

#define AT(name, type, array)                                                                      \
    static inline type *name##_at(const clusim_sim *s, name##_id id) { return &s->array[id.i]; }
AT(wire, wire_state, wires.all)
AT(packet, packet, packets.all)
AT(buffer, shared_buffer, buffers.all)
AT(xfer, xfer, xfers.all)
AT(conn, conn_state, programs.conns)
AT(inst, inst_state, programs.insts)
AT(endpoint, endpoint_state, endpoints.all)
AT(task, task_state, tasks.all)
AT(source, source_state, sources.all)
AT(unit, unit_state, units.all)
AT(vertex, vertex_state, trees.all)
AT(flow, flow_control, congestion.controls)
AT(line, order_line, spreads.orders.lines)
AT(pair, order_pair, spreads.orders.pairs)
#undef AT

static inline sender_state *sender_at(const clusim_sim *s, flow_id flow) {
    return &s->senders.all[flow.i];
}

/* Successor of a packet in its list. */
static inline packet_id *next_of(const clusim_sim *s, packet_id id) {
    return &s->packets.next[id.i];
}

static inline const wire_info *info_at(const clusim_sim *s, wire_id id) {
    return &s->wires.info[id.i];
}

static inline const wire_end *end_at(const clusim_sim *s, wire_id id) {
    return &s->windows.ins[id.i].end;
}

static inline wire_id wire_of(const clusim_sim *s, const wire_state *w) {
    return ID(wire, (uint32_t)(w - s->wires.all));
}

/* An array of a part, zeroed. */
STATUS state_zeroed(void *array, uint64_t count, size_t element);

/* ZEROED(s->units.all, rows) */
#define ZEROED(array, count) TRY(state_zeroed(&(array), count, sizeof *(array)))

#endif
