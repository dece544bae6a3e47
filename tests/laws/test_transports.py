"""Law: data take the links that NCCL's variables, and the same keys of a topology, leave them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

import clusim
from clusim import topology
from clusim.base.errors import ClusimError, ScheduleError
from clusim.results.result import Result
from clusim.topology.split import by_host, by_peers

A, B = "allreduce", "alltoall"
HOST, WITHOUT = {"pcie", "dram"}, {"nvlink"}

CASES: list[tuple[str, str, str, int, str, set[str], set[str]]] = [
    ("P2P_DISABLE", "1", "dgx-a100", 1, A, HOST, WITHOUT),
    ("P2P_DISABLE", "1", "dgx-1v", 1, B, HOST, WITHOUT),
    ("P2P_DISABLE", "0", "dgx-a100", 1, A, {"nvlink"}, {"pcie", "dram"}),
    ("P2P_LEVEL", "LOC", "dgx-h100", 1, B, HOST, WITHOUT),
    ("P2P_LEVEL", "0", "dgx-a100", 1, A, HOST, WITHOUT),
    ("P2P_LEVEL", "NVL", "dgx-a100", 1, A, {"nvlink"}, {"pcie", "dram"}),
    ("P2P_LEVEL", "NVL", "dgx-1v", 1, B, {"nvlink", "pcie", "dram"}, set()),
    ("P2P_LEVEL", "NVB", "dgx-1v", 1, B, {"nvlink"}, {"pcie", "dram"}),
    ("P2P_LEVEL", "SYS", "a100-pcie-x8", 1, A, {"pcie", "numa"}, {"dram"}),
    ("P2P_LEVEL", "4", "a100-pcie-x8", 1, A, {"pcie", "numa"}, {"dram"}),
    ("NVB_DISABLE", "1", "dgx-1v", 1, B, {"nvlink", "pcie", "dram"}, set()),
    ("SHM_DISABLE", "1", "dgx-a100", 1, A, {"nvlink"}, {"pcie", "dram"}),
    ("NET_GDR_LEVEL", "PIX", "dgx-a100", 2, B, {"infiniband", "nvlink", "pcie"}, {"dram"}),
    ("NET_GDR_LEVEL", "LOC", "dgx-a100", 2, B, {"infiniband", "dram"}, set()),
    ("NET_GDR_READ", "0", "dgx-a100", 2, B, {"infiniband", "dram"}, set()),
    ("NET_GDR_READ", "1", "dgx-a100", 2, B, {"infiniband"}, {"dram"}),
    ("IB_DISABLE", "0", "dgx-a100", 2, B, {"infiniband"}, {"dram"}),
    ("IB_DISABLE", "1", "dgx-a100", 1, A, {"nvlink"}, {"infiniband"}),
    ("NET", "IB", "dgx-a100", 2, B, {"infiniband"}, {"dram"}),
    ("NET", "AWS Libfabric", "aws-p5", 2, B, {"efa"}, set()),
]
"""Variable, value, preset, nodes, collective, classes of links that carry data, and classes that do not."""


def ran(where: Any, nodes: int, operation: str, size: str = "64KiB", **options: Any) -> Result:
    ranks = (0, 1, 8, 9) if nodes > 1 else None
    own = {} if nodes == 1 or not isinstance(where, str) else {"nodes": nodes}
    return clusim.collective(where, operation, size, ranks=ranks, **own, **options)


def carried(result: Result) -> Counter[str]:
    """Return the payload by class of link, without the ends."""
    found: Counter[str] = Counter()
    for name, payload in zip(
        result.wires.classes, result.wires.counters["payload"].tolist(), strict=True
    ):
        found[name.partition(" ")[0]] += payload
    return found


@pytest.mark.parametrize(("variable", "value", "name", "nodes", "operation", "on", "off"), CASES)
def test_data_take_the_links_that_a_variable_leaves(
    variable: str, value: str, name: str, nodes: int, operation: str, on: set[str], off: set[str]
) -> None:
    load = carried(ran(name, nodes, operation, env={variable: value}))
    assert {kind for kind in on if not load[kind]} == set()
    assert {kind for kind in off if load[kind]} == set()


def test_nics_that_are_not_allowed_carry_nothing() -> None:
    for operation in (A, B):
        result = ran("dgx-h100", 2, operation, env={"IB_HCA": "=nic1,nic2"})
        payload = result.wires.counters["payload"].tolist()
        rows = zip(result.wires.names, payload, strict=True)
        used = {part for name, sent in rows if sent for part in name.split("->") if "/nic" in part}
        assert used
        assert {name.partition(".")[0].rpartition("/")[2] for name in used} <= {"nic1", "nic2"}


def test_without_pxn_messages_leave_by_the_senders_own_nic() -> None:
    between = [carried(ran("dgx-h100", 2, B, env=env)) for env in ({}, {"PXN_DISABLE": "1"})]
    assert between[1]["nvlink"] < between[0]["nvlink"]
    assert between[1]["infiniband"] > between[0]["infiniband"]  # over spines, from rail to rail


def test_without_pxn_planes_that_nothing_joins_are_an_error() -> None:
    joined = topology.load("dgx-h100", nodes=2)
    spines = {node.name for node in joined.nodes if node.tier == "spine"}
    nodes = tuple(node for node in joined.nodes if node.name not in spines)
    links = tuple(link for link in joined.links if not spines & {link.a, link.b})
    planes = replace(joined, nodes=nodes, links=links)
    assert ran(planes, 2, B, env={}).time_ps > 0
    with pytest.raises(ScheduleError, match=r"no network joins NIC .* PXN is disabled"):
        ran(planes, 2, B, env={"PXN_DISABLE": "1"})


@pytest.mark.parametrize(
    ("name", "nodes", "env", "message"),
    [
        ("a100-pcie-x8", 1, {"SHM_DISABLE": "1"}, "need the network, which one node lacks"),
        ("l20-x8", 2, {"SHM_DISABLE": "1", "P2P_DISABLE": "1"}, "2 of them share 1 NICs of a node"),
        ("dgx-a100", 1, {"SHM_DISABLE": "1", "P2P_DISABLE": "1"}, "NCCL_SHM_DISABLE"),
        ("dgx-a100", 2, {"IB_DISABLE": "1"}, "NCCL_IB_DISABLE=1: not simulated"),
        ("dgx-a100", 2, {"NET": "Socket"}, "NCCL_NET=Socket: not simulated"),
        ("dgx-a100", 2, {"NET": "FasTrak"}, "NCCL_NET=FasTrak: the NICs of"),
        ("dgx-a100", 2, {"IB_HCA": "^nic"}, "NCCL_IB_HCA=\\^nic: allows no NIC of node 0"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_by_name(
    name: str, nodes: int, env: dict[str, str], message: str
) -> None:
    with pytest.raises(ClusimError, match=message) as error:
        ran(name, nodes, A, env=env)
    assert "\n" not in str(error.value)


def test_without_peer_access_and_shared_memory_messages_of_a_node_take_its_nics() -> None:
    """An all-to-all of S per rank sends 15 S / 16 of each GPU over its own NIC of 25 GB/s, of both nodes alike."""
    env = {"P2P_DISABLE": "1", "SHM_DISABLE": "1"}
    result = clusim.collective("dgx-a100", B, "1MiB", nodes=2, env=env)
    payload = carried(result)
    assert payload["infiniband"] >= 16 * 15 << 16
    assert not payload["nvlink"] + payload["dram"] + payload["numa"]
    assert result.time_ps >= (15 << 16) * 1e12 / 25e9
    one = clusim.collective("dgx-a100", B, "1MiB", nodes=2, env=env, ranks=range(8))
    assert carried(one)["infiniband"] >= 8 * 7 << 17


def test_groups_of_gpus_with_peer_access_are_nodes_without_shared_memory() -> None:
    """Four NICs for four pairs below PCIe switches: a ring enters and leaves each pair by its NIC."""
    env = {"SHM_DISABLE": "1"}
    machine = topology.load("rtx-pro-6000-x8", nodes=2)
    parts = by_peers(replace(machine, shm=False))
    assert (parts.num_zones, parts.ranks) == (8, machine.ranks)
    payload = carried(clusim.collective(machine, A, "64KiB", env=env, ranks=range(4)))
    assert payload["roce"]
    assert not payload["numa"]


def test_hosts_of_a_rack_are_nodes_without_multi_node_nvlink() -> None:
    rack = topology.load("gb200-nvl72")
    trays = by_host(rack)
    assert (trays.num_zones, trays.num_ranks) == (18, 72)
    assert by_host(trays) is trays
    ranks = (0, 1, 4, 5)
    apart = carried(clusim.collective(rack, A, "64KiB", env={"MNNVL_ENABLE": "0"}, ranks=ranks))
    assert apart["infiniband"]
    assert apart["nvlink"]
    assert not carried(clusim.collective(rack, A, "64KiB", ranks=ranks))["infiniband"]


@pytest.mark.parametrize(
    ("env", "nodes", "message"),
    [
        ({"P2P_DISABLE": "1"}, 1, "no host memory is reachable from both"),
        (
            {"NET_GDR_LEVEL": "LOC"},
            2,
            "lacks host memory to send from or to, and GPUDirect is disabled",
        ),
    ],
)
def test_a_topology_without_host_memory_says_that_data_cannot_be_staged(
    env: dict[str, str], nodes: int, message: str
) -> None:
    machine = topology.load("dgx-a100", nodes=None if nodes == 1 else nodes)
    bare = {node.name for node in machine.nodes if node.kind == "memory"}
    links = tuple(link for link in machine.links if not bare & {link.a, link.b})
    left = tuple(node for node in machine.nodes if node.name not in bare)
    with pytest.raises(ScheduleError, match=message):
        ran(replace(machine, nodes=left, links=links), nodes, A, env=env)


@pytest.mark.parametrize(
    ("env", "keys", "nodes"),
    [
        ({"P2P_DISABLE": "1"}, {"p2p_level": "loc"}, 1),
        ({"NET_GDR_LEVEL": "LOC"}, {"gdr_level": "loc"}, 2),
        ({"NET_GDR_READ": "0"}, {"gdr_read": False}, 2),
        ({"PXN_DISABLE": "1"}, {"pxn": False}, 2),
    ],
)
def test_keys_of_the_topology_mean_the_same(
    env: dict[str, str], keys: dict[str, Any], nodes: int
) -> None:
    machine = topology.load("dgx-h100", nodes=None if nodes == 1 else nodes)
    again = topology.loads(topology.to_yaml(replace(machine, **keys)), "again")
    results = [ran(machine, nodes, B, env=env), ran(again, nodes, B, env={})]
    assert results[0].fingerprint == results[1].fingerprint


def test_variables_of_the_default_change_nothing() -> None:
    default = {"P2P_DISABLE": "0", "SHM_DISABLE": "0", "NET_GDR_READ": "1", "PXN_DISABLE": "0"}
    default |= {"NVB_DISABLE": "0", "NET": "IB", "IB_DISABLE": "0", "NVLS_ENABLE": "1"}
    results = [ran("dgx-h100", 2, B, env=env) for env in ({}, default)]
    assert results[0].fingerprint == results[1].fingerprint
