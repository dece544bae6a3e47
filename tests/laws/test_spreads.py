"""Shares of bandwidth by routing, against published results and bounds derived by hand.

Shares are payload delivered until a time at which no message can be complete.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import clusim
from clusim.base.errors import InputError
from clusim.collectives import ScheduleBuilder
from clusim.engine.simulation import Simulation
from clusim.simulation.traffic import Traffic
from clusim.simulation.traffic_image import to_image
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric
from support.covering import THOROUGH

MIB = 1 << 20


@cache
def _leaf_spine() -> Fabric:
    """16 leaves of 16 hosts, 16 spines, 400 Gb/s."""
    net = clusim.FabricBuilder("leaf-spine")
    for leaf in range(16):
        net.host(f"host{leaf * 16}..{leaf * 16 + 15}")
    net.switch("leaf0..15")
    net.switch("spine0..15")
    for leaf in range(16):
        net.link(f"host{leaf * 16}..{leaf * 16 + 15}", f"leaf{leaf}", type="ib-ndr")
        net.link(f"leaf{leaf}", "spine0..15", type="ib-ndr")
    return net.build()


def _shares(fabric: Fabric, traffic: Traffic) -> np.ndarray:
    """Return each receiver's share of its wire while all messages of a permutation are in flight, sorted."""
    arrays = arrays_of(fabric)
    image = to_image(fabric, traffic, traffic.plan(arrays))
    into = np.flatnonzero(np.isin(image.wires["dst"], image.endpoints["node"]))
    wire = image.wires[into[0]]
    rate = int(wire["rate_num"]) / int(wire["rate_den"])
    end_ps = int(traffic.message_bytes / rate)
    sim = Simulation(image)
    sim.run(until_ps=end_ps // 4)
    before = sim.wires()[into]
    sim.run(until_ps=end_ps)
    after = sim.wires()[into]
    assert (sim.message_times() == -1).all()
    # Headers count: the line rate includes them.
    return np.sort((after["bytes"] - before["bytes"]) / (rate * (end_ps - end_ps // 4)))


def _paths(fabric: Fabric, traffic: Traffic) -> list[list[int]]:
    """Return the wires of each message of one path, followed by its route key (contract, section 6)."""
    arrays = arrays_of(fabric)
    image = to_image(fabric, traffic, traffic.plan(arrays))
    result = []
    for source in image.sources:
        for message in image.messages[source["msg_lo"] : source["msg_hi"]]:
            node, key, wires = (
                int(image.endpoints["node"][source["endpoint"]]),
                int(message["key"]),
                [],
            )
            while node != int(image.targets["node"][message["dst"]]):
                group = arrays.group(node, int(message["dst"]))
                ordinal = int(image.wires["ordinal"][wires[-1]]) if wires else 0
                wires.append(group[(key + ordinal) % len(group)])
                key = key // len(group) if len(group) > 1 else key
                node = int(image.wires["dst"][wires[-1]])
            result.append(wires)
    return result


def _water_filling(paths: list[list[int]]) -> np.ndarray:
    """Return max-min fair rates of flows on wires of rate 1, sorted."""
    rates = np.full(len(paths), np.nan)
    left: dict[int, float] = {wire: 1.0 for wires in paths for wire in wires}
    while np.isnan(rates).any():
        open_on = {wire: 0 for wire in left}
        for flow in np.flatnonzero(np.isnan(rates)):
            for wire in paths[flow]:
                open_on[wire] += 1
        shares = {wire: left[wire] / count for wire, count in open_on.items() if count}
        wire = min(shares, key=lambda item: shares[item])
        for flow in np.flatnonzero(np.isnan(rates)):
            if wire in paths[flow]:
                rates[flow] = shares[wire]
                for other in paths[flow]:
                    left[other] -= shares[wire]
    return np.sort(rates)


def test_a_permutation_of_432_hosts_has_the_rates_of_ndp() -> None:
    """Handley et al., "Re-architecting datacenter networks and stacks" (SIGCOMM 2017), Fig. 14: fat tree, k = 12.

    Mean share of 10 Gb/s: 0.467 by DCTCP on one path, 0.925 by packet spraying.
    """
    fabric = clusim.load("fat-tree:k=12,rate=1.25GB/s")
    one = [Traffic("permutation", 2 * MIB, 8936, routing="ecmp", seed=seed) for seed in range(2)]
    shares = np.array([_shares(fabric, traffic) for traffic in one])
    ideal = np.array([_water_filling(_paths(fabric, traffic)) for traffic in one])
    assert shares.mean() == pytest.approx(0.467, rel=0.12)
    assert shares.mean() == pytest.approx(ideal.mean(), rel=0.1)
    for quantile in (0.25, 0.5, 0.75):  # the steps of the sorted curve at 1/4, 1/3 and 1/2
        found, expected = (np.quantile(values, quantile) for values in (shares, ideal))
        assert found == pytest.approx(expected, rel=0.12)
    sprayed = _shares(fabric, Traffic("permutation", 2 * MIB, 8936, routing="spray"))
    by_credit = _shares(fabric, Traffic("permutation", 2 * MIB, 8936, routing="credit"))
    assert sprayed.mean() >= 0.98  # the bisection, within 2%
    assert by_credit.mean() >= 0.92


def test_a_thousand_flows_on_16_links_are_as_uneven_as_published() -> None:
    """Gangidi et al. (SIGCOMM 2024): the busiest of 16 links has more than 1.2 times the mean; balls in bins 1.229."""
    net = clusim.FabricBuilder("two-leaves")
    net.host("a0..31")
    net.host("b0..31")
    net.switch("leaf0..1")
    net.switch("spine0..15")
    for leaf, hosts in enumerate(("a0..31", "b0..31")):
        net.link(hosts, f"leaf{leaf}", type="ib-ndr")
        net.link(f"leaf{leaf}", "spine0..15", type="ib-ndr")
    fabric = net.build()
    ratios = []
    for seed in range(20):
        ways = _paths(fabric, Traffic("alltoall", 4096, 4096, routing="ecmp", seed=seed))
        first = [wires[1] for wires in ways if len(wires) == 4]  # 1,024 flows up from each leaf
        counts = np.unique(first, return_counts=True)[1].reshape(2, 16)
        ratios += (counts.max(axis=1) / counts.mean(axis=1)).tolist()
    assert 1.20 <= np.mean(ratios) <= 1.26


def test_one_path_gives_half_of_a_full_bisection_and_spraying_all_of_it() -> None:
    """Spectrum-X on Colossus: 60% and 95% of 400 Gb/s; the configuration is not published."""
    shares = {
        routing: float(
            _shares(_leaf_spine(), Traffic("permutation", MIB, 4096, routing=routing)).mean()
        )
        for routing in ("ecmp", "spray", "adaptive", "credit")
    }
    assert 0.48 <= shares["ecmp"] <= 0.65
    assert shares["spray"] >= 0.98  # the bisection, within 2%
    assert min(shares["adaptive"], shares["credit"]) >= 0.93


def test_eight_rings_at_once_gain_on_rails_what_hpn_published() -> None:
    """Qian et al. (SIGCOMM 2024), 9.2: up to 2.58 times as fast without collisions of hashes."""
    text = "name: joined\ncluster: {{node: hgx-h20, nodes: 8, network: {{kind: {}}}}}\n"

    def busbw(kind: str, seed: int) -> float:
        fabric = clusim.topology.loads(text.format(kind))
        rings = ScheduleBuilder(fabric, "rings")
        for gpu in range(8):
            ranks = list(range(gpu, 64, 8))
            rings.collective(
                "allreduce", 8 * MIB, stream=f"{gpu}", ranks=ranks, algorithm="ring", channels=1
            )
        return 1 / clusim.simulate(fabric, rings.build(), granularity="quick", seed=seed).time_ps

    rail = busbw("rail", 0)
    gains = [rail / busbw("fat-tree, unit: 2", seed) for seed in range(6 if THOROUGH else 3)]
    assert 1.5 <= np.mean(gains) <= 3


def test_detours_of_a_dragonfly_share_the_links_of_all_groups() -> None:
    """All endpoints of a group send to the next one: the only link between the two carries all, or a detour some.

    With 4 global links per group at most half of the packets can use each link twice: at most twice as fast.
    """
    times = {
        routing: clusim.traffic(
            "dragonfly:a=4,h=1,p=2", "stride", "256KiB", span=8, routing=routing
        ).time_ps
        for routing in ("adaptive", "ugal")
    }
    assert 1.4 <= times["adaptive"] / times["ugal"] <= 2.25


@pytest.mark.parametrize("routing", ["spray", "credit"])
def test_a_reorder_buffer_restores_the_rate_that_going_back_loses(routing: str) -> None:
    given = {"routing": routing, "packet": 4096}
    free, kept, back = (
        clusim.traffic("fat-tree:k=4", "permutation", "256KiB", **given, **order).time_ps
        for order in ({}, {"reorder": "256KiB"}, {"reorder": 0})
    )
    assert kept <= 1.02 * free
    assert back >= 1.3 * free


def test_messages_back_to_back_cost_the_order_of_one_message() -> None:
    """Numbers of packets continue over the messages of a queue pair, each of which begins on the first path."""
    fabric, outcomes = clusim.load("fat-tree:k=4"), set()
    arrays = arrays_of(fabric)
    for parts in (1, 2, 8):
        traffic = Traffic("permutation", MIB // 4, 4096, routing="spray", reorder=0)
        image = to_image(fabric, traffic, traffic.plan(arrays))
        messages, sources = np.repeat(image.messages, parts), image.sources.copy()
        messages["bytes"] //= parts
        sources["msg_lo"] *= parts
        sources["msg_hi"] *= parts
        sim = Simulation(replace(image, messages=messages, sources=sources))
        sim.run()
        outcomes.add((sim.now_ps, int(sim.orders()["repeats"].sum())))
    assert len(outcomes) == 1
    assert min(outcomes)[1] > 0


def test_one_path_arrives_in_order() -> None:
    times = [
        clusim.traffic("fat-tree:k=4", message="64KiB", routing="ecmp", reorder=size).time_ps
        for size in (None, 0)
    ]
    assert times[0] == times[1]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"routing": "flowlet"}, "routing flowlet: needs a gap"),
        ({"routing": "ecmp", "gap_ps": 1}, "routing ecmp: is without a gap"),
        ({"routing": "flowlet", "gap_ps": 0}, "gap 0: must be above 0"),
        ({"reorder": -1}, "reorder buffer -1: must be 0 to 1 TiB"),
    ],
)
def test_options_of_spreads_are_checked(fields: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Traffic("permutation", MIB, 4096, **fields)
