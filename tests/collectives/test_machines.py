"""Groups that span machines: rings, trees and two-level algorithms, and that they compute what they should."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.base.errors import InputError, ScheduleError
from clusim.collectives import ALGORITHMS, build
from clusim.collectives.api import REGISTRY
from clusim.collectives.machines import Layout, Passage, even_layout, find_layout
from clusim.collectives.rings_and_trees import Tree, find_rings, find_trees
from clusim.lowering import lower
from clusim.schedule.executor import Executor
from clusim.schedule.semantics import run_untimed
from clusim.topology import Fabric, load
from support.collective_laws import fitting
from support.covering import THOROUGH, choose_rows
from support.machines import cluster_of, pcie_machine


@cache
def pod(name: str = "dgx-h100", nodes: int = 2) -> Fabric:
    """Return machines joined by their usual network."""
    return load(name, nodes=nodes)


def proven(target: Fabric | int, operation: str, algorithm: str, size: int, **options: Any) -> None:
    """Run a collective untimed, in order and in a random order, and compare with its definition."""
    schedule = build(target, operation, algorithm, size, **options)
    for seed in (None, 1):
        executor = Executor(schedule)
        run_untimed(executor, seed)
        for check in executor.check():
            assert check.ok, (operation, algorithm, size, options, check)


def test_rings_pass_each_machine_once_from_its_rail() -> None:
    rings = find_rings(pod(nodes=3), range(24), 16)
    for channel, ring in enumerate(rings):
        assert ring.rail == channel % 8
        assert sorted(ring.order) == list(range(24))
        for machine in range(3):
            own = ring.order[8 * machine : 8 * machine + 8]
            assert {position // 8 for position in own} == {machine}
            assert own[0] == 8 * machine + ring.rail
    schedule = build(pod(nodes=3), "allreduce", "ring", 1 << 20, channels=8)
    crossing = [c for c in schedule.connections if c.src // 8 != c.dst // 8]
    assert len(crossing) == 8 * 3
    assert all(c.rail == c.channel for c in crossing)
    assert len(schedule.templates) == 1


def test_two_gpus_below_one_switch_are_both_ends() -> None:
    rings = find_rings(pod("dgx-a100"), range(16), 8)
    for ring in rings:
        pair = {ring.rail // 2 * 2, ring.rail // 2 * 2 + 1}
        assert {ring.order[0], ring.order[7]} == pair
    assert {ring.order[0] for ring in rings} == set(range(8))


def test_meshes_are_cut_where_both_ends_are_next_to_a_nic() -> None:
    rings = find_rings(pod("dgx-1v"), range(16), 12)
    assert {ring.rail for ring in rings} == {0, 1, 2, 3}
    for ring in rings:
        first = ring.order[:8]
        assert ring.links is not None
        assert ring.links[7] == ring.links[15] == -1
        assert all(link >= 0 for link in ring.links[:7])
        assert {first[0], first[7]} == {2 * ring.rail, 2 * ring.rail + 1}


def test_any_group_in_any_order_is_taken_machine_by_machine() -> None:
    (ring,) = find_rings(pod(), (9, 1, 8, 0), 1)
    assert ring.order in ((2, 0, 3, 1), (2, 0, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    (lonely,) = find_rings(pod(), (3, 8), 1)
    assert lonely.order == (0, 1)
    assert find_layout(pod(), (0, 1, 2)) is None
    assert find_layout(None, range(4)) is None


def test_trees_are_chains_below_trees_over_machines() -> None:
    trees = find_trees(pod(nodes=4), range(32), 8)
    assert len({tree.parents for tree in trees}) == 8
    for channel, tree in enumerate(trees):
        heads = [8 * machine + channel for machine in range(4)]
        crossing = [(c, p) for c, p in enumerate(tree.parents) if p >= 0 and c // 8 != p // 8]
        assert len(crossing) == 3
        assert all(child in heads and parent in heads for child, parent in crossing)
        assert tree.root in heads
        assert max(len(tree.children(position)) for position in range(32)) <= 3
    assert {tree.root for tree in trees[:4]} != {tree.root for tree in trees[4:]}


def test_rooted_trees_begin_at_the_root() -> None:
    trees: list[Tree] = find_trees(pod(nodes=3), range(24), 4, root=13)
    assert {tree.root for tree in trees} == {13}
    passage = Passage((0, 3, 2, 1), (5, 6, 7)).from_position(2)
    assert passage == Passage((2, 1, 0, 3), (7, -1, 5))


def test_channels_are_a_multiple_of_the_rails() -> None:
    assert build(pod(), "allreduce", "ring", 1 << 30).calls[0].channels == 24
    assert build(pod("aws-p5"), "allreduce", "ring", 1 << 30).calls[0].channels == 32
    assert (
        build(pod("aws-p5"), "allreduce", "ring", 1 << 30, ranks=range(8)).calls[0].channels == 24
    )
    assert build(pod(), "alltoall", None, 1 << 30).calls[0].channels == 8
    assert build(pod("gb200-nvl72"), "alltoall", None, 1 << 30).calls[0].channels == 2


def test_machines_of_different_sizes() -> None:
    layout = find_layout(pod(), (0, 1, 2, 8))
    assert isinstance(layout, Layout)
    assert layout.local_size == 0
    with pytest.raises(InputError, match="hierarchical: nodes take part with 1 to 3 ranks"):
        build(pod(), "allreduce", "hierarchical", 4096, ranks=(0, 1, 2, 8))
    proven(pod(), "allreduce", "ring", 100_004, ranks=(0, 1, 2, 8), channels=3)
    proven(pod(), "allreduce", "tree", 100_004, ranks=(0, 1, 2, 8), channels=3)
    assert [len(own) for own in even_layout(None, range(6)).machines] == [3, 3]
    assert [len(own) for own in even_layout(None, range(3)).machines] == [1, 1, 1]


SIZES = [(4, "float32"), (1000, "uint8"), (99_998, "bfloat16"), (300_024, "float64")]


@pytest.mark.covering
@pytest.mark.parametrize("algorithm", ["ring", "tree", "hierarchical", "sharp"])
@pytest.mark.parametrize(("size", "dtype"), SIZES)
def test_all_reduce_over_machines_is_right(algorithm: str, size: int, dtype: str) -> None:
    for nodes, channels in ((2, 3), (3, 2), (5, 1)):
        proven(pod(nodes=nodes), "allreduce", algorithm, size, dtype=dtype, channels=channels)


@pytest.mark.parametrize("algorithm", ["hierarchical", "sharp"])
def test_two_level_algorithms_are_right_for_any_number_of_ranks(algorithm: str) -> None:
    for ranks in (2, 3, 4, 5, 6, 8, 9, 12):
        for size in (4, 4096 + 4, 300_000):
            proven(ranks, "allreduce", algorithm, size, channels=2)
    for redop in ("max", "prod", "avg"):
        proven(8, "allreduce", algorithm, 70_000, dtype="int32", redop=redop)


IN_MACHINES = ("nvls", "multimem", "copy-engines")
OTHERS = [
    pair for pair in REGISTRY if pair[0] not in ("allreduce", "send") and pair[1] not in IN_MACHINES
]


@pytest.mark.parametrize("pair", OTHERS, ids="/".join)
def test_other_collectives_over_machines_are_right(pair: tuple[str, str]) -> None:
    size = 0 if pair[0] == "barrier" else 50_004
    root = {"root": 11} if REGISTRY[pair].has_root else {}
    proven(pod(), *pair, size, channels=2, **root)
    group = (9, 2, 0, 14, 1)[: fitting(pair, 5, 4)[0]]
    proven(pod(), *pair, size, channels=1, ranks=group, **({"root": 2} if root else {}))


TIMED = [*OTHERS, *(("allreduce", name) for name in ("ring", "tree", "hierarchical"))]


@pytest.mark.parametrize("pair", TIMED, ids="/".join)
def test_the_timed_engine_moves_the_right_data(pair: tuple[str, str]) -> None:
    size = 0 if pair[0] == "barrier" else 200_004
    schedule = build(pod(), *pair, size, channels=2)
    assert clusim.simulate(pod(), schedule, verify=True).verified


def test_racks_reach_their_nics_over_nvlink() -> None:
    fabric = pod("gb200-nvl72")
    for operation, algorithm in (("allreduce", "ring"), ("allreduce", "sharp"), ("sendrecv", None)):
        schedule = build(fabric, operation, algorithm, 1 << 20, channels=2)
        assert clusim.simulate(fabric, schedule, granularity=16384).time_ps > 0


@pytest.mark.parametrize("name", ["dgx-1v", "azure-ndv2", "aws-p4d", "a100-pcie-x8", "polaris"])
def test_machines_of_all_kinds_join(name: str) -> None:
    fabric = pod(name)
    for operation, algorithm in (("allreduce", "ring"), ("allreduce", "tree"), ("alltoall", None)):
        schedule = build(fabric, operation, algorithm, 100_000, channels=2)
        result = clusim.simulate(fabric, schedule, verify=True)
        assert result.verified, (name, operation, result.verify_note)


def test_machines_of_one_gpu(tmp_path: Path) -> None:
    fabric = cluster_of(pcie_machine(gpus=1), tmp_path, 5)
    for algorithm in ("ring", "tree", "hierarchical", "sharp"):
        schedule = build(fabric, "allreduce", algorithm, 123_456, channels=2)
        assert clusim.simulate(fabric, schedule, verify=True).verified


def test_a_job_uses_the_nics_of_its_own_gpus() -> None:
    """One GPU per machine sends over its NIC, not over those of its idle neighbours."""
    fabric = clusim.load("hgx-h100-ndr", nodes=3)
    for per_machine in (1, 2, 8):
        ranks = [8 * machine + gpu for machine in range(3) for gpu in range(per_machine)]
        layout = find_layout(fabric, ranks)
        assert layout is not None
        assert layout.live == list(range(per_machine))


def test_gpus_without_a_common_near_nic_use_all() -> None:
    """GPU 0 here and GPU 1 there have no NIC number in common."""
    layout = find_layout(clusim.load("hgx-h100-ndr", nodes=2), [0, 9])
    assert layout is not None
    assert layout.live == list(range(8))


def kinds_of_channels() -> list[tuple[str, str]]:
    """Return algorithms of every operation with every rule of channels; all in a thorough run."""
    pairs = [(operation, name) for operation, names in ALGORITHMS.items() for name in names]
    entries = [(operation, REGISTRY[operation, name]) for operation, name in pairs]
    rows = [
        {"operation": operation, "channels": str(entry.channels), "peers": entry.many_peers}
        for operation, entry in entries
    ]
    return pairs if THOROUGH else [pairs[number] for number in sorted(choose_rows(rows, 2))]


class TestRoomForProxies:
    """Over PXN all GPUs of a machine send to every NIC, whose GPU has room for 256 programs and proxies."""

    def test_channels_without_room_are_refused_before_a_program_is_written(self) -> None:
        with pytest.raises(
            ScheduleError, match=r"32 channels .* of 8 ranks: .* at most 28 channels"
        ):
            build(pod(nodes=64), "alltoall", "direct", 1 << 24, channels=32)

    def test_so_are_those_of_nccl(self) -> None:
        with pytest.raises(ScheduleError, match="272 ranks over 32 channels: 256 programs send"):
            clusim.collective("dgx-h100", "alltoall", "16MiB", channels=32, nodes=34)

    @pytest.mark.parametrize(
        ("name", "nodes"),
        [("dgx-h100", 16 if THOROUGH else 10), ("rtx4090x8-pcie", 8 if THOROUGH else 5)],
    )
    def test_what_nccl_chooses_has_room(self, name: str, nodes: int) -> None:
        found = clusim.collective(name, "alltoall", "1MiB", nodes=nodes, granularity="coarse")
        assert found.call is not None
        assert found.call.algorithm == "p2p"

    @pytest.mark.parametrize(("operation", "algorithm"), kinds_of_channels())
    def test_default_channels_have_room(self, operation: str, algorithm: str) -> None:
        size = 0 if operation == "barrier" else 4 << 20
        try:
            schedule = build(pod(nodes=4), operation, algorithm, size)
        except (
            InputError,
            ScheduleError,
        ):  # reductions of NVSwitches and copy engines do not go over machines
            assert algorithm in IN_MACHINES
            return
        lower(pod(nodes=4), schedule, "coarse")
