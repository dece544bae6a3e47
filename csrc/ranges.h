/* ranges.h - legal ranges of what the engine computes with. Written from clusim/engine/ranges.py by
 * bindings/write_ranges.py; a test compares the two. */
#ifndef CLUSIM_RANGES_H
#define CLUSIM_RANGES_H

#include <stdint.h>

#define RANGE_TIME_END ((int64_t)1 << 62)        /* no time of a run reaches this [ps] */
#define RANGE_DURATION_END ((int64_t)1 << 61)    /* durations and starts in an image [ps] */
#define RANGE_LATENCY_END ((int64_t)1 << 56)     /* latencies and timers in an image [ps] */
#define RANGE_PACKETS_END (UINT64_C(1) << 32)    /* packets or bursts of a transfer */
#define RANGE_WIRE_BYTES_END (UINT64_C(1) << 29) /* a packet or burst on a wire [bytes] */
#define RANGE_OFFSET_END (UINT64_C(1) << 62)     /* places of chunks in a buffer [bytes] */
#define RANGE_SLICES_END (UINT64_C(1) << 32)     /* slices of an instance */
#define RANGE_OWED_256_END (UINT64_C(1) << 62)   /* control bytes owed by a wire [1/256 byte] */
#define RANGE_SLOW_LEAST 16
#define RANGE_SLOW_MOST 16777216
#define RANGE_NVC_LEAST 1
#define RANGE_NVC_MOST 8

/* clang-format off */

/* T(table, least rows, most rows) */
#define RANGE_TABLES(T) \
    T(op_flags, 0, UINT64_C(20)) \
    T(nodes, 0, UINT64_C(16777215)) \
    T(endpoints, 0, UINT64_C(4294967294)) \
    T(formats, 0, UINT64_C(4294967294)) \
    T(wires, 0, UINT64_C(16777215)) \
    T(schedules, 0, UINT64_C(4294967294)) \
    T(targets, 0, UINT64_C(4294967294)) \
    T(routes, 0, UINT64_C(4294967294)) \
    T(group_off, 1, UINT64_C(4294967294)) \
    T(group_wires, 0, UINT64_C(4294967294)) \
    T(path_off, 1, UINT64_C(4294967294)) \
    T(path_wires, 0, UINT64_C(4294967294)) \
    T(units, 0, UINT64_C(16777215)) \
    T(mgroup_off, 1, UINT64_C(4294967294)) \
    T(mgroup_members, 0, UINT64_C(4294967294)) \
    T(vertices, 0, UINT64_C(4294967294)) \
    T(controls, 0, UINT64_C(4294967294)) \
    T(spreads, 0, UINT64_C(4294967294)) \
    T(queue_keys, 0, UINT64_C(4294967294)) \
    T(conns, 0, UINT64_C(2147483647)) \
    T(costs, 0, UINT64_C(4294967294)) \
    T(prims, 0, UINT64_C(4294967294)) \
    T(templates, 0, UINT64_C(4294967294)) \
    T(instances, 0, UINT64_C(4294967294)) \
    T(inst_conns, 0, UINT64_C(4294967294)) \
    T(tasks, 0, UINT64_C(4294967294)) \
    T(succ, 0, UINT64_C(4294967294)) \
    T(sources, 0, UINT64_C(2147483647)) \
    T(messages, 0, UINT64_C(4294967294)) \
    T(faults, 0, UINT64_C(16777215))

/* O(offsets, table they cut) */
#define RANGE_OFFSETS(O) \
    O(group_off, group_wires) \
    O(path_off, path_wires) \
    O(mgroup_off, mgroup_members)

/* F(table, struct, member, bytes, elements, sign, lowest, highest, points into, flag);
 * V: of tables of plain numbers, without a member. */
#define RANGE_FIELDS(F, V) \
    V(op_flags, uint32_t, 4, 1, PLAIN, INT64_C(0), UINT64_C(31), nothing, 0) \
    F(nodes, clusim_node, latency_ps, 8, 1, SIGNED, INT64_C(1), UINT64_C(72057594037927935), nothing, 0) \
    F(nodes, clusim_node, route_lo, 8, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), routes, END_TOO) \
    F(nodes, clusim_node, wide_lo, 8, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), routes, END_TOO) \
    F(nodes, clusim_node, kind, 4, 1, PLAIN, INT64_C(0), UINT64_C(1), nothing, 0) \
    F(nodes, clusim_node, flags, 4, 1, PLAIN, INT64_C(0), UINT64_C(3), nothing, 0) \
    F(nodes, clusim_node, endpoint, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), endpoints, NONE_TOO) \
    F(nodes, clusim_node, unit, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), units, NONE_TOO) \
    F(nodes, clusim_node, zone, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(nodes, clusim_node, wide_stride, 4, 1, PLAIN, INT64_C(0), UINT64_C(1), nothing, 0) \
    F(nodes, clusim_node, shared_bytes, 8, 1, PLAIN, INT64_C(0), UINT64_C(1099511627775), nothing, 0) \
    F(nodes, clusim_node, policy, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), controls, END_TOO) \
    F(nodes, clusim_node, pad, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(endpoints, clusim_endpoint, write_latency_ps, 8, 1, SIGNED, INT64_C(1), UINT64_C(72057594037927935), nothing, 0) \
    F(endpoints, clusim_endpoint, read_latency_ps, 8, 1, SIGNED, INT64_C(1), UINT64_C(72057594037927935), nothing, 0) \
    F(endpoints, clusim_endpoint, response_latency_ps, 8, 1, SIGNED, INT64_C(1), UINT64_C(72057594037927935), nothing, 0) \
    F(endpoints, clusim_endpoint, mem_quantum_ps, 8, 1, SIGNED, INT64_C(1), UINT64_C(1099511627775), nothing, 0) \
    F(endpoints, clusim_endpoint, node, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), nodes, 0) \
    F(endpoints, clusim_endpoint, sms, 4, 1, PLAIN, INT64_C(1), UINT64_C(1048576), nothing, 0) \
    F(endpoints, clusim_endpoint, cta_slots, 4, 1, PLAIN, INT64_C(1), UINT64_C(256), nothing, 0) \
    F(endpoints, clusim_endpoint, slow_1024, 4, 1, PLAIN, INT64_C(16), UINT64_C(16777216), nothing, 0) \
    F(endpoints, clusim_endpoint, mem_cost16, 4, 1, PLAIN, INT64_C(1), UINT64_C(4294967295), nothing, 0) \
    F(endpoints, clusim_endpoint, deliver_256, 4, 1, PLAIN, INT64_C(0), UINT64_C(65536), nothing, 0) \
    F(endpoints, clusim_endpoint, read_256, 4, 1, PLAIN, INT64_C(0), UINT64_C(65536), nothing, 0) \
    F(endpoints, clusim_endpoint, inject_256, 4, 1, PLAIN, INT64_C(0), UINT64_C(65536), nothing, 0) \
    F(formats, clusim_format, flit_bytes, 4, 1, PLAIN, INT64_C(1), UINT64_C(65536), nothing, 0) \
    F(formats, clusim_format, pad, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(formats, clusim_format, header_bytes, 4, 12, PLAIN, INT64_C(1), UINT64_C(65536), nothing, 0) \
    F(formats, clusim_format, control_256, 4, 12, PLAIN, INT64_C(0), UINT64_C(16777216), nothing, 0) \
    F(formats, clusim_format, service_1024, 4, 12, PLAIN, INT64_C(1), UINT64_C(65536), nothing, 0) \
    F(formats, clusim_format, limit_bytes, 4, 12, PLAIN, INT64_C(1), UINT64_C(4294967295), nothing, 0) \
    F(wires, clusim_wire, rate_num, 8, 1, PLAIN, INT64_C(1), UINT64_C(1073741823), nothing, 0) \
    F(wires, clusim_wire, rate_den, 8, 1, PLAIN, INT64_C(1), UINT64_C(1073741823), nothing, 0) \
    F(wires, clusim_wire, latency_ps, 8, 1, SIGNED, INT64_C(1), UINT64_C(72057594037927935), nothing, 0) \
    F(wires, clusim_wire, buffer_bytes, 8, 1, PLAIN, INT64_C(1), UINT64_C(1099511627775), nothing, 0) \
    F(wires, clusim_wire, replay_ps, 8, 1, SIGNED, INT64_C(0), UINT64_C(72057594037927935), nothing, 0) \
    F(wires, clusim_wire, xoff_bytes, 8, 1, PLAIN, INT64_C(0), UINT64_C(1099511627775), nothing, 0) \
    F(wires, clusim_wire, xon_bytes, 8, 1, PLAIN, INT64_C(0), UINT64_C(1099511627775), nothing, 0) \
    F(wires, clusim_wire, ecn_min_bytes, 8, 1, PLAIN, INT64_C(0), UINT64_C(1099511627775), nothing, 0) \
    F(wires, clusim_wire, ecn_max_bytes, 8, 1, PLAIN, INT64_C(0), UINT64_C(1099511627775), nothing, 0) \
    F(wires, clusim_wire, queue_bytes, 8, 1, PLAIN, INT64_C(0), UINT64_C(1099511627775), nothing, 0) \
    F(wires, clusim_wire, src, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), nodes, 0) \
    F(wires, clusim_wire, dst, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), nodes, 0) \
    F(wires, clusim_wire, reverse, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), wires, NONE_TOO) \
    F(wires, clusim_wire, format, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), formats, 0) \
    F(wires, clusim_wire, ordinal, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(wires, clusim_wire, error_threshold, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(wires, clusim_wire, dim, 2, 1, PLAIN, INT64_C(0), UINT64_C(65535), nothing, 0) \
    F(wires, clusim_wire, dateline, 2, 1, PLAIN, INT64_C(0), UINT64_C(1), nothing, 0) \
    F(wires, clusim_wire, ecn_threshold, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(wires, clusim_wire, alpha_1024, 4, 1, PLAIN, INT64_C(0), UINT64_C(1048576), nothing, 0) \
    F(wires, clusim_wire, red, 4, 1, PLAIN, INT64_C(0), UINT64_C(1), nothing, 0) \
    F(wires, clusim_wire, trim_vc, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), vcs, 0) \
    F(wires, clusim_wire, schedule, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), schedules, END_TOO) \
    F(wires, clusim_wire, policy, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), controls, END_TOO) \
    F(wires, clusim_wire, ecn_departure, 4, 1, PLAIN, INT64_C(0), UINT64_C(1), nothing, 0) \
    F(schedules, clusim_schedule, priority, 4, 8, PLAIN, INT64_C(0), UINT64_C(7), nothing, 0) \
    F(schedules, clusim_schedule, quantum, 4, 8, PLAIN, INT64_C(1), UINT64_C(536870912), nothing, 0) \
    F(schedules, clusim_schedule, policy, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), controls, END_TOO) \
    F(schedules, clusim_schedule, pad, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(targets, clusim_target, node, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), nodes, 0) \
    F(targets, clusim_target, zone, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(targets, clusim_target, local, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(targets, clusim_target, wide, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    V(routes, uint32_t, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), groups, NONE_TOO) \
    V(group_off, uint32_t, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), group_wires, END_TOO) \
    V(group_wires, uint32_t, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), wires, 0) \
    V(path_off, uint32_t, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), path_wires, END_TOO) \
    V(path_wires, uint32_t, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), wires, 0) \
    F(units, clusim_unit, latency_ps, 8, 1, SIGNED, INT64_C(1), UINT64_C(72057594037927935), nothing, 0) \
    F(units, clusim_unit, capacity_bytes, 8, 1, PLAIN, INT64_C(0), UINT64_C(4611686018427387904), nothing, 0) \
    F(units, clusim_unit, node, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), nodes, 0) \
    F(units, clusim_unit, cost16, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    V(mgroup_off, uint32_t, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), mgroup_members, END_TOO) \
    V(mgroup_members, uint32_t, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), endpoints, 0) \
    F(vertices, clusim_vertex, parent, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), vertices, NONE_TOO) \
    F(vertices, clusim_vertex, unit, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), units, NONE_TOO) \
    F(vertices, clusim_vertex, endpoint, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), endpoints, NONE_TOO) \
    F(vertices, clusim_vertex, path_up, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), paths, NONE_TOO) \
    F(vertices, clusim_vertex, path_down, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), paths, NONE_TOO) \
    F(vertices, clusim_vertex, child_lo, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), vertices, END_TOO) \
    F(vertices, clusim_vertex, child_hi, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), vertices, END_TOO) \
    F(vertices, clusim_vertex, slots, 4, 1, PLAIN, INT64_C(0), UINT64_C(1048576), nothing, 0) \
    F(controls, clusim_control, alpha_timer_ps, 8, 1, SIGNED, INT64_C(1), UINT64_C(72057594037927935), nothing, 0) \
    F(controls, clusim_control, increase_timer_ps, 8, 1, SIGNED, INT64_C(1), UINT64_C(72057594037927935), nothing, 0) \
    F(controls, clusim_control, cnp_interval_ps, 8, 1, SIGNED, INT64_C(0), UINT64_C(72057594037927935), nothing, 0) \
    F(controls, clusim_control, cnp_delay_ps, 8, 1, SIGNED, INT64_C(0), UINT64_C(72057594037927935), nothing, 0) \
    F(controls, clusim_control, byte_counter, 8, 1, PLAIN, INT64_C(1), UINT64_C(4503599627370496), nothing, 0) \
    F(controls, clusim_control, line_rate, 8, 1, PLAIN, INT64_C(1), UINT64_C(1099511627775), nothing, 0) \
    F(controls, clusim_control, min_rate, 8, 1, PLAIN, INT64_C(1), UINT64_C(1099511627775), nothing, 0) \
    F(controls, clusim_control, additive, 8, 1, PLAIN, INT64_C(0), UINT64_C(1099511627775), nothing, 0) \
    F(controls, clusim_control, hyper, 8, 1, PLAIN, INT64_C(0), UINT64_C(1099511627775), nothing, 0) \
    F(controls, clusim_control, g_65536, 4, 1, PLAIN, INT64_C(0), UINT64_C(65536), nothing, 0) \
    F(controls, clusim_control, fast_recovery, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), nothing, 0) \
    F(controls, clusim_control, kept_65536, 4, 1, PLAIN, INT64_C(0), UINT64_C(65536), nothing, 0) \
    F(controls, clusim_control, clamp, 4, 1, PLAIN, INT64_C(0), UINT64_C(1), nothing, 0) \
    F(controls, clusim_control, sender, 4, 1, PLAIN, INT64_C(0), UINT64_C(6), nothing, 0) \
    F(controls, clusim_control, receiver, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), controls, END_TOO) \
    F(spreads, clusim_spread, gap_ps, 8, 1, SIGNED, INT64_C(0), UINT64_C(72057594037927935), nothing, 0) \
    F(spreads, clusim_spread, nak_ps, 8, 1, SIGNED, INT64_C(1), UINT64_C(72057594037927935), nothing, 0) \
    F(spreads, clusim_spread, timeout_ps, 8, 1, SIGNED, INT64_C(0), UINT64_C(72057594037927935), nothing, 0) \
    F(spreads, clusim_spread, reorder_bytes, 8, 1, PLAIN, INT64_C(0), UINT64_C(4503599627370496), nothing, 0) \
    F(spreads, clusim_spread, ordered, 4, 1, PLAIN, INT64_C(0), UINT64_C(1), nothing, 0) \
    F(spreads, clusim_spread, estimate, 4, 1, PLAIN, INT64_C(0), UINT64_C(1), nothing, 0) \
    F(spreads, clusim_spread, detour_lo, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), targets, END_TOO) \
    F(spreads, clusim_spread, detour_hi, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), targets, END_TOO) \
    F(spreads, clusim_spread, detour_vcs, 4, 1, PLAIN, INT64_C(0), UINT64_C(8), nothing, 0) \
    F(spreads, clusim_spread, bias_bytes, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(spreads, clusim_spread, minimal_vc, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), vcs, 0) \
    F(spreads, clusim_spread, selective, 4, 1, PLAIN, INT64_C(0), UINT64_C(1), nothing, 0) \
    F(spreads, clusim_spread, retries, 4, 1, PLAIN, INT64_C(0), UINT64_C(65536), nothing, 0) \
    F(spreads, clusim_spread, trimmed, 4, 1, PLAIN, INT64_C(0), UINT64_C(1), nothing, 0) \
    V(queue_keys, uint32_t, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(conns, clusim_conn, tail_ps, 8, 1, SIGNED, INT64_C(0), UINT64_C(72057594037927935), nothing, 0) \
    F(conns, clusim_conn, head_ps, 8, 1, SIGNED, INT64_C(0), UINT64_C(72057594037927935), nothing, 0) \
    F(conns, clusim_conn, src, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), endpoints, 0) \
    F(conns, clusim_conn, dst, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), endpoints, 0) \
    F(conns, clusim_conn, kind, 4, 1, PLAIN, INT64_C(0), UINT64_C(4), nothing, 0) \
    F(conns, clusim_conn, policy, 4, 1, PLAIN, INT64_C(0), UINT64_C(2), nothing, 0) \
    F(conns, clusim_conn, first_group, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), groups, NONE_TOO) \
    F(conns, clusim_conn, path, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), paths, NONE_TOO) \
    F(conns, clusim_conn, path_back, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), paths, NONE_TOO) \
    F(conns, clusim_conn, key, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(conns, clusim_conn, mgroup, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), mgroups, NONE_TOO) \
    F(conns, clusim_conn, packet_bytes, 4, 1, PLAIN, INT64_C(0), UINT64_C(268435456), nothing, 0) \
    F(conns, clusim_conn, burst, 4, 1, PLAIN, INT64_C(0), UINT64_C(268435456), nothing, 0) \
    F(conns, clusim_conn, vc, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), vcs, 0) \
    F(conns, clusim_conn, vc_response, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), vcs, 0) \
    F(conns, clusim_conn, slots, 4, 1, PLAIN, INT64_C(1), UINT64_C(64), nothing, 0) \
    F(conns, clusim_conn, expand_120, 4, 1, PLAIN, INT64_C(120), UINT64_C(12000), nothing, 0) \
    F(conns, clusim_conn, window_bytes, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(conns, clusim_conn, via_first, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), targets, NONE_TOO) \
    F(conns, clusim_conn, via_last, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), targets, NONE_TOO) \
    F(conns, clusim_conn, stage, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), endpoints, NONE_TOO) \
    F(conns, clusim_conn, control, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), controls, NONE_TOO) \
    F(conns, clusim_conn, vertex, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), vertices, NONE_TOO) \
    F(conns, clusim_conn, queue_lo, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), queue_keys, END_TOO) \
    F(conns, clusim_conn, queue_hi, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), queue_keys, END_TOO) \
    F(conns, clusim_conn, split, 4, 1, PLAIN, INT64_C(0), UINT64_C(1), nothing, 0) \
    F(conns, clusim_conn, spread, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), spreads, NONE_TOO) \
    F(conns, clusim_conn, pad, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(costs, clusim_cost, fixed_ps, 8, 1, SIGNED, INT64_C(0), UINT64_C(274877906944), nothing, 0) \
    F(costs, clusim_cost, after_ps, 8, 1, SIGNED, INT64_C(0), UINT64_C(274877906944), nothing, 0) \
    F(costs, clusim_cost, op_cost16, 4, 20, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(prims, clusim_prim, opcode, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), op_flags, 0) \
    F(prims, clusim_prim, recv, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(prims, clusim_prim, send, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(prims, clusim_prim, flags, 4, 1, PLAIN, INT64_C(0), UINT64_C(1), nothing, 0) \
    F(prims, clusim_prim, base, 4, 1, SIGNED, INT64_C(-16777216), UINT64_C(16777216), nothing, 0) \
    F(prims, clusim_prim, coef, 4, 1, SIGNED, INT64_C(-16777216), UINT64_C(16777216), nothing, 0) \
    F(prims, clusim_prim, step, 4, 1, SIGNED, INT64_C(-16777216), UINT64_C(16777216), nothing, 0) \
    F(prims, clusim_prim, repeat, 4, 1, PLAIN, INT64_C(0), UINT64_C(16777216), nothing, 0) \
    F(templates, clusim_template, prim_lo, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), prims, 0) \
    F(templates, clusim_template, prim_hi, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), prims, END_TOO) \
    F(templates, clusim_template, nchunks, 4, 1, PLAIN, INT64_C(1), UINT64_C(16777216), nothing, 0) \
    F(templates, clusim_template, mode, 4, 1, PLAIN, INT64_C(0), UINT64_C(1), nothing, 0) \
    F(instances, clusim_instance, start_ps, 8, 1, SIGNED, INT64_C(0), UINT64_C(2305843009213693951), nothing, 0) \
    F(instances, clusim_instance, offset, 8, 1, PLAIN, INT64_C(0), UINT64_C(9223372036854775807), nothing, 0) \
    F(instances, clusim_instance, length, 8, 1, PLAIN, INT64_C(0), UINT64_C(4503599627370496), nothing, 0) \
    F(instances, clusim_instance, chunk_bytes, 8, 1, PLAIN, INT64_C(1), UINT64_C(1099511627775), nothing, 0) \
    F(instances, clusim_instance, stride, 8, 1, PLAIN, INT64_C(0), UINT64_C(9223372036854775807), nothing, 0) \
    F(instances, clusim_instance, limit, 8, 1, PLAIN, INT64_C(0), UINT64_C(9223372036854775807), nothing, 0) \
    F(instances, clusim_instance, slice_min, 8, 1, PLAIN, INT64_C(0), UINT64_C(4503599627370496), nothing, 0) \
    F(instances, clusim_instance, task, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), tasks, 0) \
    F(instances, clusim_instance, endpoint, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), endpoints, 0) \
    F(instances, clusim_instance, template, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), templates, 0) \
    F(instances, clusim_instance, rotation, 4, 1, SIGNED, INT64_C(-16777216), UINT64_C(16777216), nothing, 0) \
    F(instances, clusim_instance, conn_off, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), inst_conns, END_TOO) \
    F(instances, clusim_instance, align, 4, 1, PLAIN, INT64_C(1), UINT64_C(4294967295), nothing, 0) \
    F(instances, clusim_instance, slices, 4, 1, PLAIN, INT64_C(1), UINT64_C(65536), nothing, 0) \
    F(instances, clusim_instance, slots_per_slice, 4, 1, PLAIN, INT64_C(1), UINT64_C(64), nothing, 0) \
    F(instances, clusim_instance, cost, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), costs, 0) \
    F(instances, clusim_instance, sm, 4, 1, PLAIN, INT64_C(0), UINT64_C(1048576), nothing, 0) \
    F(instances, clusim_instance, thread, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), endpoints, NONE_TOO) \
    F(instances, clusim_instance, pad, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    V(inst_conns, uint32_t, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), conns, 0) \
    F(tasks, clusim_task, delay_ps, 8, 1, SIGNED, INT64_C(0), UINT64_C(2305843009213693951), nothing, 0) \
    F(tasks, clusim_task, compute_ps, 8, 1, SIGNED, INT64_C(0), UINT64_C(2305843009213693951), nothing, 0) \
    F(tasks, clusim_task, mem_bytes, 8, 1, PLAIN, INT64_C(0), UINT64_C(4611686018427387904), nothing, 0) \
    F(tasks, clusim_task, kind, 4, 1, PLAIN, INT64_C(0), UINT64_C(3), nothing, 0) \
    F(tasks, clusim_task, endpoint, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), endpoints, 0) \
    F(tasks, clusim_task, sms, 4, 1, PLAIN, INT64_C(0), UINT64_C(1048576), nothing, 0) \
    F(tasks, clusim_task, num_deps, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(tasks, clusim_task, inst_lo, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), instances, END_TOO) \
    F(tasks, clusim_task, inst_hi, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), instances, END_TOO) \
    F(tasks, clusim_task, succ_lo, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), succ, END_TOO) \
    F(tasks, clusim_task, succ_hi, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), succ, END_TOO) \
    V(succ, uint32_t, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), tasks, 0) \
    F(sources, clusim_source, endpoint, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), endpoints, 0) \
    F(sources, clusim_source, msg_lo, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), messages, END_TOO) \
    F(sources, clusim_source, msg_hi, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), messages, END_TOO) \
    F(sources, clusim_source, packet_bytes, 4, 1, PLAIN, INT64_C(1), UINT64_C(268435456), nothing, 0) \
    F(sources, clusim_source, burst, 4, 1, PLAIN, INT64_C(1), UINT64_C(268435456), nothing, 0) \
    F(sources, clusim_source, policy, 4, 1, PLAIN, INT64_C(0), UINT64_C(2), nothing, 0) \
    F(sources, clusim_source, vc, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), vcs, 0) \
    F(sources, clusim_source, flags, 4, 1, PLAIN, INT64_C(0), UINT64_C(1), nothing, 0) \
    F(sources, clusim_source, control, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), controls, NONE_TOO) \
    F(sources, clusim_source, spread, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), spreads, NONE_TOO) \
    F(messages, clusim_message, start_ps, 8, 1, SIGNED, INT64_C(0), UINT64_C(2305843009213693951), nothing, 0) \
    F(messages, clusim_message, bytes, 8, 1, PLAIN, INT64_C(1), UINT64_C(4503599627370496), nothing, 0) \
    F(messages, clusim_message, dst, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), endpoints, 0) \
    F(messages, clusim_message, key, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0) \
    F(messages, clusim_message, via_first, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), targets, NONE_TOO) \
    F(messages, clusim_message, via_last, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967294), targets, NONE_TOO) \
    F(faults, clusim_fault, time_ps, 8, 1, SIGNED, INT64_C(0), UINT64_C(2305843009213693951), nothing, 0) \
    F(faults, clusim_fault, num, 8, 1, PLAIN, INT64_C(0), UINT64_C(1073741823), nothing, 0) \
    F(faults, clusim_fault, den, 8, 1, PLAIN, INT64_C(0), UINT64_C(1073741823), nothing, 0) \
    F(faults, clusim_fault, kind, 4, 1, PLAIN, INT64_C(0), UINT64_C(1), nothing, 0) \
    F(faults, clusim_fault, index, 4, 1, PLAIN, INT64_C(0), UINT64_C(4294967295), nothing, 0)

/* clang-format on */

#endif
