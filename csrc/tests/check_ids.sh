#!/bin/sh
# An id of one thing where another is meant does not compile.
# usage: check_ids.sh compiler csrc
set -eu
compiles() { # a call, in a function that has an id of everything
    printf '%s\n' '#include "state.h"' \
        'void *f(clusim_sim *s, wire_id wire, node_id node, packet_id packet, conn_id conn, flow_id flow);' \
        'void *f(clusim_sim *s, wire_id wire, node_id node, packet_id packet, conn_id conn, flow_id flow) {' \
        '    (void)wire, (void)node, (void)packet, (void)conn, (void)flow;' "    return $1;" '}' |
        "$compiler" -std=gnu11 -fsyntax-only -I"$csrc" -I"$csrc/include" -x c - 2>/dev/null
}
compiler=$1 csrc=$2
for right in 'wire_at(s, wire)' 'packet_at(s, packet)' 'conn_at(s, conn)' 'flow_at(s, flow)'; do
    compiles "$right" || { echo "$right does not compile"; exit 1; }
done
for wrong in 'wire_at(s, node)' 'wire_at(s, 0)' 'packet_at(s, wire)' 'conn_at(s, flow)' 'flow_at(s, conn)' \
    'wire_is(wire, node) ? s : 0' 'wire == wire ? s : 0'; do
    ! compiles "$wrong" || { echo "$wrong compiles"; exit 1; }
done
