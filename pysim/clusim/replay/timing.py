"""Times single calls on a communicator; equal ones are simulated once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusim.errors import ClusimError, InputError
from clusim.fabric import Fabric
from clusim.logs.calls import LoggedCall
from clusim.nccl import Algorithm, Collective, Communicator, Plan, Protocol, programs
from clusim.nccl.programs.front import COLLECTIVE_OF, PATTERNS, WRITERS
from clusim.nccl.tuner import Selection, channels_and_threads
from clusim.nccltests.launch import Launch, iteration_ps
from clusim.replay.channels import Built
from clusim.schedule.builder import ProgramBuilder
from clusim.schedule.dtypes import ELEMENTS, element
from clusim.simulate import simulate

__all__ = ["Timed", "Timer", "choose", "emit_call"]

MOST_HOPS = 4_000_000
"""Packet-hops up to which exact packets are simulated; beyond, bursts that are so many."""

PACKET = 128
LEAST_BURSTS = 8

_SAME_WIDTH = {"float8e4m3": "uint8", "float8e5m2": "uint8"}


@dataclass(frozen=True, slots=True)
class Timed:
    """A call's time and what ran; `busy` has the busy time of its wires [ps]."""

    kernel_ps: int
    time_ps: int
    algorithm: str
    protocol: str
    channels: int
    note: str
    from_log: bool
    busy: tuple[tuple[str, int], ...] = ()


def dtype_of(name: str) -> str:
    """Return a type of the same width that programs know."""
    return name if name in ELEMENTS else _SAME_WIDTH.get(name, "uint8")


def whole_bytes(call: LoggedCall) -> int:
    """Return the size of a call in whole elements."""
    size = element(dtype_of(call.dtype)).size_bytes
    return max(size, call.bytes // size * size)


def choose(comm: Communicator, call: LoggedCall) -> tuple[Plan | None, str, bool]:
    """Return what runs a call, a note, and whether it is what the log printed; sends and receives have no plan."""
    if call.operation in PATTERNS or call.messages:
        return None, "", False
    collective = COLLECTIVE_OF[call.operation]
    printed = _printed(comm, collective, call)
    selection = printed or comm.select(collective, call.bytes)
    note = ""
    if call.algorithm and printed is None:
        note = f"{call.algorithm} {call.protocol} of the log cannot run here"
    if (selection.algorithm, collective) not in WRITERS:
        selection, note = _nearest(comm, collective, selection, call)
        printed = None
    size = min(element(dtype_of(call.dtype)).size_bytes, call.bytes)
    return comm.plan_of(selection, element_bytes=size), note, printed is not None


def _printed(comm: Communicator, collective: Collective, call: LoggedCall) -> Selection | None:
    """Return the tuner's line of the log as a choice; None if there is none or the machine cannot do it."""
    try:
        algorithm, protocol = Algorithm(call.algorithm), Protocol(call.protocol)
    except ValueError:
        return None
    if algorithm in (Algorithm.NVLS, Algorithm.NVLS_TREE) and not comm.group.nvls:
        return None
    ring = comm.graphs[Algorithm.RING]
    threads = channels_and_threads(
        algorithm,
        protocol,
        call.bytes,
        num_channels=comm.num_channels,
        nvls_channels=comm.nvls_channels,
        num_ranks=comm.group.num_ranks,
        num_heads=max(1, comm.graphs[Algorithm.COLLNET_DIRECT].num_channels),
        ring_GBps=ring.num_channels * ring.intra_GBps,
        settings=comm.settings,
    )
    if call.channels:
        threads = replace(threads, num_channels=min(call.channels, 64), why="printed in the log")
    return Selection(
        collective,
        call.bytes,
        algorithm,
        protocol,
        threads,
        call.model_us,
        {},
        "printed in the log",
    )


def _nearest(
    comm: Communicator, collective: Collective, wanted: Selection, call: LoggedCall
) -> tuple[Selection, str]:
    """Return the best choice there is a program for."""
    own = comm.select(collective, call.bytes)
    known = [
        key for key in own.times_us if (key[0], collective) in WRITERS and own.times_us[key] > 0
    ]
    if not known:
        raise InputError(f"{call.operation}: there is no program for {wanted.algorithm.value}")
    algorithm, protocol = min(known, key=lambda key: own.times_us[key])
    note = f"{algorithm.value} {protocol.value} in place of {wanted.algorithm.value}"
    return replace(own, algorithm=algorithm, protocol=protocol), note


def emit_call(
    builder: ProgramBuilder,
    fabric: Fabric,
    built: Built,
    call: LoggedCall,
    plan: Plan | None,
    *,
    stream: str = "comm0",
    after: Any = None,
) -> tuple[int, ...]:
    """Append a call to a schedule; return the task of every position."""
    comm, position = built.comm, built.position
    if call.messages:
        messages = [(position[src], position[dst], size) for src, dst, size in call.messages]
        return programs.emit_messages(builder, fabric, comm, messages, stream=stream, after=after)
    root = position[call.root] if call.root >= 0 else -1
    return programs.emit(
        *(builder, fabric, comm, call.operation, whole_bytes(call)),
        plan=plan,
        dtype=dtype_of(call.dtype),
        redop=call.redop,
        root=root,
        stream=stream,
        after=after,
    )


def bursts(comm: Communicator, call: LoggedCall, plan: Plan | None) -> str | int:
    """Return a granularity that keeps the run of a call short."""
    ranks = comm.group.num_ranks
    hops = 6 if comm.group.num_nodes > 1 else 3
    moved = sum(m[2] for m in call.messages) if call.messages else ranks * call.bytes
    packets = (2 if call.operation == "allreduce" else 1) * hops * moved // PACKET
    if packets <= MOST_HOPS:
        return "packet"
    burst = PACKET << (packets // MOST_HOPS).bit_length()
    chunk = plan.chunks.chunk_bytes if plan is not None else call.bytes // ranks
    return int(max(PACKET, min(burst, chunk // 2 // LEAST_BURSTS)))


class Timer:
    """Simulates calls on one fabric, each kind once."""

    def __init__(self, fabric: Fabric, granularity: str | int = "") -> None:
        self.fabric = fabric
        self.granularity = granularity
        self._known: dict[Any, Timed] = {}

    def time(self, built: Built, call: LoggedCall, launch: Launch) -> Timed:
        """Return the time of a call."""
        comm = built.comm
        key = (_signature(built), replace(call, comm=0), launch)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._simulated(built, comm, call, launch)
        return found

    def _simulated(
        self, built: Built, comm: Communicator, call: LoggedCall, launch: Launch
    ) -> Timed:
        plan, note, printed = choose(comm, call)
        builder = ProgramBuilder(self.fabric.num_ranks, f"{call.operation} {call.bytes} B")
        try:
            emit_call(builder, self.fabric, built, call, plan)
        except ClusimError as error:
            raise InputError(
                f"{call.operation} of {call.bytes} B on {self.fabric.name}: {error}"
            ) from None
        granularity = self.granularity or bursts(comm, call, plan)
        result = simulate(self.fabric, builder.build(), granularity=granularity, bins=2)
        busy = result.wires.counters["busy_ps"].tolist()
        wires = tuple((n, b) for n, b in zip(result.wires.names, busy, strict=True) if b)
        shown = ("P2P", "Simple", comm.p2p_channels)
        if plan is not None:
            chosen = plan.selection
            shown = (chosen.algorithm.value, chosen.protocol.value, plan.num_channels)
        time_ps = iteration_ps(comm, call.operation, result.time_ps, launch)
        return Timed(result.time_ps, time_ps, *shown, note, printed, wires)


def _signature(built: Built) -> tuple[Any, ...]:
    """Return what makes two communicators give the same times."""
    comm = built.comm
    ways: Sequence[Any] = tuple((c.ring, c.parent, c.ring_adapters) for c in comm.channels)
    return comm.ranks, built.position, ways, comm.nvls_channels, comm.p2p_channels
