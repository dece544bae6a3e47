"""Packet formats of links, and protocols of data and flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, get_args

from clusim.base.records import dataclass
from clusim.engine.abi import KINDS, NONE
from clusim.topology.node import cost16

PacketKind = Literal[
    "write",
    "read_request",
    "read_response",
    "multicast",
    "reduce_request",
    "reduce_fetch",
    "reduce_data",
    "reduce_result",
    "fetch",
    "aggregate",
    "aggregate_result",
    "trimmed",
]
"""Packet kinds in the order of `clusim.engine.abi.Kind`."""

KIND_NAMES: tuple[str, ...] = get_args(PacketKind)
"""Packet kinds in the order of the tables of a `Format`."""

NO_LIMIT = NONE
"""Packet-size limit of a format without a limit."""


@dataclass(frozen=True, slots=True)
class Format:
    """Packet format of a link class.

    Attributes
    ----------
    flit_bytes : int
        Flit size; packets occupy complete flits [bytes].
    header_bytes : tuple of int
        Header per packet kind, in the order of `KIND_NAMES` [bytes].
    control_256 : tuple of int
        Bytes owed to the opposite wire per packet of each kind [1/256 byte].
    service_1024 : tuple of int
        Factor on the occupancy of the wire, per kind; 1024 is a factor of 1.
    payload_bytes : dict
        Largest payload of a packet per requester class ``sm``, ``ce``, ``nic`` [bytes].
    limit_bytes : tuple of int
        Largest payload of a packet of each kind on these wires [bytes]: a graph node that sends over them
        splits larger packets (PCIe: maximum payload and read request sizes). `NO_LIMIT` disables it.
    """

    name: str
    flit_bytes: int = 16
    header_bytes: tuple[int, ...] = (16,) * KINDS
    control_256: tuple[int, ...] = (0,) * KINDS
    service_1024: tuple[int, ...] = (1024,) * KINDS
    payload_bytes: Mapping[str, int] = field(
        default_factory=lambda: {"sm": 128, "ce": 256, "nic": 128}
    )
    limit_bytes: tuple[int, ...] = (NO_LIMIT,) * KINDS

    def header_wire_bytes(self) -> int:
        """Return the wire bytes of a packet without payload."""
        return -(-self.header_bytes[0] // self.flit_bytes) * self.flit_bytes


STORE_BYTES = "storeBytes"
"""Throughput of lines of LL with data stored byte by byte, in addition to the time of their primitive."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """CTA costs of a protocol: ``simple``, ``ll`` or ``ll128``.

    Attributes
    ----------
    fixed_ps : int
        Cost of a slice step before its first byte moves [ps].
    op_Bps : dict
        Throughput of a CTA per opcode [B/s]; ``default`` for opcodes that are not named; `STORE_BYTES`.
    expand_120 : int
        Wire payload per 120 data bytes: 120 Simple, 240 LL, 128 LL128.
    tail_fence_ps, head_fence_ps : int
        Added to the flight time of the tail and head counters [ps].
    buffer_bytes : int
        FIFO of one connection of one channel, `slots` slots [wire bytes].
    chunk_steps, slice_steps : int
        Slots per chunk and per slice of the ring collectives (all others use one and one).
    grain_bytes : int
        Chunk boundaries are multiples of this [bytes].
    message_start_ps : int
        From the start of a CTA to the first step of a message by NCCL, in which the CTA looks up its part
        [ps].
    crowding : float
        Factor on the time of a byte when the CTAs of a kernel together send at memory bandwidth.
    round_ps : int
        Time of every round of all threads after the first of a chunk [ps]; 0: rounds are as long as their bytes.
    grid_start_ps : int
        Later start of the CTAs of a kernel with more than one [ps].
    """

    name: str
    fixed_ps: int = 1_100_000
    op_Bps: Mapping[str, float] = field(default_factory=lambda: {"default": 40e9})
    expand_120: int = 120
    tail_fence_ps: int = 0
    head_fence_ps: int = 0
    buffer_bytes: int = 4_194_304
    slots: int = 8
    chunk_steps: int = 4
    slice_steps: int = 2
    grain_bytes: int = 512
    message_start_ps: int = 0
    crowding: float = 0.0
    round_ps: int = 0
    grid_start_ps: int = 0

    @property
    def step_bytes(self) -> int:
        """Data bytes that fit into one slot."""
        return self.buffer_bytes // self.slots * 120 // self.expand_120

    def rate_Bps(self, opcode: str) -> float:
        """Return the throughput of a CTA for `opcode` [B/s]."""
        return self.op_Bps.get(opcode, self.op_Bps.get("default", float("inf")))

    def cost16(self, opcode: str) -> int:
        """Return the CTA time per byte of `opcode` [2^-16 ps]."""
        return cost16(self.rate_Bps(opcode))
