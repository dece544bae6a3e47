"""The graph search: channel counts, ring orders and trees that real runs had.

Ring orders: ``graph.xml`` of github.com/UCBerkeley-Spring2022-CS267-project/blinkplus-nccl-base (8 V100),
``ap1_nop.xml.txt`` of github.com/microsoft/msccl-tools (8 A100, 2.8.4), ``nccl-test-output-v2.22.3-1.log`` of
github.com/KeitaW/p5-nccl-test-2024-07-19 (2 x p5.48xlarge), ``log.log`` of github.com/Panlichen/nccl-tests
(2 x 8 RTX 3090), ``pytests/resnet50`` of github.com/argonne-lcf/alcf-nccl-tests (Polaris, 2.20.5), ``topo.md`` of
github.com/dailiuyao/ncclgauge-works (p5en, 2.30.4), `results/scaling_attributed` of
github.com/waynehacking8/nccl-collectives-bench (H100, 2.29.2).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from tests.nccl.machines import POLARIS

from clusim import topology
from clusim.base.errors import InputError
from clusim.base.terms.operations import Algorithm, Collective, Protocol
from clusim.nccl import Communicator, communicator, parse_assignments, parse_env, parse_version
from clusim.nccl.connect import binary_tree, double_tree, nvls_trees
from clusim.nccl.constants import Path, Pattern
from clusim.nccl.search import search
from clusim.nccl.searched_systems import search_graphs
from clusim.nccl.system import System
from clusim.nccl.topology import build_system
from support.nccl_lines import log_totals
from support.presets import preset_nic

RING, TREE, NVLS = Algorithm.RING, Algorithm.TREE, Algorithm.NVLS


@cache
def comm(name: str, version: str = "2.27", nodes: int = 1, *env: str) -> Communicator:
    settings = parse_env(parse_assignments(env))
    return communicator(topology.load(name, nodes=nodes), parse_version(version), settings)


@pytest.mark.parametrize(
    ("name", "found", "rate", "channels", "nvls"),
    [
        ("dgx-1p", 4, 18, 8, 0),
        ("dgx-1v", 6, 20, 12, 0),
        ("dgx-2", 6, 20, 12, 0),
        ("dgx-a100", 12, 20, 24, 0),
        ("a100x4-mesh", 12, 20, 24, 0),
        ("dgx-h100", 12, 30, 24, 16),
        ("hgx-b200", 16, 45, 32, 24),
    ],
)
def test_channels_of_known_machines(
    name: str, found: int, rate: float, channels: int, nvls: int
) -> None:
    c = comm(name)
    ring = c.graphs[RING]
    assert (ring.num_channels, ring.intra_GBps) == (found, rate)
    assert (c.num_channels, c.nvls_channels, len(c.channels)) == (channels, nvls, channels)
    assert c.graphs[TREE].num_channels == found


def test_nvls_has_a_head_per_gpu_and_each_charges_its_own_gpu_twice() -> None:
    # 18 links of 20.6 GB/s shared by n + 1 flows: 41.2 GB/s for eight GPUs; the next lower speed is 40.
    graph = comm("dgx-h100").graphs[NVLS]
    assert (graph.num_channels, graph.intra_GBps, graph.inter_GBps) == (8, 40, 60)
    assert [order[0] for order in graph.orders] == list(range(8))
    assert comm("hgx-b200").graphs[NVLS].intra_GBps == 80


@pytest.mark.parametrize(
    ("env", "pattern", "second"),
    [({}, Pattern.TREE, 0), ({"NCCL_NETDEVS_POLICY": "AUTO"}, Pattern.BALANCED_TREE, 1)],
)
def test_a_second_gpu_takes_a_child_only_if_it_may_use_the_nic(
    env: dict[str, str], pattern: Pattern, second: int
) -> None:
    # Two GPUs and two NICs share a switch of aws-p5en, where the plugin allows one NIC per GPU.
    c = communicator(topology.load("aws-p5en", nodes=4), parse_version("2.28"), parse_env(env))
    tree = c.graphs[TREE]
    assert (tree.pattern, tree.num_channels) == (pattern, 8)
    assert [net for net, _ in tree.adapters] == [order[0] for order in tree.orders]
    assert {a // 2 - b // 2 for a, b, *_ in tree.orders if pattern is Pattern.BALANCED_TREE} <= {0}
    middle = [
        sum(below // 8 != rank // 8 for below in c.channels[0].children[rank])
        for rank in range(16, 18)
    ]
    assert middle == [2 - second, second]


V100_RINGS = [
    *[(0, 3, 2, 1, 5, 6, 7, 4)] * 2,
    *[(0, 4, 7, 6, 5, 1, 2, 3)] * 2,
    (0, 1, 3, 7, 5, 4, 6, 2),
    (0, 2, 6, 4, 5, 7, 3, 1),
]


def test_rings_of_the_hybrid_cube_mesh() -> None:
    assert list(comm("dgx-1v", "2.12").graphs[RING].orders) == V100_RINGS
    assert comm("dgx-1v", "2.12").graphs[RING].intra_GBps == 22


def test_a100_with_2_8() -> None:
    c = comm("dgx-a100", "2.8.4")
    assert (c.num_channels, c.p2p_channels, c.p2p_per_peer) == (24, 32, 32)
    assert {channel.ring for channel in c.channels} == {tuple(range(8))}
    assert {channel.parent for channel in c.channels} == {(-1, 0, 1, 2, 3, 4, 5, 6)}


def test_the_totals_h100_logs() -> None:
    assert log_totals(comm("dgx-h100", "2.29.2")) == (
        "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels,"
        " 32 p2p channels per peer"
    )


P5_RINGS = """
0 7 6 5 4 3 2 1 9 10 11 12 13 14 15 8
0 8 15 14 13 12 11 10 9 1 2 3 4 5 6 7
0 7 6 5 4 3 11 12 13 14 15 8 9 10 2 1
0 1 2 10 9 8 15 14 13 12 11 3 4 5 6 7
0 7 6 5 13 14 15 8 9 10 11 12 4 3 2 1
0 1 2 3 4 12 11 10 9 8 15 14 13 5 6 7
0 7 15 8 9 10 11 12 13 14 6 5 4 3 2 1
0 1 2 3 4 5 6 14 13 12 11 10 9 8 15 7
"""


def test_rings_and_trees_of_two_p5() -> None:
    c = comm("aws-p5", "2.22.3", 2)
    expected = [tuple(int(r) for r in line.split()) for line in P5_RINGS.strip().splitlines()]
    assert [channel.ring for channel in c.channels] == expected * 2
    # Logged: Trees [0] 1/8/-1->0->-1, [1] -1/-1/-1->0->7, [8] 1/-1/-1->0->8, [15] 8/7/-1->15->-1.
    assert (c.channels[0].parent[0], c.channels[0].children[0]) == (-1, (1, 8))
    assert (c.channels[1].parent[0], c.channels[1].children[0]) == (7, ())
    assert (c.channels[8].parent[0], c.channels[8].children[0]) == (8, (1,))
    assert (c.channels[15].parent[15], c.channels[15].children[15]) == (-1, (8, 7))
    assert c.nvls_heads == [(head, head + 8) for head in range(8)]


def test_hopper_with_an_adapter_per_gpu_pairs_adapters() -> None:
    graph = comm("hgx-h100-ndr", "2.29", 2).graphs[RING]
    assert graph.line() == (
        "Pattern 4, crossNic 2, nChannels 8, bw 48.000000/48.000000, type NVL/PIX, sameChannels 0"
    )
    assert graph.adapters[:2] == ((0, 1), (1, 0))
    assert comm("hgx-h100-ndr", "2.29", 2, "NCCL_CROSS_NIC=0").graphs[RING].type_inter is Path.PXN


def test_trees_of_four_p5en() -> None:
    c = comm("aws-p5en", "2.30", 4)
    # Logged: Tree 0 : 0 -> 16 -> 17/8/24; Tree 8 : 24 -> 8 -> 9/16/0.
    assert (c.channels[0].parent[16], c.channels[0].children[16]) == (0, (17, 8, 24))
    assert c.channels[8].parent[8] == 24
    assert set(c.channels[8].children[8]) == {9, 16, 0}


def test_geforce_cards_go_through_the_host() -> None:
    c = comm("rtx3090x8-edr56", "2.18.1", 2)
    assert c.graphs[RING].line() == (
        "Pattern 4, crossNic 0, nChannels 1, bw 4.000000/4.000000, type SYS/SYS, sameChannels 1"
    )
    assert c.channels[0].ring == tuple(range(16))
    assert (c.channels[0].parent[8], c.channels[1].parent[0]) == (0, 8)


def test_a_mesh_whose_adapters_are_next_to_two_of_the_gpus() -> None:
    system = build_system(topology.loads(POLARIS), parse_version("2.20.5"))
    ring = search(system, Pattern.RING)
    assert ring.orders == ((1, 0, 2, 3), (3, 2, 0, 1))
    assert (ring.cross_nic, ring.intra_GBps, ring.type_inter) == (2, 24, Path.PHB)


def test_collnet_needs_a_network_that_reduces_and_the_variable() -> None:
    plain = comm("hgx-h100-ndr", "2.27", 4)
    assert plain.graphs[Algorithm.COLLNET_DIRECT].num_channels == 0
    c = comm("hgx-h100-ndr", "2.27", 4, "COLLNET_ENABLE=1")
    assert c.graphs[Algorithm.COLLNET_DIRECT].num_channels == 8
    assert c.graphs[Algorithm.COLLNET_CHAIN].num_channels == 8
    cost = c.table.cost(Collective.ALLREDUCE, Algorithm.COLLNET_DIRECT, Protocol.SIMPLE)
    # 2 x (3.7 us inside + 7 x 0.4 us) + 31 us of network.
    assert cost.latency_us == pytest.approx(2 * (3.7 + 2.8) + 31)
    assert cost.bandwidth_GBps > 0
    roce = comm("aws-p5", "2.27", 2, "COLLNET_ENABLE=1")
    cost = roce.table.cost(Collective.ALLREDUCE, Algorithm.COLLNET_DIRECT, Protocol.SIMPLE)
    assert cost.why_not == "the network cannot reduce"


def test_settings_bound_the_channels() -> None:
    assert comm("dgx-h100", "2.27", 1, "MAX_NCHANNELS=8").num_channels == 8
    assert len(comm("dgx-a100", "2.27", 1, "MIN_NCHANNELS=32").channels) == 32
    c = comm("dgx-a100", "2.8", 1, "MIN_NCHANNELS=64")
    assert c.num_channels == 32, "2.8 has at most 32"


def test_peer_access_off_sends_pcie_peers_over_the_host() -> None:
    machine = topology.load("a100-pcie-x8")
    plain = build_system(machine, parse_version("2.27"))
    bent = build_system(machine, parse_version("2.27"), parse_env({"NCCL_P2P_LEVEL": "LOC"}))
    a, b = plain.gpus[0], plain.gpus[1]
    assert plain.route(a, b).type is not None
    assert bent.route(bent.gpus[0], bent.gpus[1]).type >= Path.PHB


def test_efa_adapters_of_a_gpu_are_one_device() -> None:
    system = build_system(topology.load("aws-p5"), parse_version("2.22"))
    assert [net.speed_GBps for net in system.adapters] == [50.0] * 8
    assert [system.local_gpu(net).index for net in system.adapters] == list(range(8))
    assert system.route(system.gpus[0], system.adapters[0]).type is Path.PIX
    assert system.route(system.gpus[0], system.adapters[5]).type is Path.PXN
    assert system.adapters[0].latency_us == 75


@pytest.mark.parametrize(
    ("model", "speed"),
    [
        ("cx7-ndr", 400),
        ("cx7-ndr200", 200),
        ("cx6-hdr", 200),
        ("cx6-hdr100", 100),
        ("efa-200g", 200),
        ("cx6-fdr", 56),
        ("cassini-200g", 200),
        ("cx7-roce400", 400),
        ("cx8-xdr", 800),
    ],
)
def test_adapter_speeds(model: str, speed: float) -> None:
    nic = preset_nic(model).nic
    assert nic is not None
    assert nic.speed_Bps * 8 / 1e9 == speed


def test_ranks_may_be_a_part_of_the_machine() -> None:
    machine = topology.load("dgx-h100")
    c = communicator(machine, parse_version("2.29"), ranks=range(6))
    assert c.channels[0].ring == (0, 1, 2, 3, 4, 5)
    assert c.graphs[NVLS].intra_GBps == 50
    with pytest.raises(InputError, match="one GPU"):
        communicator(machine, ranks=[3])
    with pytest.raises(InputError, match="has 8 ranks"):
        communicator(machine, ranks=[8])


def test_before_2_14_nccl_counted_on_peer_access_of_geforce_cards() -> None:
    # As the costs of a logged run of 2.12.12 need it: one channel of the 7 GB/s of the adapter.
    graph = comm("rtx3090x8-edr56", "2.12.12", 4).graphs[RING]
    assert (graph.num_channels, graph.intra_GBps, graph.type_intra) == (1, 7, Path.SYS)


@pytest.mark.parametrize("count", range(1, 40))
def test_double_trees_are_trees_and_share_the_work(count: int) -> None:
    inner = [0, 0]
    for which in (0, 1):
        nodes = [double_tree(count, node)[which] for node in range(count)]
        roots = [node for node in range(count) if nodes[node][0] == -1]
        assert len(roots) == 1
        for node, (up, first, second, side) in enumerate(nodes):
            if up != -1:
                assert nodes[up][1 + side] == node
            for child in (first, second):
                if child != -1:
                    assert nodes[child][0] == node
            inner[which] += (first, second) != (-1, -1)
        seen, front = set(roots), roots
        while front:
            front = [c for n in front for c in nodes[n][1:3] if c != -1]
            seen.update(front)
        assert len(seen) == count
    if count > 2:
        leaves = [
            {n for n in range(count) if double_tree(count, n)[w][1:3] == (-1, -1)} for w in (0, 1)
        ]
        if count % 2 == 0:
            assert leaves[0] | leaves[1] == set(range(count))


def test_binary_tree_of_eight() -> None:
    assert [binary_tree(8, node)[0] for node in range(8)] == [-1, 2, 4, 2, 0, 6, 4, 6]


def test_nvls_trees_join_the_heads_of_machines() -> None:
    trees = nvls_trees([(0, 8, 16, 24), (1, 9, 17, 25)], 4)
    assert trees[0][0][16] == (0, (8, 24))
    assert trees[1][1][9] == (25, (17, 1)) or trees[1][1][9] == (25, (1, 17))


def test_a_machine_is_searched_once_and_another_for_itself() -> None:
    """What was found is kept by all that the search sees: devices, links, paths, release and variables."""

    def system(name: str = "dgx-h100", version: str = "2.27", *env: str) -> System:
        settings = parse_env(parse_assignments(env))
        return build_system(topology.load(name), parse_version(version), settings)

    one = system()
    before = one.key()
    search(one, Pattern.RING)
    assert system().key() == before == one.key()
    for other in (
        system("dgx-h200"),
        system("dgx-a100"),
        system("dgx-h100", "2.18"),
        system("dgx-h100", "2.27", "NCCL_P2P_LEVEL=LOC"),
        system("dgx-h100", "2.27", "NCCL_ALGO=allreduce:ring"),
    ):
        assert other.key() != before
    for change in (_slow_link, _long_route, _fewer_adapters, _other_gpu):
        changed = system()
        change(changed)
        assert changed.key() != before, change.__name__


def test_machines_of_a_cluster_are_searched_once() -> None:
    """Names decide nothing: what is found of a machine is found of every other that is built as it is."""
    cluster = topology.load("dgx-h100", nodes=2)
    settings = parse_env({})
    here, there = (
        build_system(cluster, parse_version("2.27"), settings, zone=zone, ranks=list(range(8)))
        for zone in (0, 1)
    )
    assert [gpu.name for gpu in here.gpus] != [gpu.name for gpu in there.gpus]
    assert here.key() == there.key()
    for pattern in (Pattern.RING, Pattern.BALANCED_TREE, Pattern.NVLS):
        assert search(here, pattern) == search(there, pattern)
    communicator(cluster, ranks=range(8))
    searches = search_graphs.cache_info().misses
    communicator(cluster, ranks=range(8, 16))
    assert search_graphs.cache_info().misses == searches


def _slow_link(system: System) -> None:
    system.others[0].links[0].rate /= 2


def _long_route(system: System) -> None:
    ends = system.gpus[0], system.gpus[1]
    route = system.routes[ends]
    system.routes[ends] = replace(route, links=route.links + route.links[:1])


def _fewer_adapters(system: System) -> None:
    system.trim_network()


def _other_gpu(system: System) -> None:
    system.gpus[3].capability += 1
