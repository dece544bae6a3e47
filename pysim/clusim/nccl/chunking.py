"""Buffers, steps, chunks and slices, and how NCCL deals the bytes of a collective to its channels.

Since 2.19 every channel gets one contiguous part (continuous byte distribution); before, all channels walked over the
data together, loop by loop (the grid). Sources: src/enqueue.cc, src/include/device.h, src/device/*.h of NCCL 2.30,
src/collectives/device/*.h of 2.18.
"""

from __future__ import annotations

from dataclasses import field

from clusim.base.records import dataclass
from clusim.base.terms.operations import Algorithm, Collective, Protocol
from clusim.nccl.constants import Path, Version, since
from clusim.nccl.env import Settings
from clusim.nccl.graph import Graph, RankGroup
from clusim.nccl.rccl import FIFO as RCCL_FIFO
from clusim.nccl.rccl import Fifo

STEPS = 8
"""Slots of the FIFO of a connection."""

FIFO = {
    Protocol.LL: Fifo(8 * 512 * STEPS * 16, 16, 8, 16),
    Protocol.LL128: Fifo(120 * 640 * STEPS * 8, 128, 120, 1920),
    Protocol.SIMPLE: Fifo(1 << 22, 1, 1, 512),
}
"""NCCL's FIFO of a connection by protocol."""

_RINGS_OF_LOOPS = (
    Collective.ALLREDUCE,
    Collective.ALLGATHER,
    Collective.REDUCESCATTER,
)


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


@dataclass(frozen=True, slots=True)
class Buffers:
    """FIFO of a connection under one protocol.

    Attributes
    ----------
    total_bytes, step_bytes, step_data_bytes : int
        The complete FIFO, one of its eight steps, and the user data per step [bytes].
    chunk_steps, slice_steps : int
        Steps of a chunk and of a slice.
    grain_bytes : int
        Chunks are multiples of this size [bytes].
    """

    total_bytes: int
    step_bytes: int
    step_data_bytes: int
    chunk_steps: int
    slice_steps: int
    grain_bytes: int

    @property
    def slices_per_chunk(self) -> int:
        """Return the number of slices of a chunk."""
        return self.chunk_steps // self.slice_steps

    @property
    def chunk_bytes(self) -> int:
        """Return the user data of a full chunk [bytes]."""
        return self.step_data_bytes * self.chunk_steps


def buffers(
    algorithm: Algorithm,
    protocol: Protocol,
    collective: Collective,
    settings: Settings,
) -> Buffers:
    """Return the FIFO of a connection; Simple rings move four steps a chunk and two a slice."""
    sizes = {
        Protocol.LL: settings.ll_buffsize,
        Protocol.LL128: settings.ll128_buffsize,
        Protocol.SIMPLE: settings.buffsize,
    }[protocol]
    default, line, data, grain = (FIFO if settings.library is None else RCCL_FIFO)[
        protocol
    ]
    step = (total := sizes or default) // STEPS
    looping = (
        protocol is Protocol.SIMPLE
        and algorithm is Algorithm.RING
        and collective in _RINGS_OF_LOOPS
    )
    chunk, slice_ = (4, 2) if looping else (1, 1)
    return Buffers(total, step, step // line * data, chunk, slice_, grain)


@dataclass(frozen=True, slots=True)
class NvlsTuning:
    """Channels of NVLS and NVLSTree, and their largest chunks, which are also the steps of the switch's buffers.

    Attributes
    ----------
    channels : int
        Channels before the limits of CTAs.
    chunk_bytes, tree_chunk_bytes : int
        Largest chunk of NVLS, and of NVLSTree [bytes].
    """

    channels: int = 16
    chunk_bytes: int = 128 << 10
    tree_chunk_bytes: int = 128 << 10


def nvls_tuning(
    group: RankGroup, graph: Graph, version: Version, settings: Settings
) -> NvlsTuning:
    """Return the channels and chunks of NVLS and NVLSTree.

    ``ncclNvlsTuning`` and ``ncclNvlsTreeSm100Tuning`` of src/transport/nvls.cc (2.30), before 2.30 src/enqueue.cc;
    in 2.20 and before, NVLSTree starts with a step of the FIFO.
    """
    several, blackwell = group.num_nodes > 1, group.lowest_capability >= 100
    channels, chunk, max_chunk = 16, 128 << 10, 0
    if blackwell and since(version, "nvls channels of blackwell"):
        channels = 32 if several else 24
    if blackwell and several and since(version, "nvls trees of blackwell"):
        channels, chunk, max_chunk = _blackwell_trees(group, graph)
    chunk = settings.nvls_chunksize or chunk
    start = chunk
    if not since(version, "nvls trees chunk as nvls"):
        start = (settings.buffsize or FIFO[Protocol.SIMPLE].total_bytes) // STEPS
    max_chunk = (
        settings.nvlstree_max_chunksize
        or max_chunk
        or (65536 if group.num_nodes >= 4 else start)
    )
    return NvlsTuning(
        settings.nvls_nchannels or channels, chunk, min(start, max_chunk)
    )


def _blackwell_trees(group: RankGroup, graph: Graph) -> tuple[int, int, int]:
    """Return channels, chunk and largest chunk of NVLSTree [bytes] of Blackwell on several nodes; 0 is no limit."""
    local, rate = group.least_local, group.least_nic_GBps
    through_switches = graph.type_inter <= Path.PXB
    if group.num_nodes == 2 and rate >= 48:
        if local <= 4:
            return 32, 256 << 10, 256 << 10
        small = local >= 16 or (local <= 8 and through_switches and rate < 96)
        return 32, 128 << 10, (64 if small else 128) << 10
    if rate >= 96:
        if local <= 8:
            return 24, 256 << 10, 256 << 10
        return 32, 128 << 10, (128 if local < 32 else 64) << 10
    if rate >= 48:
        return 24, 128 << 10, (64 if through_switches else 128) << 10
    return 32, 128 << 10, 0


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Inputs of chunk sizes other than the size.

    Attributes
    ----------
    num_heads : int
        Heads of NVLS or CollNetDirect.
    depth : int
        Ranks of a node (CollNetChain), or stages (CollNetDirect).
    nvls_GBps : float
        Bandwidth of NVLS all-reduce in the cost model [GB/s]; small over slow networks.
    nvls : NvlsTuning
        Largest chunks of NVLS and NVLSTree.
    """

    num_ranks: int
    num_nodes: int = 1
    num_heads: int = 1
    depth: int = 1
    nvls_GBps: float = float("inf")
    nvls: NvlsTuning = field(default_factory=NvlsTuning)


@dataclass(frozen=True, slots=True)
class Cutting:
    """Properties of a collective that decide its cuts."""

    algorithm: Algorithm
    protocol: Protocol
    collective: Collective
    shape: GroupShape
    version: Version
    settings: Settings = field(default_factory=Settings)

    @property
    def fifo(self) -> Buffers:
        """The FIFO of its connections."""
        return buffers(self.algorithm, self.protocol, self.collective, self.settings)


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks of a channel.

    Attributes
    ----------
    chunk_bytes : int
        User data of a chunk [bytes].
    slices_per_chunk : int
        Slices a chunk is cut into.
    why : str
        The rule that decided.
    """

    chunk_bytes: int
    slices_per_chunk: int
    why: str


def plan_chunks(cutting: Cutting, num_bytes: int, num_channels: int) -> Chunks:
    """Return the chunks of a collective.

    Parameters
    ----------
    num_bytes : int
        The larger of a rank's sent and received sizes, on `num_channels` channels together [bytes].
    """
    algorithm, protocol, shape = cutting.algorithm, cutting.protocol, cutting.shape
    settings, fifo = cutting.settings, cutting.fifo
    is_older = not since(cutting.version, "trees chunk as rings")
    by_depth = settings.library is not None or is_older
    chunk, why = fifo.chunk_bytes, "a chunk of the FIFO"
    if algorithm is Algorithm.NVLS:
        chunk = min(chunk, shape.nvls.chunk_bytes)
        if shape.num_nodes > 1 and shape.nvls_GBps < 150:
            chunk = min(chunk, 32 << 10)
        round_bytes = num_channels * shape.num_heads
        small = _drop(
            chunk, num_bytes, round_bytes, ((64, 65536), (8, 32768), (2, 16384))
        )
    elif algorithm is Algorithm.NVLS_TREE:
        chunk = min(chunk, shape.nvls.tree_chunk_bytes)
        steps = ((32, 262144), (16, 131072), (4, 65536), (1, 32768))
        small = _drop(chunk, num_bytes, num_channels * shape.num_heads, steps)
    elif algorithm is Algorithm.COLLNET_DIRECT:
        limits = (
            (64 * shape.depth, 131072),
            (8 * shape.depth, 65536),
            (8 * shape.depth, 32768),
        )
        small = _halve(chunk, num_bytes, num_channels * shape.num_heads, limits)
    elif algorithm is Algorithm.COLLNET_CHAIN:
        chunk = min(256 << 10, chunk)
        limits = (
            (64 * shape.depth, 131072),
            (8 * shape.depth, 65536),
            (shape.depth, 32768),
        )
        small = _halve(chunk, num_bytes, num_channels, limits)
    elif algorithm is Algorithm.TREE and protocol is Protocol.LL128:
        local = shape.num_ranks / shape.num_nodes
        stages = 1 + (shape.num_nodes.bit_length() - 1) + 0.1 * local
        two = ((stages * 64 / local, 131072), (stages * 16 / local, 32768))
        small = _halve(chunk, num_bytes, num_channels, two)
    elif algorithm is Algorithm.PAT:
        small = chunk
        while small * num_channels * 32 > num_bytes and small > 65536:
            small //= 2
    elif algorithm is Algorithm.TREE and protocol is Protocol.SIMPLE and by_depth:
        depth = (
            shape.num_ranks // shape.num_nodes
            - 1
            + (shape.num_nodes.bit_length() - 1)
        )
        limits = ((8 * depth, 131072), (4 * depth, 65536), (depth, 32768))
        small = _halve(chunk, num_bytes, num_channels, limits)
    else:
        small = chunk
    if small < chunk:
        why = f"shrunk from {chunk} B so that all channels and stages stay busy"
    elif chunk < fifo.chunk_bytes:
        why = "the largest chunk of the algorithm"
    grain = fifo.grain_bytes
    return Chunks(max(grain, small // grain * grain), fifo.slices_per_chunk, why)


def _drop(
    chunk: int, num_bytes: int, parts: int, stages: tuple[tuple[int, int], ...]
) -> int:
    """Return the chunk lowered to the sizes of `stages` while a rank has fewer rounds than their limits."""
    for rounds, size in stages:
        if num_bytes < rounds * parts * chunk and chunk > size:
            chunk = size
    return chunk


def _halve(
    chunk: int, num_bytes: int, parts: int, stages: tuple[tuple[float, int], ...]
) -> int:
    """Return the chunk halved down to the sizes of `stages` while there are fewer rounds than their limits."""
    for rounds, size in stages:
        while num_bytes // (parts * chunk) < rounds and chunk > size:
            chunk //= 2
    return chunk


# ---------------------------------------------------------------------------- since 2.19: contiguous parts


@dataclass(frozen=True, slots=True)
class ChannelPart:
    """Part of one channel: the bytes from `offset`, in chunks of `chunk_bytes`.

    `num_bytes` refers to the user's count: for all-gather and reduce-scatter the share of a rank [bytes].
    """

    channel: int
    offset: int
    num_bytes: int
    chunk_bytes: int


def traffic_per_byte(collective: Collective, num_ranks: int) -> int:
    """Return the bytes that pass a rank per byte of the count: all-reduce 2, all-gather and reduce-scatter n."""
    if collective is Collective.ALLREDUCE:
        return 2
    return num_ranks if collective.has_blocks else 1


def min_traffic(version: Version) -> int:
    """Return the least traffic for which a release uses a further channel [bytes].

    ``MinTrafficPerChannel`` of ``src/enqueue.cc``; before 2.22 only the thresholds of the tuner limit the channels.
    """
    if since(version, "channels by 32 KiB of traffic"):
        return 32 << 10
    return 16 << 10 if since(version, "channels by 16 KiB of traffic") else 512


def continuous_parts(
    cutting: Cutting,
    count_bytes: int,
    num_channels: int,
    *,
    element_bytes: int = 4,
    most_channels: int | None = None,
) -> list[ChannelPart]:
    """Return the part of each channel if a launch has only this collective (NCCL 2.19 and later).

    Parameters
    ----------
    count_bytes : int
        Bytes of the user's count: the buffer, or for all-gather and reduce-scatter a rank's share [bytes].
    num_channels : int
        Channels the tuner allows; `most_channels` those the communicator has.
    """
    collective, num_ranks = cutting.collective, cutting.shape.num_ranks
    channel_limit = most_channels or num_channels
    heavy = traffic_per_byte(collective, num_ranks)
    if cutting.protocol is Protocol.LL and since(
        cutting.version, "traffic of ll counts fourfold"
    ):
        heavy *= 4
    min_bytes = min_traffic(cutting.version)
    per_channel = max(min_bytes, count_bytes * heavy // num_channels)
    by_traffic = since(cutting.version, "channels by 16 KiB of traffic")
    cell = _up(max(1, -(-min_bytes // heavy)), 16) if by_traffic else 16
    cell = max(element_bytes, cell // element_bytes * element_bytes)
    cells = -(-count_bytes // cell)
    cells_each = min(cells, -(-per_channel // (cell * heavy)))
    if cells_each == 0:
        return []
    # Full channels are skipped; the last channel of a communicator gets the remainder.
    counts = [cells_each] * (cells // cells_each) + (
        [cells % cells_each] if cells % cells_each else []
    )
    if len(counts) > channel_limit:
        middle = max(0, channel_limit - 2)
        remainder = cells - cells_each
        each_middle = remainder // (middle + 1)
        counts = [
            cells_each,
            *[each_middle] * middle,
            each_middle + remainder % (middle + 1),
        ]
        counts = counts if channel_limit > 1 else [cells]
    parts, offset = [], 0
    global_factor = num_ranks if collective.has_blocks else 1
    for channel, number in enumerate(counts):
        length = min(number * cell, count_bytes - offset)
        total_bytes = length * global_factor
        chunk_bytes = plan_chunks(cutting, total_bytes, 1).chunk_bytes
        parts.append(ChannelPart(channel, offset, length, chunk_bytes))
        offset += length
    return parts


def distributes_continuously(version: Version) -> bool:
    """Return True if a release gives every channel one contiguous part."""
    return since(version, "continuous byte distribution")
