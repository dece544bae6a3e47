"""The cost model against tables and times that real runs of NCCL printed.

Sources: the logs ``results/scaling_attributed/g{2,6}_auto.log`` of github.com/waynehacking8/nccl-collectives-bench
(NCCL 2.29.2, H100), ``baseline_logs`` of github.com/cuiboyuan/nccl_log_rca_bench (NCCL 2.21.5, two PCIe GPUs over
shared memory), and ``result_with_algo_topo_info.txt`` of github.com/Panlichen/nccl-tests (NCCL 2.12.12, 4 x 8 RTX
3090).
"""

from __future__ import annotations

import pytest

from clusim.base.errors import InputError
from clusim.base.terms.operations import PROTOCOLS
from clusim.nccl import Algorithm, Collective, Protocol, Settings, parse_env, parse_version
from clusim.nccl.constants import Path, Pattern
from clusim.nccl.cost_table import CostTable
from clusim.nccl.costs import cost_table
from clusim.nccl.graph import Graph, RankGroup
from clusim.nccl.tuner import ChannelSupply, channels_and_threads, select

TREE, RING, NVLS = Algorithm.TREE, Algorithm.RING, Algorithm.NVLS
LL, LL128, SIMPLE = PROTOCOLS
ALLREDUCE, ALLGATHER = Collective.ALLREDUCE, Collective.ALLGATHER


def graphs(
    channels: int, rate: float, kind: Path, heads: Graph | None = None
) -> dict[Algorithm, Graph]:
    ring = Graph(Pattern.RING, channels, rate, rate, kind, Path.PIX, True)
    tree = Graph(Pattern.BALANCED_TREE, channels, rate, rate, kind, Path.PIX, True)
    heads = heads or Graph(Pattern.NVLS)
    none = Graph(Pattern.TREE, type_intra=kind)
    found = {RING: ring, TREE: tree, Algorithm.PAT: tree, NVLS: heads, Algorithm.NVLS_TREE: heads}
    return found | {Algorithm.COLLNET_DIRECT: none, Algorithm.COLLNET_CHAIN: none}


def h100(num_ranks: int, settings: Settings | None = None) -> CostTable:
    rate = {2: 60, 4: 60, 6: 50, 8: 40}[num_ranks]
    heads = Graph(Pattern.NVLS, num_ranks, rate, 60, Path.NVL)
    group = RankGroup(num_ranks, 1, 90, 90, "intel", nvls=True)
    found = graphs(12, 30, Path.NVL, heads)
    if num_ranks == 2:
        # With two GPUs a tree sends in one direction only, so its channels are faster than those of a ring.
        found[TREE] = Graph(Pattern.BALANCED_TREE, 12, 60, 30, Path.NVL, Path.PIX, True)
    return cost_table(group, found, parse_version("2.29.2"), settings)


def two_pcie_gpus() -> CostTable:
    return cost_table(
        RankGroup(2, 1, 80, 80, "amd"), graphs(1, 15, Path.SYS), parse_version("2.21.5")
    )


def rtx3090_cluster() -> CostTable:
    found = graphs(1, 7, Path.SYS)
    return cost_table(RankGroup(32, 4, 86, 86, "intel"), found, parse_version("2.12.12"))


PRINTED = [
    # table, collective, algorithm, latency and bandwidth of LL, LL128, Simple as printed
    ("h100x6", "Broadcast", RING, "7.2/141.0 15.9/331.2 11.8/360.0"),
    ("h100x6", "AllGather", RING, "9.6/169.2 23.5/397.4 25.4/432.0"),
    ("h100x6", "ReduceScatter", NVLS, "0.0/0.0 0.0/0.0 25.0/177.1"),
    ("h100x6", "AllGather", Algorithm.COLLNET_DIRECT, "4.0/0.0 4.0/0.0 42.4/0.0"),
    ("h100x6", "AllReduce", TREE, "12.8/43.6 26.5/128.8 48.4/165.6"),
    ("h100x6", "AllReduce", RING, "12.6/84.6 33.0/198.7 42.4/216.0"),
    ("h100x6", "AllReduce", Algorithm.COLLNET_CHAIN, "0.0/0.0 0.0/0.0 58.0/0.0"),
    ("h100x6", "AllReduce", NVLS, "0.0/0.0 0.0/0.0 25.0/216.0"),
    ("h100x6", "AllReduce", Algorithm.NVLS_TREE, "0.0/0.0 0.0/0.0 25.0/0.0"),
    ("h100x2", "AllReduce", TREE, "8.0/61.1 16.5/180.6 16.4/232.2"),
    ("h100x2", "AllReduce", NVLS, "0.0/0.0 0.0/0.0 25.0/102.0"),
    ("h100x2", "AllGather", NVLS, "0.0/0.0 0.0/0.0 25.0/25.5"),
    ("pcie", "Broadcast", RING, "7.6/7.5 16.5/0.0 14.1/15.0"),
    ("pcie", "AllGather", RING, "7.6/15.0 16.5/0.0 14.1/30.0"),
    ("pcie", "AllReduce", TREE, "8.8/1.8 17.8/0.0 56.0/6.9"),
    ("pcie", "AllReduce", RING, "8.6/7.5 19.0/0.0 19.8/15.0"),
    ("pcie", "AllReduce", Algorithm.COLLNET_CHAIN, "0.0/0.0 0.0/0.0 35.6/0.0"),
]


@pytest.mark.parametrize(("which", "collective", "algorithm", "printed"), PRINTED)
def test_tables_are_those_nccl_prints(
    which: str, collective: str, algorithm: Algorithm, printed: str
) -> None:
    table = {"h100x6": lambda: h100(6), "h100x2": lambda: h100(2), "pcie": two_pcie_gpus}[which]()
    costs = [table.cost(Collective(collective), algorithm, protocol) for protocol in PROTOCOLS]
    shown = " ".join(f"{c.latency_us:.1f}/{c.bandwidth_GBps:.1f}" for c in costs)
    assert shown == printed


TIMES = [
    (64, TREE, LL, 49.675526),
    (1024, TREE, LL, 50.942719),
    (32768, TREE, LL, 104.843300),
    (65536, TREE, LL, 178.501038),
    (131072, RING, LL, 267.515442),
    (524288, RING, LL, 702.861694),
    (1 << 20, TREE, SIMPLE, 1155.289429),
    (1 << 21, TREE, SIMPLE, 1589.482422),
    (1 << 22, RING, SIMPLE, 2187.303467),
    (1 << 30, RING, SIMPLE, 298222.781250),
]


@pytest.mark.parametrize(("size", "algorithm", "protocol", "time_us"), TIMES)
def test_choices_and_times_of_a_cluster(
    size: int, algorithm: Algorithm, protocol: Protocol, time_us: float
) -> None:
    chosen = select(rtx3090_cluster(), ALLREDUCE, size, ChannelSupply(2, 0))
    assert (chosen.algorithm, chosen.protocol) == (algorithm, protocol)
    assert chosen.time_us == pytest.approx(time_us, rel=1e-6)


def test_h100_takes_nvls_for_large_sizes_with_six_gpus_but_not_with_four() -> None:
    for count, expected in ((2, RING), (4, RING), (6, NVLS), (8, NVLS)):
        chosen = select(h100(count), ALLREDUCE, 1 << 28, ChannelSupply(24, 16))
        assert (chosen.algorithm, chosen.protocol) == (expected, SIMPLE), count
        assert chosen.threads.num_channels == (16 if expected is NVLS else 24)


def test_eight_h100_reach_the_bus_bandwidth_of_nvls() -> None:
    cost = h100(8).cost(ALLREDUCE, NVLS, SIMPLE)
    assert cost.bandwidth_GBps * 14 / 8 == pytest.approx(476)


def test_forced_algorithms_disable_the_others_and_say_so() -> None:
    table = h100(6, parse_env({"NCCL_ALGO": "NVLS"}))
    cost = table.cost(ALLREDUCE, RING, SIMPLE)
    assert (round(cost.latency_us, 1), cost.bandwidth_GBps) == (42.4, 0)
    assert cost.why_not == "NCCL_ALGO=NVLS"
    assert table.cost(Collective.BROADCAST, RING, SIMPLE).bandwidth_GBps == 0


def test_nothing_left_is_an_error() -> None:
    settings = parse_env({"NCCL_ALGO": "NVLS", "NCCL_PROTO": "LL"})
    with pytest.raises(InputError, match=r"no algorithm is left for AllReduce with NVLS, LL"):
        select(h100(6, settings), ALLREDUCE, 8, ChannelSupply(24, 16, settings=settings))


def test_an_algorithm_that_cannot_run_is_named_with_its_reason() -> None:
    settings = parse_env({"NCCL_ALGO": "CollNetDirect"})
    why = r"\(CollNetDirect: one node\)"
    with pytest.raises(InputError, match=rf"no algorithm is left .* {why}; allow Ring"):
        select(h100(6, settings), ALLREDUCE, 8, ChannelSupply(24, 16, settings=settings))


def test_before_2_24_nccl_algo_spares_rings_of_other_collectives() -> None:
    settings, group = parse_env({"NCCL_ALGO": "Tree"}), RankGroup(8, 1, 80, 80, "intel")
    for version, expected in (("2.20", True), ("2.27", False)):
        table = cost_table(group, graphs(12, 20, Path.NVL), parse_version(version), settings)
        assert bool(table.cost(ALLGATHER, RING, SIMPLE).bandwidth_GBps) is expected


def test_ll128_needs_nvlink() -> None:
    table = two_pcie_gpus()
    assert table.cost(ALLREDUCE, RING, LL128).why_not == "LL128 needs paths up to NVB, not SYS"


@pytest.mark.parametrize(
    ("size", "channels", "threads"),
    # 24 channels x 512 threads x 64 B (8 B x 8 ranks) need 768 KiB; below, channels go, then threads.
    [(8, 1, 96), (8192, 1, 128), (32768, 1, 512), (65536, 2, 512), (786432, 24, 512)],
)
def test_channels_and_threads_of_small_rings(size: int, channels: int, threads: int) -> None:
    settings = parse_env({"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"})
    chosen = select(h100(8, settings), ALLREDUCE, size, ChannelSupply(24, 16, settings=settings))
    assert (chosen.threads.num_channels, chosen.threads.num_threads) == (channels, threads)


def test_simple_rings_have_an_extra_warp_and_slow_ones_half_the_threads() -> None:
    settings = parse_env({"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"})
    fast = select(h100(8), ALLGATHER, 1 << 28, ChannelSupply(24, 16, settings=settings))
    assert fast.threads.num_threads == 512 + 32
    slow = select(rtx3090_cluster(), ALLREDUCE, 1 << 28, ChannelSupply(2, 0))
    assert slow.threads.num_threads == 256 + 32


def test_ll_is_bounded_by_the_cpu_over_several_nodes() -> None:
    found = graphs(8, 48, Path.NVL)
    for vendor, expected in (("intel", 39.0), ("amd", 22.5)):
        group = RankGroup(16, 2, 90, 90, vendor)
        cost = cost_table(group, found, parse_version("2.29")).cost(ALLREDUCE, RING, LL)
        assert cost.bandwidth_GBps * 30 / 16 == pytest.approx(expected)


@pytest.mark.parametrize(
    ("release", "ranks", "nodes", "channels", "from_bytes"),
    [
        # A sixteenth of 64 KiB for each rank.
        ("2.17", 32, 4, 2, 32 * 4096),
        # 64 bytes for each rank and channel.
        ("2.18", 16, 2, 8, 64 * 8 * 16),
    ],
)
def test_the_plateau_of_rings_begins_at_a_size(
    release: str, ranks: int, nodes: int, channels: int, from_bytes: int
) -> None:
    group = RankGroup(ranks, nodes, 70, 70, "intel")
    table = cost_table(group, graphs(1, 7, Path.SYS), parse_version(release))
    cost = table.cost(ALLREDUCE, RING, SIMPLE)
    for size, factor in ((from_bytes - 1, 1.0), (from_bytes, 1.9)):
        time_us = table.time_us(ALLREDUCE, RING, SIMPLE, size, channels)
        moved_us = size / (1000 * cost.bandwidth_GBps)
        assert time_us == pytest.approx(factor * cost.latency_us + moved_us)


@pytest.mark.parametrize(("threshold", "why_not"), [(2, ""), (3, "NCCL_COLLNET_NODE_THRESHOLD")])
def test_collnet_needs_so_many_nodes(threshold: int, why_not: str) -> None:
    settings = parse_env(
        {"NCCL_COLLNET_ENABLE": "1", "NCCL_COLLNET_NODE_THRESHOLD": str(threshold)}
    )
    group = RankGroup(16, 2, 80, 80, "intel", collnet=True)
    found = graphs(2, 20, Path.NVL)
    found[Algorithm.COLLNET_CHAIN] = found[RING]
    table = cost_table(group, found, parse_version("2.27"), settings)
    assert table.cost(ALLREDUCE, Algorithm.COLLNET_CHAIN, SIMPLE).why_not == why_not


@pytest.mark.parametrize(("nodes", "head_GBps"), [(2, 40.0), (3, 20.0)])
def test_nvls_trees_of_two_nodes_use_the_network_both_ways(nodes: int, head_GBps: float) -> None:
    heads = Graph(Pattern.NVLS, 8, 60, 20, Path.NVL)
    group = RankGroup(8 * nodes, nodes, 90, 90, "intel", nvls=True)
    table = cost_table(group, graphs(8, 40, Path.NVL, heads), parse_version("2.30"))
    cost = table.cost(ALLREDUCE, Algorithm.NVLS_TREE, SIMPLE)
    steps = 2 * (8 * nodes - 1)
    assert cost.bandwidth_GBps == pytest.approx(8 * head_GBps * 8 * nodes / steps)


@pytest.mark.parametrize(("vendor", "overhead_us"), [("intel", 1.0), ("amd", 2.0)])
def test_rings_over_a_network_pay_the_host_for_every_step(vendor: str, overhead_us: float) -> None:
    group = RankGroup(16, 2, 90, 90, vendor)
    table = cost_table(group, graphs(8, 40, Path.NVL), parse_version("2.27"))
    # 30 steps, of which 2 cross; LL's own 0.6 us of NVLink are less than the host's.
    latency_us = 6.6 + 28 * overhead_us + 2 * 2.7
    assert table.cost(ALLREDUCE, RING, LL).latency_us == pytest.approx(latency_us)


@pytest.mark.parametrize(
    ("nodes", "rate", "bus"),
    [
        (1, 10, 0.9 * 40 * 7 / 9),
        (2, 10, 0.9 * 40 * 0.915),
        # At most 16.7 GB/s a channel, of which seven of nine parts are sent.
        (1, 25, 4 * 16.7 * 7 / 9),
    ],
)
def test_trees_of_2_8_under_ll128(nodes: int, rate: float, bus: float) -> None:
    group = RankGroup(8 * nodes, nodes, 70, 70, "intel")
    table = cost_table(group, graphs(4, rate, Path.NVL), parse_version("2.8"))
    assert table.cost(ALLREDUCE, TREE, LL128).bandwidth_GBps == pytest.approx(bus / 2)


@pytest.mark.parametrize(
    ("mebibytes", "channels"),
    [
        # 640 threads x 8 heads x 512 B are 2.5 MiB for each of 32 channels.
        (80, 32),
        (79, 31),
        # Below 24 channels half as much is enough for a thread.
        (21 * 1.25, 21),
    ],
)
def test_collnet_direct_takes_channels_away_one_by_one(mebibytes: float, channels: int) -> None:
    group = RankGroup(16, 2, 80, 80, "intel", collnet=True)
    table = cost_table(group, graphs(32, 20, Path.NVL), parse_version("2.27"))
    supply = ChannelSupply(32, 0, num_heads=8)
    found = channels_and_threads(
        table, (ALLREDUCE, Algorithm.COLLNET_DIRECT, SIMPLE), int(mebibytes * 2**20), supply
    )
    assert found.num_channels == channels


@pytest.mark.parametrize(("threshold", "channels"), [(0, 24), (64, 2)])
def test_a_threshold_of_nothing_limits_no_channel(threshold: int, channels: int) -> None:
    settings = parse_env({"NCCL_THREAD_THRESHOLDS": f"8 8 64 8 8 {threshold}"})
    supply = ChannelSupply(24, 0, settings=settings)
    found = channels_and_threads(h100(8), (ALLREDUCE, RING, SIMPLE), 2 * 512 * 64, supply)
    assert found.num_channels == channels
