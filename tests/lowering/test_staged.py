"""Costs of slices that pass through host memory of a node."""

from __future__ import annotations

from dataclasses import replace

import pytest

import clusim
from clusim.collectives import build
from clusim.lowering import lower
from clusim.lowering.rank_paths import places_of
from clusim.topology.arrays import arrays_of

KIB = 1 << 10


@pytest.mark.parametrize(
    ("protocol", "rank", "trips"), [("simple", 0, 1), ("simple", 1, 1), ("ll", 0, 0), ("ll", 1, 0)]
)
def test_a_slice_through_host_memory_waits_for_a_fence_or_a_tail(
    protocol: str, rank: int, trips: int
) -> None:
    """The sender's fence waits for its data, the receiver loads a tail: a round trip each. LL has neither."""
    fabric = clusim.load("a100-pcie-x8")
    chosen = {"ranks": (0, 7), "channels": 1, "protocol": protocol}
    image = lower(fabric, build(fabric, "send", None, 64 * KIB, **chosen)).image
    fixed_ps = image.costs["fixed_ps"][image.instances["cost"][rank]]
    to_gpu_ps = places_of(arrays_of(fabric)).to_gpu(0)
    assert fixed_ps == fabric.protocols[protocol].fixed_ps + trips * to_gpu_ps


@pytest.mark.parametrize(("chunk", "trips"), [(32 * KIB, 3), (64 * KIB, 2)])
def test_the_tail_of_an_empty_slice_is_loaded_as_well(chunk: int, trips: int) -> None:
    """A ring's chunk has two slices of at least 32 KiB: receive and send are two trips, an empty slice a third."""
    fabric = clusim.load("a100-pcie-x8")
    fabric = replace(fabric, p2p_level="loc")
    schedule = build(
        fabric, "allgather", "ring", 8 * chunk, channels=1, ranks=tuple(range(8)), protocol="simple"
    )
    image = lower(fabric, schedule).image
    fixed_ps = image.costs["fixed_ps"][image.instances["cost"][0]]
    to_gpu_ps = places_of(arrays_of(fabric)).to_gpu(0)
    assert fixed_ps == fabric.protocols["simple"].fixed_ps + trips * to_gpu_ps
