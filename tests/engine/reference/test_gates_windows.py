"""Gates of a host and its router, which work as one where windows allow it. Defaults as in `test_gates`."""

from __future__ import annotations

from itertools import pairwise

import pytest

from clusim.engine.simulation import Simulation
from support.gates import assert_messages_at, counters
from support.images import ImageBuilder, Place, prim

FAR_PS = 5000
ENOUGH_BYTES = 20_000  # 200 packets; in a window of a long link the host sends fewer than 70


def two_hosts(**near: int) -> tuple[ImageBuilder, Place, Place]:
    """Return two hosts at routers of their own, by links of 1 byte a ps; that between the routers has a tenth of it."""
    builder = ImageBuilder()
    hosts = builder.endpoint(), builder.endpoint()
    routers = [builder.switch(store_and_forward=True) for _ in hosts]
    for host, router in zip(hosts, routers, strict=True):
        builder.link(host, router, (1, 1), **{"latency_ps": 1, "buffer_bytes": ENOUGH_BYTES} | near)
    builder.link(*routers, latency_ps=FAR_PS)
    return builder, *hosts


def test_a_packet_passes_its_router_in_the_window_in_which_it_is_sent(engine):
    builder, a, b = two_hosts()
    builder.source(a, [(7, 99, b)])
    # 100 to the router and 1 more, 90 in it, 1000 and 5000 to the next one, which is as slow as the first.
    assert_messages_at(engine, builder, 7 + 101 + 90 + 6000 + 90 + 101 + 10)


def test_a_host_whose_router_is_full_sends_as_it_drains(engine):
    builder, a, b = two_hosts()
    builder.source(a, [(0, 400 * 99, b)])
    # The router sends packet n from 191 + 1000 n on; 1 ps behind that packet n + 200 has credit, if it is its turn.
    sim = assert_messages_at(engine, builder, 191 + 400_000 + FAR_PS + 90 + 101 + 10)
    turns = [100 * n for n in range(200)]
    for n in range(200, 400):
        turns.append(max(turns[-1] + 100, 1192 + 1000 * (n - 200)))
    stalled = sum(b - a - 100 for a, b in pairwise(turns))
    assert counters(sim, 0, "grants", "stall_credit_ps") == (400, stalled)
    assert stalled == 92 + 178 * 900


def reads(builder: ImageBuilder, a: Place, b: Place) -> None:
    index = builder.conn(a, b, kind="read")
    builder.run_alone(b, prim("recv", recv=0), conns=(index,))


@pytest.mark.parametrize(
    ("near", "what"),
    [
        ({}, "pairs"),
        ({"latency_ps": FAR_PS}, "endpoints"),  # no nearer than another router
        ({"buffer_bytes": 200}, "endpoints"),  # no two packets: never enough for a window
    ],
)
def test_a_host_near_its_router_works_as_one_with_it(near, what):
    builder, a, b = two_hosts(**near)
    builder.source(a, [(0, 99, b)])
    assert Simulation(builder.build(), windows=True).windows == what


def test_nothing_that_arrives_at_such_a_host_may_make_it_send():
    builder, a, b = two_hosts()
    reads(builder, a, b)
    assert Simulation(builder.build(), windows=True).windows != "pairs"
    builder, a, b = two_hosts()
    builder.source(a, [(0, 99, b)])
    builder.rows["formats"][0]["control_256"] = [256] * len(
        builder.rows["formats"][0]["control_256"]
    )
    assert Simulation(builder.build(), windows=True).windows != "pairs"
