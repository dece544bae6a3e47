"""Parts of estimates that runs on fewer machines stand for: when, how near, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.base.kept import SampleCache
from clusim.nccl import NcclPlan
from clusim.nccl.choice import choose
from clusim.schedule.dtypes import element
from clusim.simulation import anchors, extrapolate
from clusim.simulation.extrapolate import ERROR_LIMIT
from clusim.simulation.job import RunOptions, run_job
from clusim.simulation.preparation import job_of
from clusim.simulation.request import Request
from clusim.training import TrainRequest, extrapolated
from clusim.training import step_job as module
from clusim.training.api import inputs
from clusim.training.estimate import estimated
from clusim.training.extrapolated import (
    FollowedPart,
    JointWork,
    PartRan,
    followed_part,
    part_beside,
)
from clusim.training.step_job import JobEmitter, JointGroups
from clusim.workload import Emitter, make_plan
from clusim.workload.parallel.exchanges import Exchange, Tails
from support.wires import leaving_gpus
from support.workloads import tiny

FLAT = "single:node=alps-gh200"
"""Machines of four GPUs on one switch."""

MACHINES = 12
"""More than the 8 that stand for them where NCCL takes trees."""

MIB = 1 << 20
BRIEF = RunOptions(histories=False)
DDP = "parallel: {data: 48}\ndata: {kind: ddp}"
TENSOR = "parallel: {tensor: 4, data: 12}\ndata: {kind: ddp}"


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fewer machines stand also for groups of one GPU of each."""
    monkeypatch.setattr(anchors, "MOST_RANKS", 8)


def asked(text: str = DDP, machine: Any = FLAT, nodes: int | None = MACHINES) -> TrainRequest:
    work = tiny(text, collectives="nccl", batch="{global: 1920, micro: 1}")
    return TrainRequest(*inputs(work, machine, nodes), steps=1, granularity="coarse")


def part(
    request: TrainRequest, size: int = MIB, granularity: str | int = "coarse", dim: str = "replica"
) -> FollowedPart | None:
    """Return how an all-reduce of the replicas of a request is followed."""
    plan = make_plan(request.workload, request.setup.known)
    groups = plan.mesh.groups(dim, 0)

    def write(writer: Emitter, there: Any) -> Tails:
        own = [tuple(there[rank] for rank in group) for group in groups]
        return writer.collectives(Exchange("replica", "allreduce", size), own)

    ranks = [rank for group in groups for rank in group]
    return followed_part(request.setup, plan, granularity, JointWork(tuple(ranks), write))


def complete(found: FollowedPart, size: int, nodes: int = MACHINES) -> tuple[Request, NcclPlan]:
    """Return the collective that is followed, in the same bursts, and its plan."""
    some = found.fewer.runs[-1][0]
    whole = replace(some, setup=replace(some.setup, nodes=nodes), size_bytes=size)
    width = element(whole.dtype).size_bytes
    plan = choose(whole.setup.comm, whole.operation, size, element_bytes=width).plan
    assert plan is not None
    return whole, plan


@pytest.mark.parametrize(
    ("text", "nodes"), [(DDP, 12), (TENSOR, 16)], ids=["all GPUs", "a GPU of each of some nodes"]
)
def test_a_followed_part_is_as_near_the_whole_as_is_said(
    text: str, nodes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asked(text, nodes=nodes)
    found = estimated(request, SampleCache(tmp_path / "followed"))
    monkeypatch.setattr(extrapolate, "MANY", ())
    whole = estimated(request, SampleCache(tmp_path / "whole"))
    assert found.followed > 0 == whole.followed
    assert abs(found.step_ps[-1] - whole.step_ps[-1]) <= found.followed_ps
    assert found.mean("communication") == pytest.approx(
        whole.mean("communication"), rel=ERROR_LIMIT
    )
    assert found.kernel_slowdown_s == pytest.approx(whole.kernel_slowdown_s, rel=0.05)
    assert found.traffic == whole.traffic
    assert found.executed_flops == whole.executed_flops


@pytest.mark.parametrize(
    ("size", "machines"), [(8 * MIB, "4 and 8"), (24 * MIB, "2 and 4")], ids=["tree", "ring"]
)
def test_kernels_lose_as_much_as_beside_the_whole(size: int, machines: str) -> None:
    found = part(asked(), size)
    assert found is not None
    # 2 TB/s of memory traffic beside, for longer than the collective takes.
    beside = 40 * 10**9, 80 * 10**9
    whole, followed = part_beside(*complete(found, size), *beside), found.run(*beside)
    assert followed.note.startswith(f"from {machines} nodes")
    assert followed.end_ps == pytest.approx(whole.end_ps, rel=ERROR_LIMIT)
    lost_ps = whole.kernels_ps - beside[0]
    assert lost_ps > 0
    assert followed.kernels_ps - beside[0] == pytest.approx(lost_ps, rel=ERROR_LIMIT)


def test_a_long_stream_is_extrapolated_from_two_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further bytes need equal times."""
    monkeypatch.setattr(extrapolate, "LONG_BYTES", 0)
    monkeypatch.setattr(anchors, "STREAM_HOPS", 900_000)
    size, beside = 512 * MIB, (40 * 10**9, 80 * 10**9)
    found = part(asked("parallel: {data: 8}\ndata: {kind: ddp}", nodes=2), size)
    assert found is not None
    whole, short = part_beside(*complete(found, size, 2), *beside), found.run(*beside)
    assert "two smaller sizes" in short.note
    assert short.end_ps == pytest.approx(whole.end_ps, rel=0.02)
    lost_ps = whole.kernels_ps - beside[0]
    assert short.kernels_ps - beside[0] == pytest.approx(lost_ps, rel=ERROR_LIMIT)


def test_a_level_costs_time_and_kernels_the_same_wherever_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trees over 4, 8 and 16 machines have 2, 3 and 4 levels: 16 cost what 8 do, and a level more."""

    def law(request: Request, _plan: NcclPlan, work_ps: int, _bytes: int) -> PartRan:
        levels = {4: 2, 8: 3}[request.setup.nodes or 0]
        size = request.size_bytes
        return PartRan(size + 100 * levels, work_ps + size // 4 + 7 * levels, 0.2)

    monkeypatch.setattr(extrapolated, "part_beside", law)
    found = part(asked(DDP.replace("48", "64"), nodes=16))
    assert found is not None
    assert found.run(1000, 1)[:2] == (MIB + 400, 1000 + MIB // 4 + 28)
    assert found.run(0, 0)[:2] == (MIB + 400, 0)


def test_a_step_costs_time_and_kernels_the_same_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rings over 8 and 16 ranks give the line for 48."""

    def law(request: Request, _plan: NcclPlan, work_ps: int, _bytes: int) -> PartRan:
        ranks = request.setup.num_ranks
        return PartRan(5 + 10 * ranks, work_ps + 3 * ranks, 0.2)

    monkeypatch.setattr(extrapolated, "part_beside", law)
    found = part(asked(), 64 * MIB)
    assert found is not None
    assert found.run(1000, 1)[:2] == (485, 1144)


def test_what_a_followed_part_moves_is_what_leaves_the_gpus_of_the_whole() -> None:
    found = part(asked(DDP.replace("48", "80"), "dgx-h100", 10), 12 * MIB)
    assert found is not None
    whole = run_job(job_of(complete(found, 12 * MIB, 10)[0], BRIEF), BRIEF)
    assert whole.call is not None
    assert whole.call.algorithm == "nvlstree"
    calls, sent_bytes = found.moved["data"]
    assert calls == 1
    assert sent_bytes == pytest.approx(leaving_gpus(whole.wires), rel=1e-3)


def test_what_fewer_machines_cannot_stand_for_is_simulated_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert part(asked()) is not None
    # What was asked for by its size, a network that gets narrower, a fabric that is there already, few machines.
    assert part(asked(), granularity=65536) is None
    assert part(asked(), granularity="packet") is None
    assert part(asked(machine="alps-gh200")) is None
    assert part(asked(machine=clusim.load(FLAT, nodes=MACHINES), nodes=None)) is None
    assert part(asked(DDP.replace("48", "32"), nodes=8)) is None
    # An algorithm that is not NCCL's choice, and groups that take other GPUs on other machines.
    told = "\ncommunicators: {data: {algorithm: {allreduce: ring}}}"
    assert part(asked(DDP + told)) is None
    order = [rank ^ (rank >= 4) for rank in range(48)]
    turned = f"parallel: {{tensor: 4, data: 12, ranks: {order}}}\ndata: {{kind: ddp}}"
    assert part(asked(TENSOR)) is not None
    assert part(asked(turned)) is None
    # `auto` is followed only where much is to be simulated.
    assert part(asked(), granularity="auto") is None
    monkeypatch.setattr(extrapolate, "MANY_HOPS", 0)
    assert part(asked(), granularity="auto") is not None


def test_groups_on_some_nodes_run_on_the_first_of_their_own_nodes() -> None:
    last = TENSOR.replace("12}", f"12, ranks: {list(range(16, 64))}}}")
    found, whole = part(asked(last, nodes=16), 16 * MIB), part(asked(TENSOR), 16 * MIB)
    assert found is not None
    assert whole is not None
    zones = [run.setup.zones for run, _ in found.fewer.runs]
    assert zones == [tuple(range(4, 4 + nodes)) for nodes in (4, 8)]
    # The switch is the only way between nodes: the nodes of a smaller system need as long.
    assert found.run(0, 0) == whole.run(0, 0)
    assert found.moved == whole.moved


def test_groups_on_different_nodes_at_a_time_are_simulated_whole() -> None:
    text = "parallel: {tensor: 4, data: 16}\ndata: {kind: zero1, shard: 8}"
    assert part(asked(text, nodes=16), dim="copy") is None
    assert part(asked(text, nodes=16), dim="shard") is None


def test_equal_groups_inside_other_nodes_are_not_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share no wires, so that the step is the same to the picosecond."""
    work = "parallel: {tensor: 2, data: 8}\ntensor: {sequence_parallel: true}"
    found = estimated(asked(work, nodes=4), SampleCache(tmp_path / "near"))
    monkeypatch.setattr(JobEmitter, "_joint", every_group)
    whole = estimated(asked(work, nodes=4), SampleCache(tmp_path / "whole"))
    assert found.followed == whole.followed == 0
    assert (found.step_ps, found.ranks, found.traffic) == (
        whole.step_ps,
        whole.ranks,
        whole.traffic,
    )


def test_one_of_many_equal_sets_of_nodes_is_as_near_as_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copies of an embedding in the first and the last stage meet on six pairs of nodes."""
    text = "parallel: {tensor: 4, pipeline: 2, data: 6}\ndata: {kind: ddp}"
    request = asked(text)
    monkeypatch.setattr(module, "MOST_TOGETHER", 16)
    found = estimated(request, SampleCache(tmp_path / "one"))
    monkeypatch.setattr(JobEmitter, "_joint", every_group)
    whole = estimated(request, SampleCache(tmp_path / "whole"))
    assert found.followed > 0
    assert whole.followed == 0
    assert abs(found.step_ps[-1] - whole.step_ps[-1]) <= found.followed_ps
    assert found.traffic == whole.traffic


def every_group(self: JobEmitter, groups: Any) -> JointGroups:
    """Return all groups, for a simulation in full."""
    return JointGroups(list(groups), self._shown(groups))


def test_a_step_is_off_by_what_its_exposed_parts_may_be_off(tmp_path: Path) -> None:
    found = estimated(asked(DDP.replace("ddp}", "ddp, overlap: false}")), SampleCache(tmp_path))
    assert found.mean("exposed") == pytest.approx(found.mean("communication"))
    assert found.followed_ps == pytest.approx(ERROR_LIMIT * found.mean("exposed") * 1e12)
    assert found.error_bound is None
    said = found.to_json()["estimate"]
    assert said["parts_followed"] == found.followed > 0
    assert said["followed_error_s"] == found.followed_ps / 1e12
    rows = dict(found.origin)
    assert rows["followed"].startswith(f"{found.followed} parts from fewer nodes; error limit ")
    again = estimated(asked(DDP.replace("ddp}", "ddp, overlap: false}")), SampleCache(tmp_path))
    assert (again.simulated, again.followed_ps) == (0, found.followed_ps)
