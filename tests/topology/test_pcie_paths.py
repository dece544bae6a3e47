"""ACS sends peers of a PCIe switch through the root complex; NICs can be at a root complex."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clusim import collective, load, traffic
from clusim.base.errors import InputError
from clusim.lowering import parse_faults
from clusim.lowering.faults import on_redirected
from clusim.topology import Fabric
from clusim.topology.arrays import FabricArrays, arrays_of
from clusim.topology.pcie_paths import (
    acs_on,
    down_name,
    downward_wires,
    redirect_peers,
    rooted_nics,
)
from clusim.topology.rails import PathType, Rails, path_type
from clusim.topology.save import to_yaml


@pytest.fixture(scope="module")
def node() -> Fabric:
    return load("hgx-h100-ndr")


def names(arrays: FabricArrays, wires: list[int]) -> list[str]:
    nodes = arrays.fabric.nodes
    ends = [int(arrays.wires["src"][wires[0]]), *arrays.wires["dst"][wires].tolist()]
    return [nodes[end].name for end in ends]


def nic_target(arrays: FabricArrays, name: str) -> int:
    nodes = arrays.targets["node"].tolist()
    return nodes.index(arrays.fabric.node_index[name])


def test_peers_of_a_switch_pass_the_root_complex_and_hosts_do_not_turn(node: Fabric) -> None:
    arrays = arrays_of(redirect_peers(acs_on(node)))
    way = arrays.steps(arrays.node_of(0), (nic_target(arrays, "nic0"),))
    assert names(arrays, way) == ["gpu0", "pcie0", "cpu0", down_name("pcie0"), "nic0"]
    to_memory = arrays.steps(arrays.node_of(0), (arrays.memory_of(0),))
    assert names(arrays, to_memory) == ["gpu0", "pcie0", "cpu0", "mem0"]
    before = arrays_of(node)
    way = before.steps(before.node_of(0), (nic_target(before, "nic0"),))
    assert names(before, way) == ["gpu0", "pcie0", "nic0"]


@pytest.mark.parametrize("name", ["hgx-h100-ndr", "hgx-a100-hdr4", "a100-pcie-x8", "l40s-x8"])
def test_path_classes_are_those_of_the_original(name: str) -> None:
    """NCCL reads the tree of devices, in which ACS is not visible."""
    fabric = load(name)
    before, after = arrays_of(fabric), arrays_of(redirect_peers(acs_on(fabric)))
    for rank in range(fabric.num_ranks):
        assert Rails(after).nearest_rails(rank) == Rails(before).nearest_rails(rank)
        for target in before.nic_targets.tolist():
            ways = [one.steps(one.node_of(rank), (target,)) for one in (before, after)]
            kinds = [path_type(one, way) for one, way in zip((before, after), ways, strict=True)]
            assert kinds[0] == kinds[1]
            assert len(ways[1]) >= len(ways[0])


def test_wires_of_the_original_keep_their_ids(node: Fabric) -> None:
    before, after = arrays_of(node), arrays_of(redirect_peers(acs_on(node)))
    for field in ("src", "dst", "rate_num", "rate_den", "reverse"):
        assert np.array_equal(after.wires[field][: len(before.wires)], before.wires[field])
    replaced = downward_wires(acs_on(node))
    pcie = sum(link.count for link in node.links if link.cls == "pcie")
    assert len(replaced) == len(set(replaced.values())) == pcie
    halves = {down_name(item.name): item.name for item in node.nodes}
    for old, new in replaced.items():
        ends = [names(arrays, [wire]) for arrays, wire in ((before, old), (after, new))]
        assert ends[0] == [halves.get(name, name) for name in ends[1]]


def test_a_fault_of_a_downward_wire_hits_its_replacement(node: Fabric) -> None:
    fabric = acs_on(node)
    faults = parse_faults(fabric, ["lanes gpu3:pcie 1/2"])
    after = arrays_of(redirect_peers(fabric))
    moved = [int(item.wire) for item in on_redirected(fabric, faults) if item.wire is not None]
    assert [names(after, [wire]) for wire in moved] == [
        ["gpu3", "pcie3"],
        [down_name("pcie3"), "gpu3"],
    ]
    assert on_redirected(node, faults) is faults


def test_the_uplink_carries_peer_data_twice() -> None:
    """Ring over one NIC per GPU: two flows in each direction of an uplink where there was none."""
    times = {}
    for acs in (False, True):
        fabric = replace(load("hgx-h100-ndr", nodes=2), acs=acs)
        options = {"algorithm": "ring", "channels": 8, "granularity": "coarse"}
        result = collective(fabric, "allreduce", "64MiB", ranks=(0, 8), **options)
        times[acs] = result.time_ps
        loads = dict(
            zip(result.wires.names, result.wires.counters["payload"].tolist(), strict=True)
        )
        up, down = loads["n0/pcie0->n0/cpu0.0"], loads.get("n0/cpu0->n0/pcie0.down.0", 0)
        # Two ranks: an all-reduce sends its size once and receives it once.
        assert up == down == (2 * 64 << 20 if acs else 0)
    assert times[True] > 1.4 * times[False]


def test_acs_needs_a_pcie_switch_and_is_saved(node: Fabric) -> None:
    with pytest.raises(InputError, match="acs on: rtx4090x8-pcie lacks PCIe switches"):
        acs_on(load("rtx4090x8-pcie"))
    assert "acs: true" in to_yaml(acs_on(node))
    assert redirect_peers(node) is node


def test_nics_move_to_a_root_complex(node: Fabric) -> None:
    for remote, cpu in ((False, "cpu0"), (True, "cpu1")):
        arrays = arrays_of(rooted_nics(node, remote=remote))
        way = arrays.steps(arrays.node_of(0), (nic_target(arrays, "nic0"),))
        passed = ["gpu0", "pcie0", "cpu0", *(["cpu1"] if remote else []), "nic0"]
        assert names(arrays, way) == passed
        kind = PathType.SYS if remote else PathType.PHB
        assert (cpu in passed, path_type(arrays, way)) == (True, kind)
    with pytest.raises(InputError, match="nics rooted: no NIC of rtx4090x8-pcie would move"):
        rooted_nics(load("rtx4090x8-pcie"), remote=False)
    with pytest.raises(InputError, match="nics remote: no NIC of a100-pcie-nvlink-pair would move"):
        rooted_nics(load("a100-pcie-nvlink-pair"), remote=True)


def test_data_to_a_nic_and_from_it_have_separate_credits_with_acs() -> None:
    """As completions and posted writes: both pass the same uplinks, and one may not wait for the other."""
    arrays = arrays_of(redirect_peers(acs_on(load("hgx-a100-hdr4", nodes=2))))
    kinds = [node.kind for node in arrays.fabric.nodes]
    wires = arrays.wires
    into = [
        kinds[src] == "nic" and kinds[dst] != "nic" for src, dst in wires[["src", "dst"]].tolist()
    ]
    within = arrays.nodes["zone"][wires["src"]] == arrays.nodes["zone"][wires["dst"]]
    from_nics = np.array(into) & within
    starts = [int(arrays.targets["node"][nic]) for nic in arrays.nic_targets[:4].tolist()]
    ends = [int(arrays.rank_endpoint[rank]) for rank in range(8)]
    routed = {wire for start in starts for end in ends for wire in arrays.steps(start, (end,))}
    used = [wire for wire in np.flatnonzero(from_nics).tolist() if wire in routed]
    assert len(used) == 4
    assert wires["dateline"][used].all()
    assert not wires["dateline"][~from_nics].any()
    assert arrays.fabric.num_vcs >= 2


def test_traffic_passes_an_uplink_twice_with_acs() -> None:
    """Each GPU sends 1 MiB to the other node and receives as much: 2 MiB on its NIC's uplink instead of 1 MiB."""
    fabric = load("hgx-h100-ndr", nodes=2)
    times = [traffic(item, "stride", "1MiB", span=8).time_ps for item in (fabric, acs_on(fabric))]
    assert times[1] > 1.7 * times[0]
