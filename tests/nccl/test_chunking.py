"""Buffers, chunks and the deal of bytes to channels, against worked examples."""

from __future__ import annotations

import pytest

from clusim.nccl import Algorithm, Collective, Protocol, Settings, parse_env, parse_version
from clusim.nccl.chunking import (
    ChannelPart,
    Cutting,
    GroupShape,
    buffers,
    continuous_parts,
    nvls_tuning,
    plan_chunks,
    traffic_per_byte,
)
from clusim.nccl.constants import Path, Pattern
from clusim.nccl.graph import Graph, RankGroup

RING, TREE, NVLS = Algorithm.RING, Algorithm.TREE, Algorithm.NVLS
LL, LL128, SIMPLE = Protocol.LL, Protocol.LL128, Protocol.SIMPLE
ALLREDUCE = Collective.ALLREDUCE
NEW, OLD, DEFAULT = parse_version("2.27"), parse_version("2.18"), Settings()


@pytest.mark.parametrize(
    ("protocol", "total", "step", "data", "chunk"),
    [
        (LL, 512 << 10, 64 << 10, 32 << 10, 32 << 10),
        (LL128, 4_915_200, 614_400, 576_000, 576_000),
        (SIMPLE, 4 << 20, 512 << 10, 512 << 10, 2 << 20),
    ],
)
def test_buffers_of_rings(protocol: Protocol, total: int, step: int, data: int, chunk: int) -> None:
    fifo = buffers(RING, protocol, ALLREDUCE, DEFAULT)
    assert (fifo.total_bytes, fifo.step_bytes, fifo.step_data_bytes) == (total, step, data)
    assert fifo.chunk_bytes == chunk


def test_only_looping_rings_move_four_steps_at_once() -> None:
    assert buffers(RING, SIMPLE, ALLREDUCE, DEFAULT).slices_per_chunk == 2
    for algorithm, collective in ((TREE, ALLREDUCE), (RING, Collective.BROADCAST)):
        fifo = buffers(algorithm, SIMPLE, collective, DEFAULT)
        assert (fifo.chunk_bytes, fifo.slices_per_chunk) == (512 << 10, 1)


def test_buffsize_scales_chunks() -> None:
    settings = parse_env({"NCCL_BUFFSIZE": "8388608"})
    assert buffers(RING, SIMPLE, ALLREDUCE, settings).chunk_bytes == 4 << 20


def parts(
    size: int, channels: int, protocol: Protocol = SIMPLE, release: str = "2.29", **kwargs: int
) -> list[ChannelPart]:
    cutting = Cutting(RING, protocol, ALLREDUCE, GroupShape(8), parse_version(release))
    return continuous_parts(cutting, size, channels, **kwargs)


@pytest.mark.parametrize("size", [4, 8, 4096, 65_536, 1 << 20, 1_000_004, 1 << 26])
@pytest.mark.parametrize("protocol", [LL, SIMPLE])
def test_parts_cover_the_data_without_gaps(size: int, protocol: Protocol) -> None:
    found = parts(size, 24, protocol)
    assert [part.channel for part in found] == list(range(len(found)))
    end = 0
    for part in found:
        assert part.offset == end
        assert part.num_bytes > 0
        end += part.num_bytes
    assert end == size
    assert len(found) <= 24


def test_a_channel_gets_at_least_32_kib_of_traffic() -> None:
    # An all-reduce moves 2 B per byte: cells of 16 KiB, four times smaller under LL.
    assert [p.num_bytes for p in parts(40_000, 24)] == [16_384, 16_384, 7_232]
    assert [p.num_bytes for p in parts(10_000, 24, LL)] == [4096, 4096, 1808]


@pytest.mark.parametrize(
    ("release", "protocol", "size", "channels"),
    [
        # MinTrafficPerChannel of 32 KiB, 16 KiB and 512 B, at 2 B of traffic per byte of an all-reduce.
        ("2.29", LL128, 128 << 10, 8),
        ("2.29", LL128, 256 << 10, 16),
        ("2.28", LL128, 128 << 10, 16),
        ("2.23", LL128, 128 << 10, 16),
        ("2.22", LL128, 4 << 10, 16),
        # LL's traffic counts fourfold since 2.26.
        ("2.29", LL, 64 << 10, 16),
        ("2.26", LL, 32 << 10, 16),
        ("2.25", LL, 32 << 10, 4),
    ],
)
def test_the_least_traffic_of_a_channel_follows_the_release(
    release: str, protocol: Protocol, size: int, channels: int
) -> None:
    found = parts(size, 16, protocol, release)
    assert [part.num_bytes for part in found] == [size // channels] * channels


def test_large_sizes_use_all_channels_evenly() -> None:
    found = parts(64 << 20, 24)
    assert len(found) == 24
    assert {p.num_bytes for p in found[:-1]} == {171 * 16_384}
    assert found[-1].num_bytes == (64 << 20) - 23 * 171 * 16_384


@pytest.mark.parametrize(
    ("megabytes", "chunk"), [(0.5, 16384), (8, 32768), (64, 65536), (512, 65536), (1025, 131072)]
)
def test_nvls_chunks_shrink(megabytes: float, chunk: int) -> None:
    shape = GroupShape(8, num_heads=8)
    size = int(megabytes * 2**20)
    found = plan_chunks(Cutting(NVLS, SIMPLE, ALLREDUCE, shape, NEW), size, 16)
    assert found.chunk_bytes == chunk


def test_nvls_over_slow_networks_uses_small_chunks() -> None:
    shape = GroupShape(16, 2, num_heads=8, nvls_GBps=100)
    found = plan_chunks(Cutting(NVLS, SIMPLE, ALLREDUCE, shape, NEW), 8 << 30, 16)
    assert found.chunk_bytes == 32 << 10


def test_tree_ll128_chunks_are_whole_grains() -> None:
    shape = GroupShape(16, 2)
    for size in (1 << 16, 1 << 22, 1 << 30):
        found = plan_chunks(Cutting(TREE, LL128, ALLREDUCE, shape, NEW), size, 16)
        assert found.chunk_bytes % 1920 == 0
    assert found.chunk_bytes == 576_000


def test_pat_and_old_trees_shrink() -> None:
    shape = GroupShape(32, 4)
    pat = plan_chunks(Cutting(Algorithm.PAT, SIMPLE, Collective.ALLGATHER, shape, NEW), 1 << 20, 16)
    assert pat.chunk_bytes == 65_536
    assert pat.why.startswith("shrunk from 524288 B")
    old = plan_chunks(Cutting(TREE, SIMPLE, ALLREDUCE, shape, parse_version("2.12")), 1 << 20, 2)
    assert old.chunk_bytes == 32_768


KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def tree_shape(num_ranks: int, num_nodes: int, release: str) -> GroupShape:
    group = RankGroup(num_ranks, num_nodes, 90, 90, "intel")
    tuning = nvls_tuning(group, Graph(Pattern.NVLS), parse_version(release), Settings())
    return GroupShape(num_ranks, num_nodes, num_heads=8, nvls=tuning)


# ncclNvlsTreeSm100Tuning of NCCL 2.30: nodes, GPUs of a node, NIC [GB/s], path to it; channels, NVLSTree's chunk.
BLACKWELL = (
    (1, 8, 48, Path.PXB, 24, 128),
    (2, 4, 48, Path.PXB, 32, 256),
    (2, 8, 48, Path.PXB, 32, 64),
    (2, 8, 48, Path.PHB, 32, 128),
    (2, 8, 96, Path.PXB, 32, 128),
    (2, 16, 96, Path.PXB, 32, 64),
    (2, 8, 24, Path.PXB, 32, 128),
    (4, 8, 48, Path.PXB, 24, 64),
    (4, 8, 48, Path.PHB, 24, 128),
    (4, 8, 96, Path.PXB, 24, 256),
    (4, 16, 96, Path.PXB, 32, 128),
    (4, 36, 96, Path.PXB, 32, 64),
    (4, 8, 24, Path.PXB, 32, 64),
)


@pytest.mark.parametrize(("nodes", "local", "nic", "path", "channels", "chunk"), BLACKWELL)
def test_nvls_trees_of_blackwell_follow_nodes_and_nics(
    nodes: int, local: int, nic: float, path: Path, channels: int, chunk: int
) -> None:
    group = RankGroup(
        nodes * local, nodes, 100, 100, "intel", least_local=local, least_nic_GBps=nic
    )
    graph = Graph(Pattern.NVLS, type_inter=path)
    tuning = nvls_tuning(group, graph, parse_version("2.30"), Settings())
    assert (tuning.channels, tuning.tree_chunk_bytes) == (channels, chunk * KIB)
    before = nvls_tuning(group, graph, parse_version("2.29"), Settings())
    assert before.channels == (24 if nodes == 1 else 32)
    assert before.tree_chunk_bytes == (64 if nodes >= 4 else 128) * KIB


CHAIN, DIRECT, NVLS_TREE = Algorithm.COLLNET_CHAIN, Algorithm.COLLNET_DIRECT, Algorithm.NVLS_TREE
GATHER, TREES_OLD = Collective.ALLGATHER, parse_version("2.12")

# The least sizes that keep a chunk: so many rounds of that chunk on all channels and heads (16 x 8 where not said).
# A byte less, and the chunk is the next one.
LIMITS = {
    "NVLS: 64, 8 and 2 rounds": (
        (NVLS, SIMPLE, GroupShape(8, num_heads=8), NEW, 16),
        ((GIB, 128 * KIB), (64 * MIB, 64 * KIB), (8 * MIB, 32 * KIB), (0, 16 * KIB)),
    ),
    "NVLSTree to 2.20: 32, 16, 4 and 1 rounds": (
        (NVLS_TREE, SIMPLE, tree_shape(24, 3, "2.20"), parse_version("2.20"), 16),
        ((2 * GIB, 512 * KIB), (512 * MIB, 256 * KIB), (64 * MIB, 128 * KIB), (8 * MIB, 64 * KIB), (0, 32 * KIB)),
    ),
    "NVLSTree: at most a chunk of NVLS": (
        (NVLS_TREE, SIMPLE, tree_shape(24, 3, "2.21"), NEW, 16),
        ((64 * MIB, 128 * KIB), (8 * MIB, 64 * KIB), (0, 32 * KIB)),
    ),
    "NVLSTree of four nodes: at most 64 KiB": (
        (NVLS_TREE, SIMPLE, tree_shape(32, 4, "2.21"), NEW, 16),
        ((8 * MIB, 64 * KIB), (0, 32 * KIB)),
    ),
    "CollNetDirect of depth 2: 128, 16 and 16 rounds": (
        (DIRECT, SIMPLE, GroupShape(16, 2, num_heads=8, depth=2), NEW, 16),
        ((8 * GIB, 512 * KIB), (4 * GIB, 256 * KIB), (256 * MIB, 128 * KIB), (128 * MIB, 64 * KIB), (0, 32 * KIB)),
    ),
    "CollNetChain of depth 2: 128, 16 and 2 rounds of 16 channels": (
        (CHAIN, SIMPLE, GroupShape(4, 2, depth=2), NEW, 16),
        ((512 * MIB, 256 * KIB), (32 * MIB, 128 * KIB), (2 * MIB, 64 * KIB), (0, 32 * KIB)),
    ),
    # 1 + log2(2) + 0.8 stages by 64 and 16, over 8 ranks of a node: 22.4 and 5.6 rounds, so 23 and 6.
    "Tree LL128 of two nodes": (
        (TREE, LL128, GroupShape(16, 2), NEW, 16),
        ((23 * 16 * 576_000, 576_000), (23 * 16 * 288_000, 288_000), (23 * 16 * 144_000, 144_000),
         (6 * 16 * 72_000, 37 * 1920), (6 * 16 * 36_000, 18 * 1920), (0, 9 * 1920)),
    ),
    # 1 + log2(3) rounded down + 0.4 stages, over 4 ranks: 38.4 and 9.6 rounds.
    "Tree LL128 of three nodes": (
        (TREE, LL128, GroupShape(12, 3), NEW, 1),
        ((39 * 576_000, 576_000), (39 * 288_000, 288_000), (39 * 144_000, 144_000), (10 * 72_000, 37 * 1920),
         (10 * 36_000, 18 * 1920), (0, 9 * 1920)),
    ),
    "PAT: 32 rounds of 16 channels": (
        (Algorithm.PAT, SIMPLE, GroupShape(32, 32), NEW, 16),
        ((256 * MIB, 512 * KIB), (128 * MIB, 256 * KIB), (64 * MIB, 128 * KIB), (0, 64 * KIB)),
    ),
    # 7 hops in a node and log2(2) between nodes: 64, 32 and 8 rounds of two channels.
    "trees of old releases": (
        (TREE, SIMPLE, GroupShape(16, 2), TREES_OLD, 2),
        ((64 * MIB, 512 * KIB), (32 * MIB, 256 * KIB), (8 * MIB, 128 * KIB), (MIB, 64 * KIB), (0, 32 * KIB)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIMITS)
def test_chunks_shrink_below_whole_rounds(name: str) -> None:
    (algorithm, protocol, shape, version, channels), sizes = LIMITS[name]
    cutting = Cutting(algorithm, protocol, ALLREDUCE, shape, version)
    last = None
    for size, chunk in sizes:
        assert plan_chunks(cutting, size, channels).chunk_bytes == chunk
        if last is not None:
            assert plan_chunks(cutting, last - 1, channels).chunk_bytes == chunk
        last = size


@pytest.mark.parametrize(
    ("nodes", "gbps", "chunk"), [(2, 150.0, 128), (2, 149.9, 32), (1, 100.0, 128), (3, 1.0, 32)]
)
def test_nvls_is_cut_small_below_150_gbps_between_nodes(
    nodes: int, gbps: float, chunk: int
) -> None:
    shape = GroupShape(8 * nodes, nodes, num_heads=8, nvls_GBps=gbps)
    found = plan_chunks(Cutting(NVLS, SIMPLE, ALLREDUCE, shape, NEW), 8 * GIB, 16)
    assert found.chunk_bytes == chunk * KIB


@pytest.mark.parametrize(
    ("protocol", "name", "total", "chunk"),
    [
        # A step of 528 B has 33 lines with 8 B of data each; chunks are multiples of 16 B.
        (LL, "NCCL_LL_BUFFSIZE", 8 * 528, 256),
        # Four steps of 1000 B, in multiples of 512 B.
        (SIMPLE, "NCCL_BUFFSIZE", 8 * 1000, 7 * 512),
        # A step of four lines is less than a multiple, which is the least.
        (LL128, "NCCL_LL128_BUFFSIZE", 8 * 512, 1920),
    ],
)
def test_chunks_are_multiples_of_a_grain(
    protocol: Protocol, name: str, total: int, chunk: int
) -> None:
    settings = parse_env({name: str(total)})
    cutting = Cutting(RING, protocol, ALLREDUCE, GroupShape(8), NEW, settings)
    assert plan_chunks(cutting, GIB, 16).chunk_bytes == chunk


def test_the_last_channel_takes_what_a_further_one_would_have() -> None:
    # Four channels have a cell of 16 KiB each, and a fifth cell has one byte.
    size = 4 * 16_384 + 1
    assert [p.num_bytes for p in parts(size, 4, element_bytes=1)] == [16_384] * 3 + [16_385]
    # A communicator with a fifth channel uses it.
    found = parts(size, 4, element_bytes=1, most_channels=5)
    assert [p.num_bytes for p in found] == [16_384] * 4 + [1]


@pytest.mark.parametrize("collective", [Collective.ALLGATHER, Collective.REDUCESCATTER])
@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_channels_of_blocked_collectives_carry_the_shares_of_all_ranks(
    collective: Collective, ranks: int
) -> None:
    """Of a rank's share, ``ncclFuncTrafficPerByte`` bytes pass a rank: as many as there are ranks.

    32 KiB of traffic are cells of 32 KiB / ranks. A share of nine cells and 16 bytes is ten channels of 24, and one of
    2,048 cells is 86 cells (2,048 / 24, rounded up) on each of 23 channels and the rest on the last.
    """
    cutting = Cutting(RING, SIMPLE, collective, GroupShape(ranks), parse_version("2.29"))
    cell = 32 * KIB // ranks
    small = continuous_parts(cutting, 9 * cell + 16, 24)
    assert [part.num_bytes for part in small] == [cell] * 9 + [16]
    large = continuous_parts(cutting, 2048 * cell, 24)
    assert [part.num_bytes for part in large] == [86 * cell] * 23 + [70 * cell]
    assert traffic_per_byte(collective, ranks) == ranks


def test_chunks_of_blocked_collectives_follow_the_bytes_of_all_ranks() -> None:
    """64 rounds of 128 KiB on one channel and 8 heads are 64 MiB: a share of 8 MiB on a channel has them."""
    shape = GroupShape(8, num_heads=8)
    cutting = Cutting(NVLS, SIMPLE, GATHER, shape, parse_version("2.29"))
    for share, chunk in ((8 * MIB, 128 * KIB), (8 * MIB - 4096, 64 * KIB)):
        (part,) = continuous_parts(cutting, share, 1)
        assert (part.num_bytes, part.chunk_bytes) == (share, chunk)


@pytest.mark.parametrize(
    ("collective", "traffic"),
    [(ALLREDUCE, 2), (Collective.BROADCAST, 1), (Collective.REDUCE, 1), (GATHER, 5)],
)
def test_traffic_of_a_byte_by_collective(collective: Collective, traffic: int) -> None:
    assert traffic_per_byte(collective, 5) == traffic


LOGGED = {
    # 2 ranks, 4 channels, sockets, NCCL 2.29.7: docs/tmp of eunomia-bpf/nccl-eBPF (sweep of all-gather and
    # reduce-scatter, 2026-03-09). "AllGather: 8192 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}"
    ("2.29.7", 2, 4, LL): {16: 1, 1024: 1, 4096: 1, 8192: 2, 16384: 4},
    ("2.29.7", 2, 4, SIMPLE): {65536: 4, 1 << 20: 4, 64 << 20: 4},
    # 4 ranks of an NVLink system with 32 channels, NCCL 2.28.9 (analysis of SGLang's all-gather for decoding):
    # "AllGather: 196608 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..31}"
    ("2.28.9", 4, 32, LL): {196608: 32},
}
"""Channels in lines of NCCL_DEBUG_SUBSYS=TUNING by the bytes of a rank: (release, ranks, channels, protocol)."""


@pytest.mark.parametrize("collective", [Collective.ALLGATHER, Collective.REDUCESCATTER])
@pytest.mark.parametrize(("where", "logged"), LOGGED.items())
def test_channels_of_all_gather_and_reduce_scatter_are_those_of_logs(
    where: tuple[str, int, int, Protocol], logged: dict[int, int], collective: Collective
) -> None:
    release, ranks, channels, protocol = where
    shape = GroupShape(ranks, ranks if ranks == 2 else 1)
    cutting = Cutting(RING, protocol, collective, shape, parse_version(release))
    found = {size: len(continuous_parts(cutting, size, channels)) for size in logged}
    assert found == logged
