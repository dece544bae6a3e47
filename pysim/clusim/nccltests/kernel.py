"""How long NCCL's kernel takes for a collective: simulated, where it must be on fewer machines.

**Pipelines.** In a broadcast or reduce the first ranks are done long before the last, and nccl-tests waits only after
all iterations, so it sees how far apart iterations are and not how long one takes. Some are simulated in a row.

**Fewer machines.** Beyond `MOST_RANKS` ranks two smaller runs are simulated with what the whole communicator chose, and
a straight line through them is followed, in the quantity each algorithm's time is linear in while every machine's
traffic stays the same: ring, all-to-all, gather and scatter in the number of ranks, with the bytes of a step unchanged;
trees and what goes up and down in switches in the logarithm of the number of machines, with the size unchanged.

**Smaller sizes.** Large sizes are long streams of equal chunks. Where a run would take more than `MOST_BURSTS`,
two smaller sizes are simulated with the same chunks, and the line through them is followed in the size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2

from clusim import collectives
from clusim.errors import InputError
from clusim.nccl import Collective, Communicator, Plan, programs
from clusim.nccl.constants import Algorithm, Protocol
from clusim.nccl.programs.front import PATTERNS, WRITERS
from clusim.nccl.tuner import Selection, channels_and_threads
from clusim.nccltests.launch import Host, host_of
from clusim.nccltests.setup import Setup
from clusim.schedule import Schedule
from clusim.schedule.builder import ProgramBuilder
from clusim.schedule.ir import ABSENT
from clusim.simulate import simulate

__all__ = ["Data", "Kernel", "custom", "kernel", "runnable"]

MOST_RANKS = 32
"""Ranks up to which a communicator is simulated whole."""

MOST_HOPS = 4_000_000
"""Packet-hops up to which exact packets are simulated; beyond, bursts are as large as it takes to have so many."""

MOST_BURSTS = 6_000_000
"""Hops of bursts beyond which long streams are simulated shorter; a few seconds."""

VERIFY_BYTES = 8 << 20
"""Bytes of all ranks together up to which data are verified on request."""

FILLS = 2
"""How often the channels must have gone on with the next chunk in the shorter of two runs."""

STREAM_BURST = 1024
"""Largest bursts of trees and NVLS in a machine [bytes], which larger ones make slower by a percent or two."""

NETWORK_BURST = 32768
"""The same over a network, whose packets have 4 KiB."""

P2P_CHUNK = 128 << 10
"""Chunk of sends and receives over a network [bytes]; bursts are no larger."""

PIPELINES = ("broadcast", "reduce")
"""Operations whose iterations overlap: the first ranks of the pipeline are done long before the last."""

ITERATIONS = 3
"""Iterations of these that are simulated one behind the other."""

PACKET = 128
LEAST_BURSTS = 8
"""Bursts that a slice of a chunk is cut into at least, in a machine."""

NETWORK_LEAST = 8
"""Bursts that a chunk is cut into at least over a network."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's time and what ran.

    Attributes
    ----------
    algorithm, protocol : str
        As NCCL names them; ``P2P`` for sends and receives.
    notes : tuple of str
        What was done instead of simulating what NCCL would run.
    wrong : int or None
        1 if data came out wrong, None if they were not verified.
    host : Host or None
        What launching it depends on.
    """

    time_ps: int
    algorithm: str
    protocol: str
    channels: int
    notes: tuple[str, ...] = ()
    wrong: int | None = None
    host: Host | None = None


@dataclass(frozen=True, slots=True)
class Data:
    """What the buffers hold; `verify` carries real numbers through small collectives."""

    dtype: str = "float32"
    redop: str = "sum"
    root: int = ABSENT
    verify: bool = False


_DATA = Data()


def kernel(
    setup: Setup,
    operation: str,
    size_bytes: int,
    *,
    element_bytes: int = 4,
    granularity: str | int = "",
    data: Data = _DATA,
    forced: tuple[Algorithm, Protocol] | None = None,
) -> Kernel:
    """Return the time of the kernel of one collective.

    Parameters
    ----------
    operation : str
        As of `clusim.nccl.programs.build`, or ``hypercube``.
    size_bytes : int
        The larger of what a rank sends and receives [bytes].
    granularity : str or int
        As of `clusim.simulate`; empty is as exact as `MOST_HOPS` allows.
    forced : (Algorithm, Protocol) or None
        To be used instead of what NCCL would choose.
    """
    comm = setup.comm
    notes: tuple[str, ...] = ()
    if forced is None:
        plan, notes = _plan(comm, operation, size_bytes, element_bytes)
    else:
        plan = _forced(comm, operation, size_bytes, forced)
    shown = _shown(comm, plan)
    wrong = None
    # Faults are on certain machines, so that fewer machines do not stand for all.
    large = comm.group.num_ranks > MOST_RANKS and not setup.fabric.faults
    if large and comm.group.num_nodes > _anchor_nodes(comm, operation, plan):
        time_ps, note = _fewer(setup, operation, size_bytes, plan, element_bytes, granularity)
        notes = (*notes, note)
    elif data.verify and size_bytes * comm.group.num_ranks <= VERIFY_BYTES:
        result = simulate(
            setup.fabric, schedule(setup, operation, size_bytes, plan, data), verify=True
        )
        time_ps, wrong = result.time_ps, int(result.verified is False)
    else:
        time_ps, more = _timed(setup, operation, size_bytes, plan, granularity, data)
        notes = (*notes, *more)
    return Kernel(time_ps, *shown, notes, wrong, host_of(comm))


def custom(setup: Setup, name: str, size_bytes: int) -> Kernel:
    """Return the time of an all-reduce by another kernel than NCCL's, an algorithm of `clusim.collectives`."""
    protocol = "ll" if name.endswith("-ll") else "simple"
    program = collectives.build(
        setup.known,
        "allreduce",
        name,
        size_bytes,
        ranks=setup.comm.ranks,
        protocol=protocol,
    )
    burst = _granularity(setup.comm, "allreduce", size_bytes, None)
    time_ps = simulate(setup.fabric, program, granularity=burst).time_ps
    return Kernel(time_ps, name, protocol, 0)


def _shown(comm: Communicator, plan: Plan | None) -> tuple[str, str, int]:
    if plan is None:
        return "P2P", "Simple", comm.p2p_channels
    chosen = plan.selection
    return chosen.algorithm.value, chosen.protocol.value, plan.num_channels


def _plan(
    comm: Communicator, operation: str, size_bytes: int, element_bytes: int
) -> tuple[Plan | None, tuple[str, ...]]:
    """Return what runs: NCCL's choice, or the best by its cost model of what there are programs for."""
    if operation in (*PATTERNS, "hypercube"):
        return None, ()
    collective = programs.COLLECTIVE_OF[operation]
    plan = comm.plan(collective, size_bytes, element_bytes=element_bytes)
    wanted = plan.selection.algorithm
    if (wanted, collective) in WRITERS:
        return plan, ()
    times = plan.selection.times_us
    known = [key for key in times if (key[0], collective) in WRITERS and times[key] > 0]
    if not known:
        raise InputError(
            f"{operation}: there is no program for {wanted.value}, the only algorithm allowed"
        )
    algorithm, protocol = min(known, key=lambda key: times[key])
    chosen = replace(plan.selection, algorithm=algorithm, protocol=protocol)
    note = f"{algorithm.value} in place of {wanted.value}"
    return comm.plan_of(chosen, element_bytes=element_bytes), (note,)


def _forced(
    comm: Communicator, operation: str, size_bytes: int, forced: tuple[Algorithm, Protocol]
) -> Plan:
    """Return a plan with an algorithm and a protocol that somebody else chose, with NCCL's channels for them."""
    collective = programs.COLLECTIVE_OF[operation]
    chosen = comm.select(collective, size_bytes)
    ring = comm.graphs[Algorithm.RING]
    threads = channels_and_threads(
        *forced,
        size_bytes,
        num_channels=comm.num_channels,
        nvls_channels=comm.nvls_channels,
        num_ranks=comm.group.num_ranks,
        num_heads=max(1, comm.graphs[Algorithm.COLLNET_DIRECT].num_channels),
        ring_GBps=ring.num_channels * ring.intra_GBps,
        settings=comm.settings,
    )
    algorithm, protocol = forced
    return comm.plan_of(replace(chosen, algorithm=algorithm, protocol=protocol, threads=threads))


def runnable(comm: Communicator, operation: str) -> list[tuple[Algorithm, Protocol]]:
    """Return what NCCL could use for a collective on this communicator, as far as there are programs for it."""
    collective = programs.COLLECTIVE_OF[operation]
    times = comm.select(collective, 1 << 20).times_us
    return [key for key in times if (key[0], collective) in WRITERS]


def schedule(
    setup: Setup, operation: str, size_bytes: int, plan: Plan | None = None, data: Data = _DATA
) -> Schedule:
    """Return the program of one collective."""
    if operation == "hypercube":
        return _hypercube(setup, size_bytes)
    return programs.build(
        *(setup.known, setup.comm, operation, size_bytes),
        plan=plan,
        dtype=data.dtype,
        redop=data.redop,
        root=data.root,
    )


def _hypercube(setup: Setup, size_bytes: int) -> Schedule:
    """Return the grouped exchanges of nccl-tests' hypercube: in each, a rank swaps all it has with one further away."""
    comm = setup.comm
    count = comm.group.num_ranks
    if count & (count - 1):
        raise InputError(f"hypercube: {count} ranks; their number must be a power of two")
    builder = ProgramBuilder(setup.fabric.num_ranks, f"hypercube {size_bytes} B on {count} ranks")
    block = max(1, size_bytes // count)
    after: list[tuple[int, ...]] | None = None
    mask = 1
    while mask < count:
        swaps = [(rank, rank ^ mask, block * mask) for rank in range(count)]
        tasks = programs.emit_messages(
            builder, setup.known, comm, swaps, stream="comm0", after=after
        )
        after = [(task,) for task in tasks]
        mask *= 2
    return builder.build()


def _timed(
    setup: Setup,
    operation: str,
    size_bytes: int,
    plan: Plan | None,
    granularity: str | int,
    data: Data = _DATA,
) -> tuple[int, tuple[str, ...]]:
    """Return the time [ps], simulated or, of a long stream, followed from shorter ones; and what was done."""
    if granularity != "":
        return _simulated(setup, operation, size_bytes, plan, granularity, data), ()
    comm = setup.comm
    burst = _granularity(comm, operation, size_bytes, plan)
    bursts = _hops(comm, operation, size_bytes) * PACKET
    bursts //= min(burst, P2P_CHUNK) if isinstance(burst, int) else PACKET
    small = max(size_bytes * MOST_BURSTS // (2 * bursts + 1), FILLS * _stream_bytes(comm, plan))
    small = small // 4096 * 4096
    large = 2 * small
    slow = plan is not None and plan.selection.algorithm is Algorithm.TREE
    if bursts <= MOST_BURSTS * (4 if slow else 1) or 2 * large > size_bytes:
        return _simulated(setup, operation, size_bytes, plan, burst, data), ()
    times = [_anchor(setup, operation, size, plan, burst, data) for size in (small, large)]
    time_ps = times[1] + (times[1] - times[0]) * (size_bytes - large) // (large - small)
    return time_ps, ("from two smaller sizes, linear in the size",)


_ANCHORS: dict[tuple[object, ...], int] = {}
"""Times of anchors this process has simulated already: curves share them."""


def _anchor(
    setup: Setup, operation: str, size: int, plan: Plan | None, burst: str | int, data: Data
) -> int:
    what: tuple[object, ...] = ()
    if plan is not None:
        chosen = plan.selection
        what = (chosen.algorithm, chosen.protocol, plan.num_channels, plan.chunks.chunk_bytes)
    key = (setup, operation, size, burst, data, *what)
    if key not in _ANCHORS:
        shorter = None if plan is None else _shorter(setup.comm, plan, size)
        _ANCHORS[key] = _simulated(setup, operation, size, shorter, burst, data)
    return _ANCHORS[key]


def _shorter(comm: Communicator, plan: Plan, size_bytes: int) -> Plan:
    """Return a plan with the same chunks for a smaller size."""
    shorter = comm.plan_of(replace(plan.selection, num_bytes=size_bytes))
    chunk = plan.chunks.chunk_bytes
    parts = tuple(replace(part, chunk_bytes=chunk) for part in shorter.parts)
    return replace(shorter, chunks=plan.chunks, parts=parts)


def _stream_bytes(comm: Communicator, plan: Plan | None) -> int:
    """Return what a collective of this plan moves until its channels go on with the next chunk [bytes]."""
    if plan is None:
        return P2P_CHUNK * comm.group.num_ranks * comm.p2p_per_peer
    rank_blocks = plan.selection.algorithm is Algorithm.RING
    chunks = comm.group.num_ranks if rank_blocks else 1
    return plan.chunks.chunk_bytes * plan.num_channels * chunks


def _simulated(
    setup: Setup,
    operation: str,
    size_bytes: int,
    plan: Plan | None,
    granularity: str | int,
    data: Data = _DATA,
) -> int:
    if operation in PIPELINES:
        return _per_iteration(setup, operation, size_bytes, plan, granularity, data)
    program = schedule(setup, operation, size_bytes, plan, data)
    return simulate(setup.fabric, program, granularity=granularity).time_ps


def _per_iteration(
    setup: Setup,
    operation: str,
    size_bytes: int,
    plan: Plan | None,
    granularity: str | int,
    data: Data,
) -> int:
    """Return what every further iteration of a stream takes: ranks that are done go on with the next one."""
    times = []
    for count in (1, ITERATIONS):
        builder = ProgramBuilder(setup.fabric.num_ranks, f"{count} x {operation} {size_bytes} B")
        for _ in range(count):
            programs.emit(
                *(builder, setup.known, setup.comm, operation, size_bytes),
                plan=plan,
                dtype=data.dtype,
                redop=data.redop,
                root=data.root,
            )
        times.append(simulate(setup.fabric, builder.build(), granularity=granularity).time_ps)
    return max(1, (times[1] - times[0]) // (ITERATIONS - 1))


def _hops(comm: Communicator, operation: str, size_bytes: int) -> int:
    """Return about how many packet-hops a run takes."""
    moved = 2 if operation == "allreduce" else 1
    hops = 6 if comm.group.num_nodes > 1 else 3
    return comm.group.num_ranks * moved * hops * size_bytes // PACKET


def _granularity(
    comm: Communicator, operation: str, size_bytes: int, plan: Plan | None
) -> str | int:
    """Return a size of bursts that keeps the run short."""
    packets = _hops(comm, operation, size_bytes)
    if packets <= MOST_HOPS:
        return "packet"
    burst = PACKET << (packets // MOST_HOPS).bit_length()
    chunk = plan.chunks.chunk_bytes if plan is not None else size_bytes // comm.group.num_ranks
    several = comm.group.num_nodes > 1
    most = chunk // (NETWORK_LEAST if several else 2 * LEAST_BURSTS)
    if plan is not None and plan.selection.algorithm is not Algorithm.RING:
        most = min(most, NETWORK_BURST if several else STREAM_BURST)
    return max(PACKET, min(burst, most))


def _anchor_nodes(comm: Communicator, operation: str, plan: Plan | None) -> int:
    """Return the larger number of machines that is simulated in place of more; trees need some depth."""
    per_node = max(1, comm.group.num_ranks // comm.group.num_nodes)
    least = 4 if _law(operation, plan)[0] == "ranks" or per_node > MOST_RANKS else 8
    return max(least, 1 << max(1, MOST_RANKS // per_node).bit_length() - 1)


def _fewer(
    setup: Setup,
    operation: str,
    size_bytes: int,
    plan: Plan | None,
    element_bytes: int,
    granularity: str | int,
) -> tuple[int, str]:
    comm = setup.comm
    large = _anchor_nodes(comm, operation, plan)
    small = large // 2
    linear, scaled = _law(operation, plan)
    points = []
    for nodes in (small, large):
        fewer = setup.smaller(nodes)
        ranks = fewer.comm.group.num_ranks
        size = size_bytes
        if scaled:
            size = max(min(size_bytes, 8), size_bytes * ranks // comm.group.num_ranks // 16 * 16)
        own = None
        if plan is not None:
            chosen: Selection = replace(plan.selection, num_bytes=size)
            own = fewer.comm.plan_of(chosen, element_bytes=min(element_bytes, size))
        time_ps, _ = _timed(fewer, operation, size, own, granularity)
        points.append((_measure(linear, fewer.comm), time_ps))
    (x1, t1), (x2, t2) = points
    x = _measure(linear, comm)
    time_ps = t2 + round((t2 - t1) * (x - x2) / (x2 - x1))
    return max(time_ps, 1), f"from {small} and {large} machines, linear in {linear}"


def _law(operation: str, plan: Plan | None) -> tuple[str, bool]:
    """Return what the time is linear in, and whether the size is scaled with the ranks."""
    if plan is None:
        return "ranks", operation != "sendrecv"
    if plan.selection.algorithm is Algorithm.RING:
        rooted = plan.selection.collective in (Collective.BROADCAST, Collective.REDUCE)
        return "ranks", not rooted
    return "log2 of machines", False


def _measure(linear: str, comm: Communicator) -> float:
    return float(comm.group.num_ranks) if linear == "ranks" else log2(comm.group.num_nodes)
