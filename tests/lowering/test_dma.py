"""Loads from host memory beside the transfers of NICs: law of the extension, whose links are busy, PCIe only."""

from __future__ import annotations

from functools import cache

import pytest

from clusim import topology
from clusim.engine.image import Image
from clusim.lowering import lower
from clusim.lowering.dma import waits_ps
from clusim.nccl import parse_version
from clusim.nccl.choice import Communicators
from clusim.nccl.programs import CollectivePayload, build
from clusim.topology.arrays import arrays_of

US = 1e6
CHUNK = 128 << 10
LINE = 0.05
"""Rate of a 400 Gbit/s NIC [bytes per ps], below that of the GPU's PCIe link."""


@pytest.mark.parametrize("programs", [1, 2, 4, 8])
@pytest.mark.parametrize("loads", [1, 2])
def test_the_extended_step_finds_the_link_busy_as_long_as_it_assumes(
    programs: int, loads: int
) -> None:
    """A step T of 9 us + waits: each load waits for half a message of 2.6 us with the share n b / T, in sum."""
    step, message = 9 * US, 2.6 * US
    extended = step + waits_ps(step, loads, programs, message)
    busy = programs * message / extended
    waits = loads * busy * message / 2
    assert extended == pytest.approx(step + min(waits, loads * message), abs=2)


def test_no_load_waits_longer_than_a_message_in_both_directions() -> None:
    assert waits_ps(1 * US, 2, 1000, 2 * US) == 4 * US
    assert waits_ps(1 * US, 2, 0, 2 * US) == 0


@cache
def image(name: str, ranks: tuple[int, ...]) -> Image:
    fabric = topology.load(name, nodes=2)
    comm = Communicators(fabric, parse_version("2.29.2")).of(ranks).comm
    moved = CollectivePayload("sendrecv", 32 << 20)
    return lower(fabric, build(fabric, comm, moved), "coarse").image


def fixed_us(name: str, ranks: tuple[int, ...]) -> list[float]:
    """Return the different fixed costs of a slice of programs that copy data [us]."""
    rows = image(name, ranks).costs
    return sorted(
        {round(int(r["fixed_ps"]) / US, 3) for r in rows if int(r["op_cost16"].max()) > 0}
    )


def slice_us(name: str, trips: int, warps: int, programs: int) -> float:
    """Return the fixed cost by hand: the protocol's, round trips of loads and fences, waits of the two loads [us]."""
    fabric = topology.load(name, nodes=2)
    arrays, simple = arrays_of(fabric), fabric.protocols["simple"]
    memory = arrays.memory_of(0)
    way = arrays.steps(arrays.node_of(0), (memory,))
    poll = 2 * arrays.latency_ps(way) + int(arrays.endpoints["read_latency_ps"][memory])
    fixed = simple.fixed_ps + trips * poll
    copy = CHUNK * 1e12 / simple.rate_Bps("send") * 16 / (warps * 1.75)
    return round((fixed + waits_ps(fixed + copy, 2, programs, CHUNK / LINE)) / US, 3)


def test_loads_of_sender_and_receiver_wait_on_a_gpu_with_both() -> None:
    """A GPU per node: four channels send (10 warps, a fence) and receive (9 warps), eight programs over its link."""
    found = fixed_us("hgx-h100-ndr", (0, 8))
    assert found == sorted((slice_us("hgx-h100-ndr", 3, 10, 8), slice_us("hgx-h100-ndr", 2, 9, 8)))


def test_loads_of_a_sender_do_not_wait_where_the_nic_reads_another_gpu() -> None:
    """Two GPUs per node: the second sends over the first one's NIC and memory (PXN), whose receiver waits."""
    found = fixed_us("hgx-h100-ndr", (0, 1, 8, 9))
    assert slice_us("hgx-h100-ndr", 3, 19, 0) in found
    assert slice_us("hgx-h100-ndr", 2, 19, 8) in found


def test_links_other_than_pcie_have_no_waits() -> None:
    """The host memory of a GH200 is behind NVLink-C2C."""
    assert fixed_us("alps-gh200", (0, 4)) == sorted(
        (slice_us("alps-gh200", 3, 10, 0), slice_us("alps-gh200", 2, 9, 0))
    )
