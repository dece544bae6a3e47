"""Laws of what CTAs pay inside a machine: flight and occupancy of a hop.

The amounts are derived by hand, not from an earlier run.
"""

from __future__ import annotations

from dataclasses import replace

import clusim
from clusim.fabric import Fabric
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
    slower = replace(ll, fixed_ps=ll.fixed_ps + added_ps)
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
