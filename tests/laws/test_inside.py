"""Laws of what CTAs pay inside a machine: flight and occupancy of a hop, warps that messages share.

The amounts are derived by hand, not from an earlier run.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import clusim
from clusim.lowering import lower
from clusim.nccl import communicator, parse_version
from clusim.nccl.programs.messages import _shared_warps, emit_messages
from clusim.schedule.builder import ProgramBuilder, Site
from clusim.schedule.ir import Schedule
from clusim.topology import Fabric
from support.variants import data_of, fabric_of, run

ROUND = 4 << 10
"""Bytes that all threads of a CTA move at a time with LL."""

NS = 1_000


def _with_flight(fabric: Fabric, added_ps: int) -> Fabric:
    """Return a fabric on which a hop of LL flies longer."""
    ll = fabric.protocols["ll"]
    slower = replace(ll, tail_fence_ps=ll.tail_fence_ps + added_ps)
    return replace(fabric, protocols={**fabric.protocols, "ll": slower})


def _with_occupancy(fabric: Fabric, added_ps: int) -> Fabric:
    """Return a fabric on which every round of LL costs more."""
    ll = fabric.protocols["ll"]
    slower = replace(ll, fixed_ps=ll.fixed_ps + added_ps, round_ps=ll.round_ps + added_ps)
    return replace(fabric, protocols={**fabric.protocols, "ll": slower})


def _broadcast_ps(fabric: Fabric, rounds: int) -> int:
    """Return the time of a chain over four GPUs, one channel, whose pieces are rounds."""
    fields = {"channels": 1, "protocol": "ll", "operation": "broadcast"}
    return run(fabric, "ring", rounds * ROUND, **fields).time_ps


def test_flight_is_paid_once_per_hop_and_occupancy_once_more_per_round() -> None:
    """Eight rounds down a chain of 8 GPUs: the last one has 7 hops; the last GPU has 8 rounds, one after another.

    What starts together passes 7 hops, each a send or receive in front of it, and then seven more rounds follow.
    """
    fabric = fabric_of(data_of("hgx-b200"))
    usual = _broadcast_ps(fabric, 8)
    assert _broadcast_ps(_with_flight(fabric, 100 * NS), 8) - usual == 7 * 100 * NS
    assert _broadcast_ps(_with_occupancy(fabric, 100 * NS), 8) - usual == (8 + 7) * 100 * NS


def test_a_hop_of_ll_flies_on_blackwell_for_longer_than_on_hopper() -> None:
    """The figures of both: 0.65 us more, which a ring of 8 pays 2 (8 - 1) times."""
    b200, h100 = (clusim.load(name).protocols["ll"] for name in ("hgx-b200", "dgx-h100"))
    assert (b200.tail_fence_ps, h100.tail_fence_ps) == (650 * NS, 0)
    fabric = fabric_of(data_of("hgx-b200"))
    near = _with_flight(fabric, -650 * NS)
    far_ps, near_ps = (
        run(f, "ring", 1 << 10, channels=1, protocol="ll").time_ps for f in (fabric, near)
    )
    assert far_ps - near_ps == 14 * 650 * NS


# ---- messages that share a CTA ---------------------------------------------------------------------


def _messages(num_bytes: int, works: int, version: str = "2.30") -> tuple[Fabric, Schedule]:
    """Return a launch in which position 0 exchanges `works` messages each way with others on one channel."""
    fabric = clusim.load("dgx-h100")
    comm = communicator(fabric, parse_version(version))
    builder = ProgramBuilder(8)
    emit_messages(Site(builder), fabric, comm, [(0, 1, num_bytes)] * works)
    return fabric, builder.build()


@pytest.mark.parametrize(
    ("sides", "share"),
    [([2, 2], 19 / 4), ([2, 2, 2, 1], 19 / 7), ([2] * 7 + [1], 19 / 15), ([2] * 16, 19 / 16)],
)
def test_sides_of_messages_share_a_cta_equally(sides: list[int], share: float) -> None:
    """Two sides of a message, one of a copy; of sixteen messages eight run at once."""
    assert _shared_warps(sides) == pytest.approx(share)


def test_one_side_alone_has_the_warps_of_both() -> None:
    """Rank 0 only sends, rank 1 only receives: 19 of 16 warps each, as no other side wants them."""
    _, schedule = _messages(32 << 20, 1)
    assert {item.warps for item in schedule.instances} == {19}


def test_a_side_of_half_the_warps_moves_half_as_much() -> None:
    """The rate is that part of a CTA's; the fixed cost is not shared by warps."""
    fabric, schedule = _messages(32 << 20, 1)
    costs = []
    for warps in (16, 8):
        instances = tuple(replace(item, warps=warps) for item in schedule.instances)
        image = lower(fabric, replace(schedule, instances=instances)).image
        costs.append(image.costs)
    full, half = costs
    assert half["op_cost16"].max() > 0
    assert (half["op_cost16"] == 2 * full["op_cost16"]).all()
    assert (half["fixed_ps"] == full["fixed_ps"]).all()


@pytest.mark.parametrize(
    ("version", "protocol", "parts"),
    [
        # Up to 2.21 and from 2.29 on one part of 64 KiB, which is more than 16 KiB of LL.
        ("2.21", "simple", 1),
        # In between they are less than 16 KiB on each of a pair's 32 channels; parts of LL have 8 KiB at least, and of
        # 32 channels 8 ranks take 4 each.
        ("2.22", "ll", 4),
        ("2.28.9", "ll", 4),
        ("2.29.2", "simple", 1),
    ],
)
def test_the_release_says_what_ll_may_carry(version: str, protocol: str, parts: int) -> None:
    _, schedule = _messages(64 << 10, 1, version)
    senders = [item for item in schedule.instances if item.rank == 0]
    assert [item.protocol for item in senders] == [protocol] * parts
