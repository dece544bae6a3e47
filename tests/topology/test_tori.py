"""Tori and meshes: dimensions, datelines, freedom from deadlock, twisted tori, and all-to-all at the wires' rate."""

from __future__ import annotations

import random
import re
from itertools import pairwise

import networkx as nx
import pytest

import clusim
from clusim.base.errors import DeadlockError, TopologyError
from clusim.simulation.traffic import Traffic
from clusim.simulation.traffic_image import to_image
from clusim.topology import Fabric, FabricBuilder, check, generate
from clusim.topology.arrays import arrays_of
from clusim.topology.deadlock import dependency_cycle
from support.engines import maker
from support.tori import random_torus

CASES = 12


def ring(count: int, **keys: object) -> Fabric:
    """Return a ring of a user: without datelines."""
    net = FabricBuilder("ring", **keys)
    for i in range(count):
        net.host(f"h{i}")
        net.switch(f"s{i}", switch="generic")
        net.link(f"h{i}", f"s{i}", type="ib-ndr")
    for i in range(count):
        net.link(f"s{i}", f"s{(i + 1) % count}", type="ib-ndr", buffer="9KiB")
    return net.build()


def test_shortest_paths_around_a_ring_deadlock_and_the_check_names_the_buffers() -> None:
    net = ring(7, routing="shortest")
    (found,) = [item.what for item in check(net) if "can deadlock" in item.what]
    assert "buffers wait in a circle" in found
    assert re.search(r"s1->s2\S* \(VC 0\)|s3->s4\S* \(VC 0\)|s4->s3\S* \(VC 0\)", found)
    with pytest.raises(DeadlockError):
        clusim.traffic(net, "stride", "256KiB", packet=4096, span=3)


@pytest.mark.parametrize("count", [3, 4, 5, 6, 9])
def test_a_dateline_in_every_ring_frees_it_of_deadlock(count: int) -> None:
    net = ring(count, routing="dimension-order")
    assert any(item.what.startswith("routes cannot deadlock") for item in check(net))
    assert sum(any(link.dateline) for link in net.links) == (count != 4)
    result = clusim.traffic(net, "alltoall", "64KiB", packet=4096)
    assert result.complete


def test_one_virtual_channel_is_too_few_for_a_ring() -> None:
    """A dateline moves packets to the next virtual channel; without one, rings stay circles."""
    cycle = dependency_cycle(arrays_of(generate("ring:6,vcs=1")))
    arrays = arrays_of(generate("ring:6,vcs=1"))
    ends = [(int(arrays.wires["src"][w]), int(arrays.wires["dst"][w])) for w, _ in cycle]
    assert len(cycle) == 6
    assert all(one[1] == two[0] for one, two in pairwise([*ends, ends[0]]))
    assert {vc for _, vc in cycle} == {0}


def test_links_that_form_no_torus_need_dimensions() -> None:
    net = FabricBuilder("odd", routing="dimension-order")
    net.host("h0..3")
    net.switch("s0..3", switch="generic")
    net.link("h0..3", "s0..3", type="ib-ndr", pair="zip")
    net.link("s0", "s1..3", type="ib-ndr")
    with pytest.raises(TopologyError, match="around s0 they do not form a mesh or torus; set dim"):
        net.build()


@pytest.mark.parametrize("seed", range(CASES))
def test_random_tori_are_free_of_deadlock(seed: int) -> None:
    """All-to-all with buffers of one to eight packets, on tori of a user."""
    rng = random.Random(seed)
    net, words = random_torus(rng, most=30)
    assert dependency_cycle(arrays_of(net)) == [], words
    result = clusim.traffic(net, "alltoall", "8KiB", packet=4096, routing="spray")
    assert result.complete, words


@pytest.mark.parametrize("seed", range(4))
def test_both_engines_agree_on_random_tori(seed: int) -> None:
    rng = random.Random(100 + seed)
    net, words = random_torus(rng, most=16)
    traffic = Traffic("alltoall", 8192, 4096, routing=rng.choice(["ecmp", "spray", "adaptive"]))
    image = to_image(net, traffic, traffic.plan(arrays_of(net)))
    prints = {}
    for name in ("reference", "c", "windows", "threads"):
        simulation = maker(name)(image)
        simulation.run()
        prints[name] = (simulation.now_ps, simulation.fingerprint())
    assert len(set(prints.values())) == 1, (words, prints)


@pytest.mark.parametrize("shape", ["4x4x8", "2x6", "4x8x8", "3x4"])
def test_a_twisted_torus_routes_on_shortest_paths_in_dimension_order(shape: str) -> None:
    net = generate(f"torus:{shape},twist=yes")
    arrays = arrays_of(net)
    graph: nx.Graph[str] = nx.Graph((link.a, link.b) for link in net.links)
    for a in range(0, net.num_ranks, 5):
        lengths = nx.single_source_shortest_path_length(graph, net.ranks[a])
        for b in range(net.num_ranks):
            if a != b:
                path = arrays.path(a, b)
                dims = [int(arrays.wires["dim"][wire]) for wire in path[1:-1]]
                assert len(path) == lengths[net.ranks[b]]
                assert dims == sorted(dims)
    if net.num_ranks <= 128:
        assert dependency_cycle(arrays) == []


def test_wrap_around_links_of_a_twisted_torus_are_shifted_by_half_of_the_longest() -> None:
    links = {(link.a, link.b) for link in generate("torus:4x8,twist=yes").links}
    assert ("router3.1", "router0.5") in links
    assert ("router3.6", "router0.2") in links
    assert ("router1.7", "router1.0") in links


def test_default_buffers_hold_a_credit_loop_for_every_output() -> None:
    """50 GB/s for 2 x 500 ns and 1 ps of switch, and 2 packets of 4160 B: 15 packets; 2n outputs."""
    assert generate("torus:4x4x8").links[-1].buffer_bytes == 15 * 4160 * 6
    assert generate("mesh:8x8,latency=1us").links[-1].buffer_bytes == (25 + 2) * 4160 * 4
    assert generate("torus:8x8,buffer=64KiB").links[-1].buffer_bytes == 64 << 10


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ("torus:4x4x8", 16),
        ("torus:8x8", 64),
        ("torus:16x4", 64),
        ("torus:16", 64),
        ("mesh:8x8", 64),
    ],
)
def test_an_all_to_all_takes_the_time_of_the_busiest_wire(spec: str, size: int) -> None:
    """Within 10 %: wires between routers limit it, and hosts are faster.

    Of torus:4x4x8: 128 messages of mean distance 2 over two wires of the longest dimension, 4 packets of 4160 B each.
    """
    result = clusim.traffic(spec, "alltoall", f"{size}KiB", packet=4096, routing="spray")
    busiest_ps = int(result.wires.counters["busy_ps"].max())
    assert result.time_ps <= 1.1 * busiest_ps
    if spec == "torus:4x4x8":
        assert busiest_ps == pytest.approx(128 * 4 * 4160 * 20, rel=0.02)


def test_twisting_speeds_an_all_to_all_up_as_published() -> None:
    """TPU v4, 4x4x8: 1.63 (Jouppi et al., ISCA 2023, Fig. 6), within 6 %, with the buffers of the default."""
    times_ps = [
        clusim.traffic(f"torus:4x4x8{twist}", "alltoall", "32KiB", packet=4096).time_ps
        for twist in ("", ",twist=yes")
    ]
    assert times_ps[0] / times_ps[1] == pytest.approx(1.63, rel=0.06)
