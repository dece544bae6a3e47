"""Laws of paths per packet in collectives: bounds of the uplinks, and the price of receivers in order."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.base.errors import InputError, TopologyError
from clusim.engine.abi import Stop
from clusim.engine.simulation import Simulation
from clusim.lowering.spreads import reroute
from clusim.results.result import Result
from clusim.results.resultjson import in_order_text
from clusim.results.trace.reader import read_result
from clusim.simulation.traffic import Traffic
from clusim.simulation.traffic_image import to_image
from clusim.topology import Fabric, load, loads
from clusim.topology.arrays import arrays_of
from clusim.topology.deadlock import check_deadlock
from clusim.topology.save import to_yaml

TAPERED = """
name: tapered
cluster:
  node: dgx-spark
  nodes: 8
  network: {{kind: fat-tree, unit: 4, oversubscription: 4}}
forwarding: {{{forwarding}}}
"""
"""Two leaves of four nodes, whose eight NICs share two uplinks."""


@cache
def tapered(forwarding: str = "") -> Fabric:
    return loads(TAPERED.format(forwarding=forwarding))


def alltoall(fabric: Fabric, **paths: Any) -> Result:
    options = {"granularity": "packet", "confirm": False, **paths}
    return clusim.collective(fabric, "alltoall", "8MiB", **options)


def uplinks_ps(result: Result) -> list[int]:
    """Return the busy time of the used uplinks of leaves [ps]."""
    busy = result.wires.counters["busy_ps"].tolist()
    names = result.wires.names
    return [
        ps
        for name, ps in zip(names, busy, strict=True)
        if name.startswith("leaf") and "->spine" in name
    ]


def test_sprayed_packets_load_all_uplinks_equally_and_need_the_time_of_one() -> None:
    """Half of the bytes of each leaf cross to the other one, over two uplinks."""
    result = alltoall(tapered(), routing="spray")
    busy = uplinks_ps(result)
    assert len(busy) == 4
    assert max(busy) <= 1.01 * sum(busy) / len(busy)
    assert max(busy) <= result.time_ps <= 1.15 * max(busy)


def test_hashes_that_collide_need_at_least_the_time_of_the_busiest_uplink() -> None:
    one, all_in_turn = (alltoall(tapered(), routing=name) for name in ("ecmp", "spray"))
    busy = uplinks_ps(one)
    assert max(busy) >= 1.1 * sum(busy) / len(busy)
    assert one.time_ps >= max(busy)
    assert one.time_ps >= 1.2 * all_in_turn.time_ps


def test_receivers_in_order_pay_for_several_paths_unless_they_keep_early_packets() -> None:
    free, kept, back = (
        alltoall(tapered(), routing="spray", reorder=order).time_ps
        for order in ("any", "256KiB", 0)
    )
    assert kept <= 1.02 * free
    assert back >= 2 * free


def test_nics_in_order_count_early_packets_and_repeats(tmp_path: Path) -> None:
    """Each early packet is kept or dropped: without a buffer all that are dropped are sent again, with one nothing."""
    trace = tmp_path / "run.h5"
    back = alltoall(tapered(), routing="spray", reorder=0, trace_out=trace)
    kept = alltoall(tapered(), routing="spray", reorder="256KiB")
    assert {row.nic for row in back.in_order} == {
        f"n{node}/nic{nic}" for node in range(8) for nic in range(2)
    }
    assert (
        sum(row.repeats for row in back.in_order) >= sum(row.early for row in back.in_order) / 2 > 0
    )
    assert {row.kept_max_bytes for row in back.in_order} == {0}
    assert all(0 < row.kept_max_bytes <= 256 << 10 for row in kept.in_order)
    assert {row.repeats for row in kept.in_order} == {0}
    assert back.to_json()["in_order"][0]["repeats"] > 0
    assert read_result(trace).in_order == back.in_order
    assert "repeated" in in_order_text(back.in_order)
    assert alltoall(tapered(), routing="spray").in_order == ()


def test_each_queue_pair_has_its_order() -> None:
    """Messages in turn are in order apart from each other; split messages send the packets of each on one path."""
    one, turns, split = (
        alltoall(tapered(pairs), routing="spray", reorder=0)
        for pairs in ("", "queues: 4", "queues: 4, split: true")
    )
    assert turns.time_ps <= 0.7 * one.time_ps
    assert sum(row.early for row in split.in_order) == 0
    assert split.time_ps == alltoall(tapered("queues: 4, split: true"), routing="spray").time_ps


def test_one_path_is_free_for_receivers_in_order() -> None:
    times = [alltoall(tapered(), routing="ecmp", reorder=order).time_ps for order in ("any", 0)]
    assert times[0] == times[1]


def test_the_topology_says_what_the_options_say() -> None:
    by_file = alltoall(tapered("choice: flowlet, gap: 2us"))
    by_option = alltoall(tapered(), routing="flowlet", gap="2us")
    assert by_file.fingerprint == by_option.fingerprint
    assert by_file.fingerprint != alltoall(tapered()).fingerprint
    fabric = tapered("choice: flowlet, gap: 2us")
    assert loads(to_yaml(fabric)).forwarding == fabric.forwarding


def test_traffic_obeys_the_topology() -> None:
    given = {"pattern": "permutation", "message": "64KiB"}
    chosen, asked = (
        clusim.traffic(fabric, routing=word, **given).fingerprint
        for fabric, word in ((tapered("choice: spray"), "auto"), (tapered(), "spray"))
    )
    assert chosen == asked


def test_in_order_nics_of_the_topology_are_in_order_in_collectives_and_traffic() -> None:
    fabric = tapered()
    in_order = tuple(
        node if node.nic is None else replace(node, nic=replace(node.nic, reorder_bytes=0))
        for node in fabric.nodes
    )
    slow = replace(fabric, nodes=in_order)
    assert alltoall(slow, routing="spray").time_ps >= 2 * alltoall(fabric, routing="spray").time_ps
    given = {"pattern": "permutation", "message": "64KiB", "routing": "spray"}
    assert clusim.traffic(slow, **given).time_ps >= 1.5 * clusim.traffic(fabric, **given).time_ps
    assert loads(to_yaml(slow)).nodes[3].nic == slow.nodes[3].nic


def test_nics_place_packets_out_of_order_from_connectx_5_on() -> None:
    """MLNX_OFED manual, out-of-order data placement; SRD (Shalev et al., IEEE Micro 2020)."""

    def kept(name: str) -> set[int | None]:
        return {node.nic.reorder_bytes for node in load(name).nodes if node.nic is not None}

    assert kept("dgx-1v") == {0}  # ConnectX-4
    assert kept("dgx-a100") == kept("aws-p5en") == {None}


def test_packets_of_a_lone_adaptive_flow_use_all_uplinks() -> None:
    """Its queues are empty: chance decides, not the number of the wire."""
    fabric = tapered("choice: adaptive")
    result = clusim.collective(fabric, "sendrecv", "1MiB", ranks=(0, 4), granularity="packet")
    busy = [ps for ps in uplinks_ps(result) if ps]
    assert len(busy) == 4
    assert max(busy) <= 1.3 * sum(busy) / len(busy)


def test_hosts_without_nics_choose_paths_as_well() -> None:
    times = {
        word: clusim.collective(
            "fat-tree:k=4", "alltoall", "1MiB", granularity="packet", routing=word
        ).time_ps
        for word in ("ecmp", "spray")
    }
    assert times["ecmp"] >= 1.3 * times["spray"]


@pytest.mark.parametrize(
    ("forwarding", "words"),
    [
        ("choice: flowlet", "choice flowlet needs a gap"),
        ("choice: spray, gap: 1us", "choice spray is without a gap"),
        ("choice: spray, paths: [{to: n0/nic0, via: [leaf0, spine0]}]", "leaves no path to pin"),
    ],
)
def test_contradicting_choices_are_errors(forwarding: str, words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        tapered(forwarding)


def test_an_order_without_nics_is_an_error() -> None:
    with pytest.raises(InputError, match="reorder 0: fat-tree:k=4 lacks NICs"):
        clusim.collective("fat-tree:k=4", "alltoall", "1MiB", reorder=0)


def test_a_choice_of_paths_without_a_network_is_an_error() -> None:
    with pytest.raises(InputError, match="routing spray: dgx-h100 lacks a network between nodes"):
        clusim.collective("dgx-h100", "allreduce", "1MiB", routing="spray")


def test_minimal_paths_of_a_torus_halve_a_transpose() -> None:
    """In dimension order a corner router turns the messages of its row; half of them may turn earlier."""
    one, every = (
        clusim.traffic("torus:8x8", "transpose", "256KiB", packet=4096, routing=word)
        for word in ("adaptive", "minimal")
    )
    assert every.time_ps <= 0.6 * one.time_ps
    assert every.time_ps <= 1.25 * every.wires.counters["busy_ps"].max()


def test_an_alltoall_on_minimal_paths_needs_the_bytes_of_the_busiest_wire() -> None:
    result = clusim.traffic("torus:4x4x8", "alltoall", "16KiB", packet=4096, routing="minimal")
    assert result.time_ps <= 1.1 * result.wires.counters["busy_ps"].max()


@pytest.mark.parametrize("seed", range(3))
def test_minimal_paths_with_the_least_buffers_end(seed: int) -> None:
    """Buffers of one packet: all packets on further channels hold credit, and the escape channels have datelines."""
    for topology in (
        "torus:5x4,buffer=4200",
        "torus:4x4x4,buffer=4200",
        "torus:2x8,twist=yes,buffer=4200",
    ):
        clusim.traffic(topology, "permutation", "64KiB", packet=4096, routing="minimal", seed=seed)


@pytest.mark.parametrize(
    ("topology", "needed"), [("torus:4x4", True), ("torus:8", True), ("mesh:4x4", False)]
)
def test_minimal_paths_of_a_torus_need_an_escape_channel_free_of_cycles(
    topology: str, needed: bool
) -> None:
    """Duato (1993): messages halfway around rings of full buffers deadlock without datelines; a mesh has no rings."""
    fabric = load(f"{topology},buffer=4200")
    traffic = Traffic("tornado", 64 << 10, 4096, routing="minimal")
    image = to_image(fabric, traffic, traffic.plan(arrays_of(fabric)))
    assert Simulation(image).run() == Stop.DONE
    wires = image.wires.copy()
    wires["dateline"] = 0
    stop = Simulation(replace(image, wires=wires)).run()
    assert stop == (Stop.DEADLOCK if needed else Stop.DONE)


def test_the_check_proves_the_escape_channels_free_of_cycles() -> None:
    fabric = reroute(load("torus:5x4"), "minimal")
    assert "escape channels cannot deadlock" in check_deadlock(arrays_of(fabric))[0].what
    undated = tuple(replace(link, dateline=(False, False)) for link in fabric.links)
    finding = check_deadlock(arrays_of(replace(fabric, links=undated)))[0]
    assert "buffers wait in a circle" in finding.what


def test_minimal_paths_need_dimensions() -> None:
    with pytest.raises(InputError, match="fat-tree:k=4 is not a torus or mesh"):
        clusim.traffic("fat-tree:k=4", "permutation", "64KiB", routing="minimal")


def test_collectives_on_tori_use_minimal_paths() -> None:
    found = {
        clusim.collective(
            "torus:4x4", "alltoall", "1MiB", granularity="packet", routing=word
        ).fingerprint
        for word in ("auto", "adaptive", "minimal")
    }
    assert len(found) == 3
