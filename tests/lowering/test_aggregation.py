"""Aggregation trees over the switches between machines, and what they compute."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import clusim
from clusim.base.errors import InputError, ScheduleError
from clusim.collectives import build
from clusim.engine.abi import NONE
from clusim.engine.image import Image
from clusim.lowering import lower
from clusim.topology import Fabric, load
from clusim.topology.arrays import arrays_of
from support.machines import cluster_of, pcie_machine

KIB = 1024


@cache
def pod(nodes: int = 2) -> Fabric:
    """Return DGX H100 joined by rails of InfiniBand switches."""
    return load("dgx-h100", nodes=nodes)


def small(tmp_path: Path, nodes: int = 3, spines: int = 0) -> Fabric:
    """Return machines of one GPU whose switches reduce; with `spines` every machine has a leaf of its own."""
    fabric = cluster_of(pcie_machine(gpus=1), tmp_path, nodes)
    if not spines:
        return fabric
    leaf = next(node for node in fabric.nodes if node.zone < 0)
    tops = [replace(leaf, name=f"spine{i}", tier="spine") for i in range(spines)]
    leaves = [replace(leaf, name=f"leaf{i}") for i in range(nodes)]
    links = []
    for link in fabric.links:
        if leaf.name in (link.a, link.b):
            name = f"leaf{(link.a + link.b).split('/')[0][-1]}"
            name = f"leaf{next(i for i in range(nodes) if f'n{i}/' in link.a + link.b)}"
            link = replace(link, **{"a" if link.a == leaf.name else "b": name})
            links += [replace(link, a=name, b=top.name) for top in tops]
        links.append(link)
    nodes_ = [node for node in fabric.nodes if node is not leaf]
    return replace(fabric, nodes=(*nodes_, *leaves, *tops), links=tuple(links))


def walk(fabric: Fabric, image: Image, path: int) -> list[str]:
    """Return the names of the nodes on an explicit path."""
    wires = image.path_wires[image.path_off[path] : image.path_off[path + 1]].tolist()
    nodes = [int(image.wires["src"][wires[0]]), *(int(image.wires["dst"][w]) for w in wires)]
    for before, after in pairwise(wires):
        assert image.wires["dst"][before] == image.wires["src"][after]
    return [fabric.nodes[node].name for node in nodes]


def test_one_leaf_is_the_root(tmp_path: Path) -> None:
    fabric = small(tmp_path)
    image = lower(fabric, build(fabric, "allreduce", "sharp", 64 * KIB, channels=1)).image
    root, *members = image.vertices
    assert (root["parent"], root["child_lo"], root["child_hi"]) == (NONE, 1, 4)
    assert [int(row["endpoint"]) for row in members] == arrays_of(fabric).rank_endpoint.tolist()
    up = walk(fabric, image, int(members[1]["path_up"]))
    assert up[0] == "n1/gpu0"
    assert up[-2] == "n1/nic0"
    assert walk(fabric, image, int(members[1]["path_down"])) == up[::-1]
    rows = image.conns[image.conns["kind"] == 4]
    assert rows["vertex"].tolist() == [1, 2, 3]
    assert len(set(rows["packet_bytes"])) == len(set(rows["burst"])) == 1


def test_leaves_meet_at_spines_and_groups_take_turns(tmp_path: Path) -> None:
    fabric = small(tmp_path, spines=2)
    image = lower(fabric, build(fabric, "allreduce", "sharp", 64 * KIB, channels=4)).image
    roots = image.vertices[image.vertices["parent"] == NONE]
    units = {int(unit): fabric.nodes[int(image.units["node"][unit])].name for unit in roots["unit"]}
    assert [units[int(unit)] for unit in roots["unit"]] == ["spine0", "spine1"] * 2
    for root in roots:
        leaves = image.vertices[int(root["child_lo"]) : int(root["child_hi"])]
        assert len(leaves) == 3
        for leaf in leaves:
            assert walk(fabric, image, int(leaf["path_up"]))[-1] == units[int(root["unit"])]
            (member,) = image.vertices[int(leaf["child_lo"]) : int(leaf["child_hi"])]
            assert member["endpoint"] != NONE


def test_every_gpu_is_the_head_of_its_own_rail() -> None:
    fabric = pod()
    image = lower(fabric, build(fabric, "allreduce", "sharp", 1 << 20, channels=2)).image
    members = image.vertices[image.vertices["endpoint"] != NONE]
    assert len(members) == 2 * 8 * 2
    for row in members:
        way = walk(fabric, image, int(row["path_up"]))
        assert way[0].replace("gpu", "nic") == way[-2]
        assert way[-1] == f"leaf0.{way[0][-1]}"


@pytest.mark.parametrize(
    ("size", "dtype"), [(4, "float32"), (99_998, "float16"), (300_000, "int64"), (777_777, "uint8")]
)
def test_the_switches_compute_what_they_should(size: int, dtype: str) -> None:
    schedule = build(pod(), "allreduce", "sharp", size, channels=2, dtype=dtype)
    result = clusim.simulate(pod(), schedule, verify=True)
    assert result.verified, result.verify_note


def test_machines_without_reducing_switches_exchange_directly(tmp_path: Path) -> None:
    fabric = cluster_of(pcie_machine(gpus=2, nvlink=True), tmp_path, 3)
    for redop in ("sum", "max", "avg"):
        schedule = build(fabric, "allreduce", "sharp", 200_004, channels=3, redop=redop)
        assert clusim.simulate(fabric, schedule, verify=True).verified
    assert not any(connection.kind == "multimem" for connection in schedule.connections)


def test_trees_of_several_levels_reduce(tmp_path: Path) -> None:
    fabric = small(tmp_path, nodes=4, spines=2)
    schedule = build(fabric, "allreduce", "sharp", 500_000, channels=2)
    result = clusim.simulate(fabric, schedule, verify=True)
    assert result.verified
    spine = [i for i, name in enumerate(result.wires.names) if "->spine" in name]
    assert result.wires.counters["payload"][spine].sum() == 4 * 500_000


def test_both_engines_agree_on_trees(tmp_path: Path) -> None:
    fabric = small(tmp_path, nodes=3, spines=2)
    schedule = build(fabric, "allreduce", "sharp", 40_000, channels=2)
    results = [clusim.simulate(fabric, schedule, engine=engine) for engine in ("c", "reference")]
    assert results[0].fingerprint == results[1].fingerprint


def test_every_nic_carries_its_share_once() -> None:
    size = 8 << 20
    payload = {}
    for algorithm in ("ring", "sharp"):
        schedule = build(pod(), "allreduce", algorithm, size)
        result = clusim.simulate(pod(), schedule, granularity=4096)
        rows = [i for i, name in enumerate(result.wires.classes) if name == "infiniband nic->leaf"]
        payload[algorithm] = result.wires.counters["payload"][rows].astype(np.int64)
    assert payload["sharp"].tolist() == [size // 8] * 16
    assert payload["ring"].sum() / payload["sharp"].sum() == pytest.approx(2 * 15 / 16, rel=0.01)


def test_few_slots_hold_the_stream_back(tmp_path: Path) -> None:
    fabric = small(tmp_path)
    times = []
    for slots in (2, 64):
        nodes = tuple(
            replace(node, unit=replace(node.unit, slots=slots)) if node.unit else node
            for node in fabric.nodes
        )
        own = replace(fabric, nodes=nodes)
        schedule = build(own, "allreduce", "sharp", 4 << 20, channels=1)
        lowered = lower(own, schedule, "packet")
        inner = lowered.image.vertices["unit"] != NONE
        assert set(lowered.image.vertices["slots"][inner]) == {slots}
        assert set(lowered.image.conns["window_bytes"][lowered.image.conns["kind"] == 4]) == {
            slots * 4096
        }
        times.append(clusim.simulate(own, schedule, granularity="packet").time_ps)
    assert times[0] > 2 * times[1]


def test_where_sharp_cannot_work_it_says_so() -> None:
    single = load("dgx-h100")
    with pytest.raises(InputError, match="all ranks are in one node"):
        build(single, "allreduce", "sharp", 1 << 20)
    ethernet = load("aws-p5", nodes=2)
    with pytest.raises(InputError, match="lacks reduction units in the switches between"):
        build(ethernet, "allreduce", "sharp", 1 << 20)
    with pytest.raises(InputError, match="1 to 2 ranks; it needs the same number"):
        build(pod(), "allreduce", "sharp", 1 << 20, ranks=(0, 1, 8))
    bare = build(16, "allreduce", "sharp", 1 << 16)
    nodes = tuple(replace(node, unit=None) if node.zone < 0 else node for node in pod().nodes)
    with pytest.raises(ScheduleError, match="lacks a reduction unit; use ring or tree"):
        lower(replace(pod(), nodes=nodes), bare)
