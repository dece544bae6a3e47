"""RCCL: rings, channels, costs, protocols and notes against figures that its source and public tables give by hand."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from click.testing import CliRunner

from clusim import topology
from clusim.base.errors import InputError
from clusim.base.terms.operations import Algorithm, Collective, Protocol
from clusim.nccl import Communicator, communicator, parse_version
from clusim.nccl.env import parse_env
from clusim.nccl.rccl import recognise
from clusim_cli.main import cli

RING, TREE = Algorithm.RING, Algorithm.TREE
LL, LL128, SIMPLE = Protocol.LL, Protocol.LL128, Protocol.SIMPLE
ALLREDUCE = Collective.ALLREDUCE


def rccl(name: str, version: str = "2.27", nodes: int = 1, **env: str) -> Communicator:
    """Return a communicator of a preset."""
    fabric = topology.load(f"{name}:nodes={nodes}" if nodes > 1 else name)
    return communicator(fabric, parse_version(version), parse_env(env))


def hops(orders: list[tuple[int, ...]], *, closed: bool) -> Counter[tuple[int, int]]:
    """Return how often rings cross from one GPU to another."""
    return Counter(
        hop for order in orders for hop in pairwise((*order, order[0]) if closed else order)
    )


def test_rings_of_a_full_mesh_load_all_links_equally_in_both_directions() -> None:
    orders = list(rccl("mi300x").machines[0].ring.orders)
    assert len(orders) == 28
    assert set(hops(orders, closed=True).values()) == {4}  # 28 rings x 8 hops / 56 directed links
    assert {order[::-1] for order in orders} == set(orders)


def test_chains_between_nics_cross_each_link_once_per_eight_channels() -> None:
    orders = list(rccl("mi300x", nodes=2).machines[0].ring.orders)
    assert len(orders) == 64
    for start in range(0, 64, 8):
        assert set(hops(orders[start : start + 8], closed=False).values()) == {1}
        assert {order[0] for order in orders[start : start + 8]} == set(range(8))


@pytest.mark.parametrize("name", ["mi300x", "mi350x", "mi250x"])
def test_rings_over_two_nodes_stay_on_rails(name: str) -> None:
    for channel in rccl(name, nodes=2).channels:
        (enter, leave), (enters, leaves) = channel.ring_adapters
        assert (leave, leaves) == (enters, enter)


@pytest.mark.parametrize(
    ("name", "nodes", "channels"),
    [("mi300x", 1, 56), ("mi300x", 2, 64), ("mi350x", 1, 56), ("mi250x", 1, 16), ("mi250x", 2, 16)],
)
def test_channels_of_nodes_that_rccl_knows(name: str, nodes: int, channels: int) -> None:
    assert rccl(name, nodes=nodes).num_channels == channels


@pytest.mark.parametrize(("ranks", "channels"), [(2, 32), (4, 24)])
def test_few_gpus_have_the_channels_of_rccls_comments(ranks: int, channels: int) -> None:
    comm = communicator(topology.load("mi300x"), ranks=range(ranks))
    assert comm.num_channels == channels  # init.cc: NCCL_MIN_NCHANNELS=32 and =24


def test_channels_obey_the_limits_of_the_environment() -> None:
    assert rccl("mi300x", NCCL_MIN_NCHANNELS="112").num_channels == 112
    assert rccl("mi300x", NCCL_MAX_NCHANNELS="8").num_channels == 8


def test_costs_of_one_node_by_hand() -> None:
    table = rccl("mi300x").table
    simple, low = (table.cost(ALLREDUCE, RING, p) for p in (SIMPLE, LL))
    bus = 7 * 48.0  # links x RCCL's bandwidth of one
    assert simple.latency_us == pytest.approx(17 + 14 * 2.1)
    assert simple.bandwidth_GBps == pytest.approx(bus * 8 / 14)
    assert low.latency_us == pytest.approx(12 + 14 * 0.8)
    assert low.bandwidth_GBps == pytest.approx(bus * 0.08 * 8 / 14)
    assert not table.cost(ALLREDUCE, TREE, SIMPLE).bandwidth_GBps
    rooted = table.cost(Collective.BROADCAST, RING, LL)
    assert rooted.bandwidth_GBps == pytest.approx(bus * 0.08 * 1.65)


@pytest.mark.parametrize(("version", "crossings"), [("2.21", 4), ("2.26", 2)])
def test_costs_of_two_nodes_by_hand(version: str, crossings: int) -> None:
    cost = rccl("mi300x", version, nodes=2).table.cost(ALLREDUCE, RING, SIMPLE)
    posted = 3 * 2.0  # three posts of a proxy on AMD's processors, more than a step of 2.1 us
    assert cost.latency_us == pytest.approx(17 + (30 - crossings) * posted + crossings * 320)


def test_correction_of_a_tree_by_hand() -> None:
    table = rccl("mi300x", "2.21", nodes=2).table
    time = table.time_us(ALLREDUCE, TREE, SIMPLE, 64 << 20, 64)
    latency = 17 + 2 * (7 * 2.3 + 25)
    assert time == pytest.approx(latency + (64 << 20) / (1000 * 336 * 0.11 * 0.5))
    small = table.time_us(ALLREDUCE, TREE, SIMPLE, 64 << 10, 64)  # 2^10 x 64 B: factor 0.1
    assert small == pytest.approx(latency + (64 << 10) / (1000 * 336 * 0.11 * 0.5 * 0.1))


@pytest.mark.parametrize(
    ("size", "protocol"),
    [(1 << 20, LL), ((1 << 20) + 4, LL128), (9437184, LL128), (9437188, SIMPLE)],
)
def test_protocol_by_size_over_two_nodes_since_rocm_7(size: int, protocol: Protocol) -> None:
    assert rccl("mi300x", "2.26", nodes=2).select(ALLREDUCE, size).protocol is protocol


def test_ll128_of_an_all_reduce_grows_with_each_doubling_of_nodes() -> None:
    comm = rccl("mi300x", "2.26", nodes=4)
    assert comm.select(ALLREDUCE, 9437184 + 3145728).protocol is LL128
    assert comm.select(ALLREDUCE, 9437184 + 3145732).protocol is SIMPLE


def test_nccl_proto_replaces_the_protocol_by_size() -> None:
    comm = rccl("mi300x", "2.26", nodes=2, NCCL_PROTO="Simple")
    assert comm.select(ALLREDUCE, 1 << 20).protocol is SIMPLE


def test_ll128_needs_a_node_that_rccl_has_tuned() -> None:
    for name, version, nodes in (
        ("mi300x", "2.21", 2),
        ("mi300x", "2.27", 1),
        ("mi250x", "2.27", 2),
    ):
        reason = rccl(name, version, nodes).table.cost(ALLREDUCE, RING, LL128).why_not
        assert reason.startswith("LL128 is not tuned by RCCL for these nodes")
    assert rccl("mi300x", "2.27", 2).table.cost(ALLREDUCE, RING, LL128).bandwidth_GBps


def test_tree_from_ring_at_512_mib_on_two_nodes_as_in_a_public_table() -> None:
    """rccl-tests of 2 x 8 MI300X: 255 GB/s at 256 MiB and 323 GB/s at 512 MiB."""
    comm = rccl("mi300x", "2.21", nodes=2)
    assert comm.select(ALLREDUCE, 256 << 20).algorithm is TREE
    assert comm.select(ALLREDUCE, 512 << 20).algorithm is RING


def test_workgroups_keep_their_threads_and_ll_has_half_of_nccls_fifo() -> None:
    comm = rccl("mi300x")
    plan = comm.plan(ALLREDUCE, 8)
    assert (plan.selection.threads.num_threads, plan.num_channels) == (256, 1)
    assert (
        comm.plan(ALLREDUCE, 128 << 10).chunks.chunk_bytes == 16 << 10
    )  # 8 lines x 256 threads x 8 B


@pytest.mark.parametrize("order", [[3, 2, 1, 0, 7, 6, 5, 4], [6, 7, 4, 5, 2, 3, 0, 1]])
def test_a_known_node_is_found_in_any_order_of_its_gpus(order: list[int]) -> None:
    node = rccl("mi250x").recognised_node
    assert node is not None
    links = {tuple(sorted((order[a], order[b]))): count for (a, b), count in node.links.items()}
    found = recognise(0, {(a, b): count for (a, b), count in links.items()}, 8)
    assert found is not None
    same, place = found
    assert same is node
    for (a, b), count in node.links.items():
        assert links[tuple(sorted((place[a], place[b])))] == count


def test_a_node_with_a_missing_link_is_not_known() -> None:
    node = rccl("mi300x").recognised_node
    assert node is not None
    links = {pair: count for pair, count in node.links.items() if pair != (0, 1)}
    assert recognise(0, links, 8) is None


def test_releases_after_rccls_newest_are_the_newest() -> None:
    assert str(rccl("mi300x", "2.30").version) == "2.27"


def test_explain_names_rccl_its_release_and_what_is_not_modelled() -> None:
    result = CliRunner().invoke(
        cli, ["explain", "mi300x", "--size", "1MiB", "--nccl-version", "2.21"]
    )
    assert result.output.startswith(
        "RCCL 2.21 (ROCm 6.3, gfx942), AllReduce on mi300x: 8 GPUs, 1 node"
    )
    assert "MSCCL's all-to-all" in result.output


def test_msccl_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="RCCL_MSCCLPP_ENABLE=1: not simulated: MSCCL and MSCCL"):
        parse_env({"RCCL_MSCCLPP_ENABLE": "1"})
    assert not parse_env({"RCCL_MSCCL_ENABLE": "0"}).msccl_enable
