"""Kernels: fewer machines and shorter streams in place of what would take too long, forced choices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusim.base.errors import InputError
from clusim.base.terms.operations import Algorithm, Protocol
from clusim.lowering import grain
from clusim.nccl.choice import NcclOverrides, runnable
from clusim.nccl.connect import NONE, double_tree
from clusim.nccltests.jobs import kernel
from clusim.simulation import anchors, extrapolate
from clusim.simulation.anchors import tree_levels
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.studies.crossover import crossover, table_lines, tuner_csv

MIB = 1 << 20
RING_LL = (("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "LL"))
TREE_LL = (("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "LL"))


@pytest.mark.parametrize(
    ("env", "operation", "tolerance"),
    [(RING_LL, "allreduce", 0.05), (TREE_LL, "allreduce", 0.15), ((), "alltoall", 0.15)],
)
def test_fewer_machines_predict_many(
    env: tuple[tuple[str, str], ...],
    operation: str,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup("alps-gh200", 16 if env is TREE_LL else 8, None, "2.23", env)
    whole = kernel(Request(setup, operation, 64 << 10))
    most = "MOST_MESSAGING" if operation == "alltoall" else "MOST_RANKS"
    monkeypatch.setattr(anchors, most, 16)
    monkeypatch.setattr(extrapolate, "MANY_HOPS", 0)
    fewer = kernel(Request(setup, operation, 64 << 10))
    assert not whole.notes
    assert "nodes, " in fewer.notes[0]
    assert fewer.time_ps == pytest.approx(whole.time_ps, rel=tolerance)


def test_long_streams_are_followed_from_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(Setup("gh200x4-mesh", env=RING_LL), "allreduce", 64 * MIB)
    small = replace(grain.RULES["auto"], exact_hops=50_000, target_hops=50_000)
    monkeypatch.setitem(grain.RULES, "auto", small)
    whole = kernel(request)
    monkeypatch.setattr(extrapolate, "LONG_HOPS", 50_000)
    monkeypatch.setattr(anchors, "STREAM_HOPS", 50_000)
    short = kernel(request)
    assert "bursts of" in whole.notes[0]
    assert short.notes == (
        "from two smaller sizes, linear in the size; error limit 15%, against the complete run in bursts",
    )
    # In bursts of one size, the first of these streams is 1.4% faster than the rest.
    assert short.time_ps == pytest.approx(whole.time_ps, rel=0.02)


def test_quick_runs_are_near_those_of_auto() -> None:
    request = Request(Setup("gh200x4-mesh"), "allreduce", 64 * MIB)
    whole, quick = kernel(request), kernel(replace(request, granularity="quick"))
    assert not whole.notes
    assert "quick" in quick.notes[0]
    assert not quick.followed
    assert quick.time_ps == pytest.approx(whole.time_ps, rel=0.02)
    # Sizes of a curve follow the same two runs.
    lines = Setup("gh200x4-mesh", env=RING_LL)
    long, longer = (
        kernel(replace(request, setup=lines, granularity="quick", size_bytes=size * MIB))
        for size in (256, 512)
    )
    assert long.followed
    assert longer.followed
    assert longer.time_ps == pytest.approx(2 * long.time_ps, rel=0.02)


def test_everything_that_can_run_runs() -> None:
    setup = Setup("dgx-h100")
    ways = runnable(setup.comm, "allreduce")
    assert (Algorithm.NVLS, Protocol.SIMPLE) in ways
    assert (Algorithm.RING, Protocol.LL) in ways
    for way in ways:
        found = kernel(Request(setup, "allreduce", 4096, wanted=NcclOverrides(*way)))
        assert (found.algorithm, found.protocol) == (way[0].value, way[1].value)
        assert found.time_ps > 0


@pytest.mark.parametrize(
    "operation",
    ["all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall", "gather", "scatter"],
)
def test_all_programs_have_a_time(operation: str) -> None:
    assert kernel(Request(Setup("a100x4-mesh"), operation, 64 << 10)).time_ps > 1_000_000


def test_hypercube() -> None:
    setup = Setup("a100x4-mesh")
    assert kernel(Request(setup, "hypercube", 64 << 10)).time_ps > 0
    with pytest.raises(InputError, match="power of two"):
        kernel(Request(Setup("dgx-h100", per_node=6), "hypercube", 96 << 10))


def test_alltoallv_is_bound_by_its_bytes_or_its_largest_message() -> None:
    """A rank sends n / (n - 1) of the bytes of alltoall, and at most twice as much over the channels to a peer."""
    setup, size = Setup("dgx-h100"), 64 << 20
    even, uneven = (
        kernel(Request(setup, name, size)).time_ps for name in ("alltoall", "weighted_alltoall")
    )
    assert even * 8 / 7 <= uneven <= 2 * even


def test_crossover_finds_where_the_best_changes() -> None:
    found = crossover(Setup("gh200x4-mesh"), sizes=(1024, 2 * MIB), jobs=1)
    assert found.sizes[0].best in ("oneshot-ll", "twoshot-ll")
    assert found.sizes[0].nccl_best == "Ring LL"
    assert found.sizes[1].nccl_best == "Ring LL128"
    lines = tuner_csv(found)
    assert lines[1:] == [
        "allreduce,0,46340,ring,ll,-1,1,4,-1,-1",
        f"allreduce,46341,{(1 << 63) - 1},ring,ll128,-1,1,4,-1,-1",
    ]
    titles = "\n".join(table_lines(found)).partition("1 KiB")[0]
    assert "oneshot" in titles
    assert set(found.left_out) == {"multimem"}
    assert found.to_json()["sizes"][1]["nccl_chooses"] == "Ring LL"


def test_crossover_of_what_has_no_choice() -> None:
    with pytest.raises(InputError, match="no choice of algorithms"):
        crossover(Setup("dgx-h100"), "alltoall", (8,))


def test_a_level_of_a_tree_adds_its_time_and_nothing_of_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T(n) = T(8) + (levels of n - levels of 8) x (first chunk on 8 - on 4): against a whole run of 16 machines."""
    setup = Setup("alps-gh200", 16, 1, "2.23", (("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "LL128")))
    for size in (16 << 10, 4 * MIB):
        monkeypatch.setattr(extrapolate, "MANY_HOPS", 1 << 40)
        whole = kernel(Request(setup, "allreduce", size))
        monkeypatch.setattr(extrapolate, "MANY_HOPS", 0)
        monkeypatch.setattr(anchors, "MOST_RANKS", 8)
        fewer = kernel(Request(setup, "allreduce", size))
        assert "from 4 and 8 nodes, each further level" in fewer.notes[0]
        assert fewer.time_ps == pytest.approx(whole.time_ps, rel=0.02)


def test_a_step_of_a_ring_of_many_machines_is_one_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup("alps-gh200", 16, 1, "2.23", RING_LL)
    whole = kernel(Request(setup, "allreduce", 256 << 10))
    monkeypatch.setattr(extrapolate, "MANY_HOPS", 0)
    monkeypatch.setattr(anchors, "MOST_RANKS", 4)
    fewer = kernel(Request(setup, "allreduce", 256 << 10))
    assert fewer.time_ps == pytest.approx(whole.time_ps, rel=0.005)


def depth(tree: int, num_nodes: int) -> int:
    """Return the nodes above the deepest node of one of NCCL's trees."""
    above = [double_tree(num_nodes, node)[tree][0] for node in range(num_nodes)]
    most = 0
    for node in range(num_nodes):
        levels, at = 0, above[node]
        while at != NONE:
            levels, at = levels + 1, above[at]
        most = max(most, levels)
    return most


@pytest.mark.parametrize("nodes", [2, 3, 4, 8, 9, 31, 128, 540])
def test_levels_of_trees_are_those_of_the_deepest_machine(nodes: int) -> None:
    """The root of NCCL's trees has one child, below which a binary tree of n - 1 machines lies."""
    assert tree_levels(nodes) == max(depth(tree, nodes) for tree in (0, 1))
