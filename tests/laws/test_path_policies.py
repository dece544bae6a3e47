"""Paths by senders: the route key of a path by hand, and the rules of PLB and REPS."""

from __future__ import annotations

from typing import Any

import pytest

import clusim
from clusim.engine.abi import Stop
from clusim.engine.reference.specs import hash32
from clusim.engine.simulation import Simulation
from clusim.policies.choice import BoundSender, Sender, find_policy
from clusim.simulation.flows import Flow
from support import sender_policies
from support.images import ImageBuilder

PACKET_BYTES = 4096


@pytest.mark.parametrize("path", range(9))
def test_a_path_draws_one_of_two_links_by_hand(path: int) -> None:
    """Two parallel links between switches: half of `hash32(seed, key, path)` is the route key; of path 0, the key."""
    builder, key = ImageBuilder(seed=5), 6
    near, far = builder.switch(), builder.switch()
    first, second = builder.endpoint(), builder.endpoint()
    builder.link(first, near)
    links = [builder.link(near, far), builder.link(near, far)]
    builder.link(far, second)
    row = builder.control(Sender(f"{sender_policies.PLACE}:Fixed", (("chosen", path),)))
    builder.source(first, [(0, 2000, second)], policy="pinned", key=key, control=row)
    image = builder.build()
    sim = Simulation(image)
    assert sim.run() == Stop.DONE
    route_key = hash32(5, int(image.messages["key"][0]), path) // 2 if path else key
    assert int(image.messages["key"][0]) == key
    payload = sim.wires()["payload"]
    assert [int(payload[link]) for link in links] == [
        2000 * (route_key % 2 == number) for number in range(2)
    ]


def _flow(name: str) -> Any:
    """Return a flow of a policy that has a window of 8 packets."""
    of = find_policy(name)
    flow = of.cls()
    rates = (("line_rate", 53_687_091), ("min_rate", 53_687))
    for word, value in zip(of.fields, BoundSender(Sender(name), rates).record, strict=True):
        setattr(flow, word, list(value) if isinstance(value, tuple) else value)
    flow.key = 12345
    flow.window = flow.in_flight = 8 * PACKET_BYTES
    return flow


def _rounds(flow: Any, count: int, marked_of_8: int) -> None:
    """Let rounds pass in which so many of 8 packets are marked, and a window is acknowledged."""
    for _ in range(count):
        flow.window = flow.round_bytes = 8 * PACKET_BYTES
        for number in range(8):
            flow.acked(0, PACKET_BYTES, 10**7, int(number < marked_of_8))


def test_plb_moves_after_12_congested_rounds_in_a_row() -> None:
    flow = _flow("plb")
    _rounds(flow, 11, 4)
    assert flow.path == 0
    _rounds(flow, 1, 3)  # less than half: counted anew
    _rounds(flow, 11, 8)
    assert flow.path == 0
    _rounds(flow, 1, 8)
    assert flow.path > 0
    before = flow.path
    _rounds(flow, 12, 8)
    assert flow.path not in (0, before)


def test_plb_moves_an_idle_flow_after_3_congested_rounds() -> None:
    flow = _flow("plb")
    flow.in_flight = 0
    _rounds(flow, 2, 8)
    assert flow.path == 0
    _rounds(flow, 1, 8)
    assert flow.path > 0


def test_reps_uses_paths_without_marks_again_the_oldest_first() -> None:
    flow = _flow("reps")
    flow.start(0)
    for path, marked in ((11, 0), (12, 1), (13, 0)):
        flow.acked(0, PACKET_BYTES, 10**7, marked, path)
    paths = []
    for _ in range(4):
        flow.sent(0, PACKET_BYTES)
        paths.append(flow.path)
    assert paths[:2] == [11, 13]
    assert not set(paths[2:]) & {11, 12, 13}
    assert len(set(paths)) == 4


def test_reps_keeps_the_newest_8_paths() -> None:
    flow = _flow("reps")
    for path in range(101, 111):
        flow.acked(0, PACKET_BYTES, 10**7, 0, path)
    paths = []
    for _ in range(8):
        flow.sent(0, PACKET_BYTES)
        paths.append(flow.path)
    assert paths == [*range(103, 111)]


def test_reps_fills_the_links_on_which_hashed_flows_collide() -> None:
    """Four flows from one leaf to another over four uplinks: ECMP puts two on one link, REPS comes close to spray."""
    fabric = clusim.load("fat-tree:node=dgx-spark,nodes=8,unit=4,oversubscription=1")
    flows = [Flow(rank, rank + 4, 4 << 20) for rank in range(4)]
    times_ps = {}
    for policy, routing in (("dctcp", "ecmp"), ("reps", "ecmp"), ("none", "spray")):
        options = {"policy": f"sender={policy}", "routing": routing, "granularity": "packet"}
        times_ps[policy] = clusim.traffic(fabric, flows=flows, **options).time_ps
    assert times_ps["reps"] < 0.6 * times_ps["dctcp"]
    assert times_ps["reps"] < 1.02 * times_ps["none"]
