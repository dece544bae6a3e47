"""The image: a fabric and a schedule as flat arrays, the one input of both engines.

Field names and units are those of ``docs/model/contract.md``; the C structs of ``clusim.h`` have the same
fields in the same order, which the engine binding checks when it is imported. All times are int64 ps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DTYPES", "NONE", "OPCODES", "OP_FLAGS", "Image", "Op", "Opcode", "empty"]

NONE = 0xFFFFFFFF
"""Marks an absent index."""

KINDS = 11
"""Packet kinds: WRITE READ_REQ READ_RESP MCAST RED_REQ RED_FETCH RED_DATA RED_RESULT FETCH AGG_UP AGG_DOWN."""


class Op:
    """Flags of an opcode: what the engine does for it."""

    RECV = 1
    SEND = 2
    MCAST = 4
    REDUCE = 8
    AGGREGATE = 16


@dataclass(frozen=True, slots=True)
class Opcode:
    """One primitive of the program IR: its number, name and what the engine does for it."""

    number: int
    name: str
    flags: int


_OPCODE_FLAGS = {
    "send": Op.SEND,
    "recv": Op.RECV,
    "recvCopy": Op.RECV,
    "recvReduce": Op.RECV,
    "recvCopySend": Op.RECV | Op.SEND,
    "recvReduceSend": Op.RECV | Op.SEND,
    "recvReduceCopy": Op.RECV,
    "recvReduceCopySend": Op.RECV | Op.SEND,
    "copy": 0,
    "reduce": 0,
    "copySend": Op.SEND,
    "multicastStore": Op.MCAST,
    "reduceLoad": Op.REDUCE,
    "reduceLoadStore": Op.REDUCE | Op.MCAST,
    "signal": Op.SEND,
    "waitSignal": Op.RECV,
    "aggregate": Op.AGGREGATE,
}
OPCODES: dict[str, Opcode] = {
    name: Opcode(number, name, flags) for number, (name, flags) in enumerate(_OPCODE_FLAGS.items())
}
"""Opcodes by name. A ``read`` of the IR is a ``recv``-family primitive on a read connection."""

OP_FLAGS = np.array([opcode.flags for opcode in OPCODES.values()], np.uint32)
"""Flags of the opcodes by number, as the engine wants them."""

OPCODE_SLOTS = 18
"""Entries of a cost table, an even number of at least `OPCODES`."""

_U16, _U32, _U64, _I32, _I64 = "<u2", "<u4", "<u8", "<i4", "<i8"

DTYPES: dict[str, np.dtype[Any]] = {
    "nodes": np.dtype(
        [
            ("latency_ps", _I64),  # forwarding latency
            ("route_lo", _U64),  # into routes: groups by a target's local column
            ("wide_lo", _U64),  # into routes: groups by a target's wide column, if wide_stride
            ("kind", _U32),  # 0 endpoint, 1 switch
            ("flags", _U32),  # 1 store and forward, 2 bridge (NIC): FETCH becomes WRITE
            ("endpoint", _U32),  # index into endpoints, or NONE
            ("unit", _U32),  # index into units, or NONE
            ("zone", _U32),  # targets of the same zone are found by their local column
            ("wide_stride", _U32),  # 1: one group per wide column; 0: one for all of them
        ]
    ),
    "endpoints": np.dtype(
        [
            ("write_latency_ps", _I64),  # accepted by memory -> visible
            ("read_latency_ps", _I64),  # request accepted -> response ready
            ("response_latency_ps", _I64),  # response accepted -> in registers
            ("mem_quantum_ps", _I64),
            ("node", _U32),
            ("sms", _U32),
            ("cta_slots", _U32),  # concurrent flows (instances + sources), 1..256
            ("slow_1024", _U32),  # 1024 = nominal speed of CTAs and kernels
            ("mem_cost16", _U32),  # 2^-16 ps per byte
            ("deliver_256", _U32),  # memory bytes per delivered payload byte, /256
            ("read_256", _U32),  # ... per byte read for a remote request
            ("inject_256", _U32),  # ... per byte injected by a write
        ]
    ),
    "formats": np.dtype(
        [
            ("flit_bytes", _U32),
            ("pad", _U32),
            ("header_bytes", _U32, (KINDS,)),
            ("control_256", _U32, (KINDS,)),  # owed to the reverse wire per exact packet, 1/256 B
            ("service_1024", _U32, (KINDS,)),  # occupancy factor, 1024 = 1
            ("limit_bytes", _U32, (KINDS,)),  # largest payload of an exact packet, or NONE
        ]
    ),
    "wires": np.dtype(
        [
            ("rate_num", _U64),  # bytes
            ("rate_den", _U64),  # per this many ps
            ("latency_ps", _I64),
            ("buffer_bytes", _U64),  # receive buffer per VC
            ("replay_ps", _I64),
            ("xoff_bytes", _U64),  # pause threshold of the receive buffer; 0 = credits
            ("xon_bytes", _U64),  # resume threshold
            ("ecn_min_bytes", _U64),  # marks: queue from which packets may be marked
            ("ecn_max_bytes", _U64),  # ... and from which all are; 0 = never
            ("src", _U32),
            ("dst", _U32),
            ("reverse", _U32),  # the other direction, or NONE
            ("format", _U32),
            ("ordinal", _U32),  # index among wires with the same src and dst, by wire id
            ("error_threshold", _U32),  # replay probability of a packet, times 2^32
            ("dim", _U16),
            ("dateline", _U16),
            ("ecn_threshold", _U32),  # mark probability at ecn_max_bytes, times 2^32
        ]
    ),
    "targets": np.dtype(  # where packets can be steered: endpoints, then NICs
        [
            ("node", _U32),
            ("zone", _U32),
            ("local", _U32),  # column at nodes of the same zone
            ("wide", _U32),  # column at other nodes
        ]
    ),
    "routes": np.dtype(_U32),  # rows of nodes: column -> group, or NONE
    "group_off": np.dtype(_U32),  # [groups + 1]
    "group_wires": np.dtype(_U32),
    "path_off": np.dtype(_U32),  # [paths + 1] explicit paths, as wires
    "path_wires": np.dtype(_U32),
    "units": np.dtype(
        [
            ("latency_ps", _I64),
            ("capacity_bytes", _U64),
            ("node", _U32),
            ("cost16", _U32),  # 2^-16 ps per operand byte
        ]
    ),
    "mgroup_off": np.dtype(_U32),  # [multicast groups + 1]
    "mgroup_members": np.dtype(_U32),  # endpoints
    "vertices": np.dtype(  # of aggregation trees
        [
            ("parent", _U32),  # vertex, or NONE at the root
            ("unit", _U32),  # reduction unit, or NONE for a member
            ("endpoint", _U32),  # of a member, or NONE
            ("path_up", _U32),  # path to the parent's node, or NONE at the root
            ("path_down", _U32),  # path from the parent's node
            ("child_lo", _U32),  # children are consecutive vertices
            ("child_hi", _U32),
            ("slots", _U32),  # packets that a unit's vertex can hold open
        ]
    ),
    "controls": np.dtype(  # DCQCN; rates in bytes per 2^30 ps
        [
            ("alpha_timer_ps", _I64),
            ("increase_timer_ps", _I64),
            ("cnp_interval_ps", _I64),
            ("cnp_delay_ps", _I64),
            ("byte_counter", _U64),
            ("line_rate", _U64),
            ("min_rate", _U64),
            ("additive", _U64),
            ("hyper", _U64),
            ("g_65536", _U32),
            ("fast_recovery", _U32),
        ]
    ),
    "conns": np.dtype(
        [
            ("tail_ps", _I64),  # posted -> visible to the receiver
            ("head_ps", _I64),  # released -> visible to the sender
            ("src", _U32),  # endpoint
            ("dst", _U32),  # endpoint; for kind 3 unused (0)
            ("kind", _U32),  # 0 write, 1 read, 2 flag only, 3 multimem, 4 aggregation
            ("policy", _U32),  # 0 stripe, 1 pinned, 2 adaptive
            ("first_group", _U32),  # route group at the requesting end, or NONE
            ("path", _U32),  # explicit path in the direction of requests, or NONE
            ("path_back", _U32),  # ... of responses, or NONE
            ("key", _U32),  # stripe offset or pinned hash
            ("mgroup", _U32),  # kind 3: multicast group
            ("packet_bytes", _U32),  # P0
            ("burst", _U32),  # k
            ("vc", _U32),
            ("vc_response", _U32),
            ("slots", _U32),
            ("expand_120", _U32),  # wire payload = ceil(bytes*this/120)
            ("window_bytes", _U32),  # 0 = unlimited
            ("via_first", _U32),  # targets its packets are steered over, or NONE
            ("via_last", _U32),
            ("stage", _U32),  # endpoint that holds the data in between, or NONE
            ("control", _U32),  # rate control, or NONE
            ("vertex", _U32),  # kind 4: the member
            ("pad", _U32),
        ]
    ),
    "costs": np.dtype(
        [
            ("fixed_ps", _I64),
            ("op_cost16", _U32, (OPCODE_SLOTS,)),  # 2^-16 ps per byte
        ]
    ),
    "prims": np.dtype(
        [
            ("opcode", _U32),
            ("recv", _U32),  # index into the instance's connections, or NONE
            ("send", _U32),
            ("flags", _U32),  # 1 sync: one slice of 0 bytes
            ("base", _I32),
            ("coef", _I32),
            ("step", _I32),
            ("repeat", _U32),
        ]
    ),
    "templates": np.dtype(
        [("prim_lo", _U32), ("prim_hi", _U32), ("nchunks", _U32), ("mode", _U32)]
    ),
    "instances": np.dtype(
        [
            ("start_ps", _I64),  # after the start of its task
            ("offset", _U64),
            ("length", _U64),
            ("chunk_bytes", _U64),
            ("stride", _U64),
            ("limit", _U64),
            ("slice_min", _U64),
            ("task", _U32),
            ("endpoint", _U32),
            ("template", _U32),
            ("rotation", _I32),
            ("conn_off", _U32),  # into inst_conns
            ("align", _U32),
            ("slices", _U32),
            ("slots_per_slice", _U32),
            ("cost", _U32),
            ("sm", _U32),  # SMs held
        ]
    ),
    "inst_conns": np.dtype(_U32),
    "tasks": np.dtype(
        [
            ("delay_ps", _I64),
            ("compute_ps", _I64),
            ("mem_bytes", _U64),
            ("kind", _U32),  # 0 program, 1 kernel, 2 delay, 3 marker
            ("endpoint", _U32),
            ("sms", _U32),
            ("num_deps", _U32),
            ("inst_lo", _U32),
            ("inst_hi", _U32),
            ("succ_lo", _U32),  # into succ
            ("succ_hi", _U32),
        ]
    ),
    "succ": np.dtype(_U32),
    "sources": np.dtype(
        [
            ("endpoint", _U32),
            ("msg_lo", _U32),
            ("msg_hi", _U32),
            ("packet_bytes", _U32),
            ("burst", _U32),
            ("policy", _U32),
            ("vc", _U32),
            ("flags", _U32),  # 1 serial
            ("control", _U32),  # rate control, or NONE
            ("pad", _U32),
        ]
    ),
    "messages": np.dtype(
        [
            ("start_ps", _I64),
            ("bytes", _U64),
            ("dst", _U32),
            ("key", _U32),
            ("via_first", _U32),
            ("via_last", _U32),
        ]
    ),
    "faults": np.dtype(
        [("time_ps", _I64), ("num", _U64), ("den", _U64), ("kind", _U32), ("index", _U32)]
    ),
}
"""NumPy layout of every array of an image, by name; structured fields are packed without padding."""

Array = NDArray[Any]


def empty(name: str, count: int = 0) -> Array:
    """Return `count` zeroed rows of the array called `name`."""
    return np.zeros(count, DTYPES[name])


def _default(name: str) -> Any:
    offsets = name.endswith("_off")
    return field(default_factory=lambda: empty(name, 1 if offsets else 0))


@dataclass(slots=True)
class Image:
    """Everything a run needs, as arrays whose dtypes are `DTYPES`; see the contract for their meaning."""

    nvc: int = 1
    seed: int = 0
    nodes: Array = _default("nodes")
    endpoints: Array = _default("endpoints")
    formats: Array = _default("formats")
    wires: Array = _default("wires")
    targets: Array = _default("targets")
    routes: Array = _default("routes")
    group_off: Array = _default("group_off")
    group_wires: Array = _default("group_wires")
    path_off: Array = _default("path_off")
    path_wires: Array = _default("path_wires")
    units: Array = _default("units")
    mgroup_off: Array = _default("mgroup_off")
    mgroup_members: Array = _default("mgroup_members")
    vertices: Array = _default("vertices")
    controls: Array = _default("controls")
    conns: Array = _default("conns")
    costs: Array = _default("costs")
    prims: Array = _default("prims")
    templates: Array = _default("templates")
    instances: Array = _default("instances")
    inst_conns: Array = _default("inst_conns")
    tasks: Array = _default("tasks")
    succ: Array = _default("succ")
    sources: Array = _default("sources")
    messages: Array = _default("messages")
    faults: Array = _default("faults")

    def tables(self) -> dict[str, Array]:
        """Return all tables by name, with the opcodes' flags, as `clusim.ranges.first_illegal` wants them."""
        return {"op_flags": OP_FLAGS} | {name: getattr(self, name) for name in DTYPES}

    def __post_init__(self) -> None:
        """Check dtypes and contiguity, so that both engines may trust them."""
        for item in fields(self):
            if item.name in DTYPES:
                value = np.ascontiguousarray(getattr(self, item.name))
                if value.dtype != DTYPES[item.name]:
                    raise TypeError(
                        f"image.{item.name}: dtype {value.dtype}, expected {DTYPES[item.name]}"
                    )
                setattr(self, item.name, value)
