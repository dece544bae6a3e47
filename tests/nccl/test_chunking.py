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
    grid_loops,
    loop_chunk_bytes,
    plan_chunks,
    slice_elements,
)

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


def test_slices_are_half_a_chunk_but_at_least_a_32nd_of_the_nominal() -> None:
    fifo = buffers(RING, SIMPLE, ALLREDUCE, DEFAULT)
    assert slice_elements(524_288, fifo, 4) == 262_144
    assert slice_elements(1000, fifo, 4) == 131_072 * 2 // 32
    assert slice_elements(100_000, fifo, 4) == 50_000


def parts(
    size: int, channels: int, protocol: Protocol = SIMPLE, **kwargs: int
) -> list[ChannelPart]:
    return continuous_parts(
        Cutting(RING, protocol, ALLREDUCE, GroupShape(8), NEW), size, channels, **kwargs
    )


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


def test_large_sizes_use_all_channels_evenly() -> None:
    found = parts(64 << 20, 24)
    assert len(found) == 24
    assert {p.num_bytes for p in found[:-1]} == {171 * 16_384}
    assert found[-1].num_bytes == (64 << 20) - 23 * 171 * 16_384


def test_the_last_loop_of_a_ring_deals_the_rest_evenly() -> None:
    part = parts(64 << 20, 1)[0]
    assert list(loop_chunk_bytes(part, 8)) == [2 << 20] * 4
    part = parts(20_000_000, 1)[0]
    assert list(loop_chunk_bytes(part, 8)) == [2 << 20, 402_848]
    assert 8 * ((2 << 20) + 402_848) >= 20_000_000
    assert 402_848 % 16 == 0


def test_the_grid_of_old_releases() -> None:
    # 24 channels x 8 ranks x 2 MiB are a loop; the rest is dealt in units of 512 threads x 8 B.
    loops = list(
        grid_loops(Cutting(RING, SIMPLE, ALLREDUCE, GroupShape(8), OLD), 512 << 20, 24, 544)
    )
    assert [loop.chunk_bytes for loop in loops] == [2 << 20, 700_416]
    assert loops[1].offset == 24 * 8 * (2 << 20)
    assert 700_416 % 4096 == 0
    assert (512 << 20) - loops[1].offset <= 700_416 * 192
    first = loops[0]
    assert first.chunk_offset(1, 0, 8, 24) - first.chunk_offset(0, 0, 8, 24) == 2 << 20
    assert first.chunk_offset(0, 1, 8, 24) - first.chunk_offset(0, 0, 8, 24) == 16 << 20
    ll = next(grid_loops(Cutting(RING, LL, ALLREDUCE, GroupShape(8), OLD), 1 << 20, 24, 512))
    assert ll.interleaved
    assert ll.chunk_bytes == 8192


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
