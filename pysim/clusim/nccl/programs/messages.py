"""Sends and receives as NCCL schedules them: rounds, parts and channels of every message of a grouped launch.

**Hardware** ``ncclP2pSchedule`` orders the peers of a rank in rounds, so that in each round every rank sends to one
rank and receives from another. A message is cut into parts on separate channels, more for larger messages; the
round selects the channels. Up to eight messages of a channel share a CTA, half of its warps sending, half receiving
(``src/enqueue.cc``, ``src/init.cc``, ``src/device/sendrecv.h``). **Model** The same rounds, parts and channels; a CTA
processes up to eight messages at once, each a separate program. If these programs exceed the limit of an endpoint,
some messages that hardware moves at once share a program, one after the other with the warps of all of them.
A single message of a CTA sends with half of its warps. Several share its throughput equally, each side and each copy:
NCCL's division of warps does not bind (32 CTAs of GB300 move 43 to 46 GB/s each, with one to eight messages). A slice
that is pushed costs half of a collective's, and a kernel of messages begins `message_start` later. **Not modelled**
Half a CTA without the other is faster than half of both; registered buffers; the batches of the work queue.
**Parameters** ``NCCL_P2P_*_CHUNKSIZE``, the channels found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from clusim.base.errors import InputError, ScheduleError
from clusim.base.records import dataclass
from clusim.hardware.ctas import cta_figure
from clusim.nccl.communicator import Communicator
from clusim.nccl.graph import CollectivePayload
from clusim.nccl.programs.message_shapes import (
    KIB,
    STEP,
    early_ll,
    message_parts,
    shape_of_message,
)
from clusim.schedule.builder import Site
from clusim.schedule.collective_writer import CollectiveWriter, Part
from clusim.schedule.ir import ABSENT, MOST_PROGRAMS, CollectiveCall, Mode, Prim
from clusim.schedule.shapes import Shape, shape_of
from clusim.topology.model import Fabric

LANES = 8
"""Messages that share a CTA (``NCCL_MAX_DEV_WORK_P2P_PER_BATCH``)."""

LL_STEP = 64 * KIB
"""A step of LL's FIFO, flags included [bytes]."""

SEND_WARPS, RECV_WARPS = 10, 9
"""Warps of the sides of the single message of a CTA: of 20 one stays over."""

WARPS = SEND_WARPS + RECV_WARPS

PROGRAMS = 208
"""Programs of a rank that may run at once; with messages between nodes half, as proxies need room, too."""

NIC_PROGRAMS = MOST_PROGRAMS // 2
"""Programs of GPUs that may send over one NIC at once, half the slots of an endpoint: some rails have more."""


@dataclass(frozen=True, slots=True)
class _Message:
    """A message between positions.

    `block` sets its size and its position at the sender; at the receiver it is stored in block `land`. With `blocked`
    False it is the range from `offset` on instead.
    """

    src: int
    dst: int
    length: int
    block: int = 0
    land: int = 0
    offset: int = 0
    blocked: bool = True


def _shared_warps(sides: Sequence[int]) -> float:
    """Return the share of a CTA [warps] of a side of several messages, with `sides` of each: two, a copy one."""
    return WARPS * max(1.0, len(sides) / LANES) / sum(sides)


class _Lane(NamedTuple):
    """Messages that share a program: same side of a position, part of a channel and distance."""

    position: int
    side: str
    part: Part
    protocol: str
    blocked: bool
    near: bool


def rounds(comm: Communicator) -> list[list[int]]:
    """Return, per round, the destination of every position; each pair meets in exactly one round.

    Nodes with the same number of ranks form groups of up to eight ranks that divide it; group distances come in the
    order 0, 1, 3, 6, ... modulo the next power of two, and within each the distances inside a group.
    """
    sizes = {len(machine.ranks) for machine in comm.machines}
    order = [rank for machine in comm.machines for rank in machine.ranks]
    total = len(order)
    local = sizes.pop() if len(sizes) == 1 else total
    group = local
    if comm.group.num_nodes > 1:
        group = next(
            size for size in range(min(LANES, local), 0, -1) if local % size == 0
        )
    groups = total // group
    result = []
    for far in _quadratic(groups):
        for offset in range(group):
            peers = [0] * total
            for place, rank in enumerate(order):
                other = (place // group + far) % groups
                peers[rank] = order[other * group + (place % group + offset) % group]
            result.append(peers)
    return result


def _quadratic(count: int) -> list[int]:
    """Return 0 .. count - 1 in the order of growing jumps modulo a power of two: 0, 1, 3, 6, 2, 7, 5, 4."""
    modulus = 1 << max(0, (count - 1).bit_length())
    result, at = [], 0
    for jump in range(modulus):
        at = (at + jump) % modulus
        if at < count:
            result.append(at)
    return result


def _reversed_bits(value: int, bits: int) -> int:
    return int(f"{value:0{bits}b}"[::-1], 2) if bits else 0


def _first_channel(comm: Communicator, number: int) -> int:
    """Return the channel of the first part of a message of a round."""
    if comm.group.num_nodes > 1:
        max_local = comm.group.max_local
        far, local = divmod(number, max_local)
        number = far * -(-max_local // LANES) + local // LANES
    bits = (comm.p2p_channels - 1).bit_length()
    return _reversed_bits(number % comm.p2p_channels, bits)


class _Writer:
    """Collects the programs of a launch: per rank and channel lanes of messages."""

    def __init__(
        self, site: Site, fabric: Fabric, comm: Communicator, call: CollectiveCall
    ) -> None:
        base = shape_of("simple", protocols=fabric.protocols)
        self.writer = CollectiveWriter.add(
            site.builder, call, base, stream=site.stream, after=site.after
        )
        self.fabric, self.comm = fabric, comm
        self.round_of = {
            (src, dst): number
            for number, peers in enumerate(rounds(comm))
            for src, dst in enumerate(peers)
        }
        self._lanes: dict[_Lane, list[tuple[int, _Message, int]]] = {}
        # Pulled slices wait for their loads, slices to a proxy for the proxy: both have their full fixed cost.
        self._slices = (
            1 if fabric.p2p == "read" else round(cta_figure("messages pushed"))
        )
        self._works: dict[tuple[int, int], dict[int, set[str]]] = {}
        self._held: set[tuple[int, int]] = set()
        self._shapes: dict[tuple[int, bool], tuple[str, Shape]] = {}

    def _is_near(self, message: _Message) -> bool:
        machine_of = self.comm.machine_of
        return machine_of[message.src] == machine_of[message.dst]

    def _shape(self, message: _Message) -> tuple[str, Shape]:
        """Return the protocol of a message and how it is cut, found once for all of one length."""
        key = (message.length, self._is_near(message))
        if key not in self._shapes:
            self._shapes[key] = shape_of_message(self.comm, self.fabric, *key)
        return self._shapes[key]

    def _add(self, message: _Message) -> None:
        """Add a message on its channels."""
        number = self.round_of[message.src, message.dst]
        protocol, shape = self._shape(message)
        same = self._is_near(message)
        early = early_ll(self.comm, message.length, same)
        count, size = message_parts(
            self.comm, message.length, LL_STEP if early else STEP
        )
        first = _first_channel(self.comm, number)
        for index in range(first, first + count):
            channel = index % self.comm.p2p_channels
            # The assignment of bytes to channels is free; this one is equal for all rounds of a channel.
            low = index % count * size
            length = min(size, message.length - low)
            part = Part(channel, message.offset + low, length, shape.chunk_bytes)
            pipe = ABSENT
            if message.src != message.dst:
                pipe = self.writer.connect(
                    message.src,
                    message.dst,
                    channel,
                    protocol=protocol,
                    slots=shape.slots,
                )
            ends = [(message.src, "copy")]
            if message.src != message.dst:
                ends = [(message.src, "send"), (message.dst, "recv")]
            for position, side in ends:
                key = _Lane(position, side, part, protocol, message.blocked, same)
                self._lanes.setdefault(key, []).append((number, message, pipe))
                works = self._works.setdefault((position, channel), {})
                works.setdefault(number, set()).add(side)

    def write(self, messages: Iterable[_Message]) -> tuple[int, ...]:
        """Write the programs of all messages, and return the task of every position."""
        for message in messages:
            self._add(message)
        for works in self._lanes.values():
            works.sort(key=lambda work: work[0])
        counts = self._counts(
            PROGRAMS if self.comm.group.num_nodes == 1 else PROGRAMS // 2
        )
        max_ranks = max(len(machine.ranks) for machine in self.comm.machines)
        if self._on_nic(counts, max_ranks) > NIC_PROGRAMS:
            counts = self._counts(MOST_PROGRAMS // max_ranks)
            needed = self._on_nic(counts, max_ranks)
            if needed >= MOST_PROGRAMS and self.fabric.pxn:
                channels = len({channel for _, channel in self._works})
                raise ScheduleError(
                    f"{self.writer.call.operation} on {self.comm.group.num_ranks} ranks over {channels} channels:"
                    f" {needed} programs send over one NIC, and {MOST_PROGRAMS - 1} can; use fewer channels"
                )
        for (lane, works), count in zip(self._lanes.items(), counts, strict=True):
            batches = -(-len(works) // LANES)
            for first in range(count):
                self._program(lane, works[first::count], batches)
        return self.writer.tasks

    def _counts(self, room: int) -> list[int]:
        """Return the number of programs for each lane, given a rank's room for programs."""
        groups = Counter(
            lane.position for lane in self._lanes if lane.side != "copy"
        )
        copies = Counter(
            lane.position for lane in self._lanes if lane.side == "copy"
        )
        counts = []
        for lane, works in self._lanes.items():
            remaining = room - copies[lane.position]
            count = max(
                1, min(LANES, len(works), remaining // max(1, groups[lane.position]))
            )
            if count < len(works) <= LANES:
                # Programs share the links by turns, so that one with more messages than another would end later.
                count = max(c for c in range(1, count + 1) if len(works) % c == 0)
            counts.append(count)
        return counts

    def _on_nic(self, counts: Sequence[int], max_ranks: int) -> int:
        """Return the most programs that a NIC may have to work for: over PXN all GPUs of its node send to a rail."""
        sending, messages = Counter[int](), Counter[int]()
        for (lane, works), count in zip(self._lanes.items(), counts, strict=True):
            if lane.side == "send" and not lane.near:
                sending[lane.position] += count
                messages[lane.position] += len(works)
        # The messages of a rank to one node are spread over the rails of its GPUs.
        to_rail = max(messages.values(), default=0) // max_ranks
        return max_ranks * min(max(sending.values(), default=0), to_rail)

    def _warps(self, lane: _Lane, number: int, message: _Message) -> float:
        """Return the share of a CTA of one side of a message [warps]."""
        works = self._works[lane.position, lane.part.channel]
        if len(works) > 1:
            return _shared_warps([len(sides) for sides in works.values()])
        if message.src == message.dst or len(works[number]) == 1:
            return WARPS
        return SEND_WARPS if lane.side == "send" else RECV_WARPS

    def _program(
        self, lane: _Lane, works: list[tuple[int, _Message, int]], batches: int
    ) -> None:
        """Write messages as one program; hardware runs them in `batches` at once, so slices need less time."""
        position, side, part, protocol, blocked, is_near = lane
        prims: list[tuple[Any, ...]] = []
        pipes: list[int] = []
        for _, message, pipe in works:
            prims.append(self._prim(message, position, side, len(pipes)))
            if pipe != ABSENT:
                pipes.append(pipe)
        size: int = self.writer.size if blocked else 1
        mode: Mode = "blocked" if blocked else "interleaved"
        template = self.writer.builder.shared_template(
            ("messages", side, mode, size, *prims),
            side,
            lambda: [Prim(*prim) for prim in prims],
            size,
            mode,
        )
        sm = int((position, part.channel) not in self._held)
        self._held.add((position, part.channel))
        shape = self._shape(works[0][1])[1]
        at_once = -(-len(works) // batches)
        self.writer.program(
            position,
            part,
            template,
            pipes,
            rotation=position,
            mode=mode,
            sm=sm,
            protocol=protocol,
            slices=shape.slices,
            slots_per_slice=shape.slots_per_slice,
            slice_min=shape.slice_min,
            start_ps=self._start_ps(protocol),
            shared=True,
            fixed_div=at_once
            * (self._slices if is_near and protocol == "simple" else 1),
            warps=min(
                self._warps(lane, number, message) for number, message, _ in works
            )
            * at_once
            * (1 if is_near else cta_figure("local copy")),
        )

    def _start_ps(self, protocol: str) -> int:
        protocol_figures = self.fabric.protocols.get(protocol)
        return protocol_figures.message_start_ps if protocol_figures else 0

    def _prim(
        self, message: _Message, position: int, side: str, slot: int
    ) -> tuple[Any, ...]:
        """Return the primitive of a message as its first fields: op, recv, send, base, coef."""
        size = self.writer.size
        base = (message.block - position) % size if message.blocked else 0
        coef = int(message.blocked)
        if message.src == message.dst:
            return ("copy", ABSENT, ABSENT, base, coef)
        if side == "send":
            return ("send", ABSENT, slot, base, coef)
        if message.land == message.block:
            return ("recv", slot, ABSENT, base, coef)
        land = (message.land - position) % size
        return (
            "recv",
            slot,
            ABSENT,
            base,
            coef,
            0,
            1,
            False,
            "input",
            "output",
            land,
            coef,
        )


def _pattern(
    operation: str, size: int, length: int, total: int, root: int
) -> list[_Message]:
    """Return the messages of an operation over `size` positions; blocks have `length` bytes."""
    everybody = range(size)
    if operation == "alltoall":
        return [_Message(s, d, length, d, s) for s in everybody for d in everybody]
    if operation == "gather":
        return [_Message(s, root, length, s, s) for s in everybody]
    if operation == "scatter":
        return [_Message(root, d, length, d, d) for d in everybody]
    return [_Message(s, (s + 1) % size, total, blocked=False) for s in everybody]


def emit_pattern(
    site: Site, fabric: Fabric, comm: Communicator, moved: CollectivePayload
) -> tuple[int, ...]:
    """Append ``alltoall``, ``gather``, ``scatter`` or ``sendrecv`` and return the task of every position."""
    operation = moved.operation
    rooted = operation in ("gather", "scatter")
    top = max(0, moved.root) if rooted else ABSENT
    call = CollectiveCall(
        operation,
        moved.bytes,
        comm.ranks,
        moved.dtype,
        "sum",
        comm.ranks[top] if rooted else ABSENT,
        "p2p",
        "simple",
        min(64, comm.p2p_channels),
    )
    lanes = _Writer(site, fabric, comm, call)
    size, stride = lanes.writer.size, lanes.writer.stride
    return lanes.write(_pattern(operation, size, stride, moved.bytes, top))


def emit_messages(
    site: Site,
    fabric: Fabric,
    comm: Communicator,
    messages: Sequence[tuple[int, int, int]],
) -> tuple[int, ...]:
    """Append one grouped launch of sends and receives.

    Parameters
    ----------
    messages : sequence of (source, destination, bytes)
        Positions in the communicator; every message has a separate range of a common buffer, so nothing is overwritten.

    Returns
    -------
    tuple of int
        The task of every position, including idle positions.

    Raises
    ------
    InputError
        A position is not in the communicator, or a message is empty.
    """
    count = len(comm.ranks)
    offset = 0
    items = []
    for src, dst, num_bytes in messages:
        if not (0 <= src < count and 0 <= dst < count):
            raise InputError(
                f"message {src} -> {dst}: the communicator has ranks 0..{count - 1}"
            )
        if num_bytes < 1:
            raise InputError(
                f"message {src} -> {dst}: {num_bytes} bytes; must be at least 1"
            )
        items.append(_Message(src, dst, num_bytes, offset=offset, blocked=False))
        offset += -(-num_bytes // 16) * 16
    call = CollectiveCall(
        "messages",
        max(16, offset),
        comm.ranks,
        "uint8",
        algorithm="p2p",
        channels=min(64, comm.p2p_channels),
    )
    return _Writer(site, fabric, comm, call).write(items)
