"""Parts extrapolated from fewer nodes: a NCCL collective of the same GPUs of every node.

`clusim.simulation.extrapolate` decides which parts are extrapolated, from which nodes, and with which law: one term per
level or step of the algorithm.
The loss of concurrent kernels is extrapolated by the same terms: a GPU cedes SMs to a collective for its duration, and
memory bandwidth for its traffic, which grow with them. The traffic is counted as for a part that is simulated in full.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from clusim.collectives import ScheduleBuilder
from clusim.lowering import Grain
from clusim.nccl import NcclPlan
from clusim.nccl.choice import choose
from clusim.nccl.programs import CollectivePayload
from clusim.schedule.dtypes import element
from clusim.schedule.shapes import Shape
from clusim.simulation.anchors import MOST_RANKS, Cut, Extrapolation, over_nodes
from clusim.simulation.api import result_of
from clusim.simulation.extrapolate import in_one_size
from clusim.simulation.job import RunOptions
from clusim.simulation.request import Request, ScheduleRequest
from clusim.simulation.samples import emit_together
from clusim.simulation.setup import Setup
from clusim.training.breakdown import grain_error
from clusim.workload.layers import Comm
from clusim.workload.parallel.emitter import Emitter, Tails
from clusim.workload.parallel.plan import ParallelPlan

Write = Callable[[Emitter, Mapping[int, int]], Tails]
"""Callable that emits a part on ranks renumbered by a mapping."""


class PartRan(NamedTuple):
    """Result of a part's run.

    Attributes
    ----------
    end_ps, kernels_ps : int
        End of the part, and of the concurrent kernels [ps]; 0 without kernels.
    bound : float or None
        Error limit of its time against exact packets; None is unknown.
    note : str
        The runs on fewer nodes that it was extrapolated from; empty if simulated in full.
    """

    end_ps: int
    kernels_ps: int
    bound: float | None
    note: str = ""


def kernels_beside(
    builder: ScheduleBuilder, ranks: Iterable[int], work_ps: int, hbm_bytes: int
) -> list[int]:
    """Append concurrent kernels of `work_ps` [ps] and `hbm_bytes` [bytes] to ranks; 0: none."""
    return [
        builder.kernel(rank, compute_ps=work_ps, hbm_bytes=hbm_bytes)
        for rank in (ranks if work_ps else ())
    ]


def ran(request: ScheduleRequest, tasks: Sequence[int], kernels: Sequence[int]) -> PartRan:
    """Run a part with these last tasks and these kernels."""
    result = result_of(request, RunOptions(bins=2, histories=False))
    ends = result.tasks.end_ps
    done, behind = (max((int(ends[task]) for task in ids), default=0) for ids in (tasks, kernels))
    return PartRan(done, behind, grain_error(result))


@dataclass(frozen=True)
class FollowedPart:
    """An extrapolated part.

    Attributes
    ----------
    moved : dict
        Calls and bytes sent by dimension.
    """

    fewer: Extrapolation
    grain: Grain
    moved: dict[str, tuple[int, int]]

    def run(self, work_ps: int, hbm_bytes: int) -> PartRan:
        """Extrapolate the part beside kernels of `work_ps` [ps] and `hbm_bytes` [bytes].

        0 is without concurrent kernels.
        """
        runs = [part_beside(*run, work_ps, hbm_bytes) for run in self.fewer.runs]
        end_ps, note = self.fewer.of([run.end_ps for run in runs])
        lost_ps = 0
        if work_ps:
            lost_ps, _ = self.fewer.of([run.kernels_ps - work_ps for run in runs])
        return PartRan(end_ps, work_ps + lost_ps, self.grain.step_error, note)


def part_beside(request: Request, plan: Cut, work_ps: int, hbm_bytes: int) -> PartRan:
    """Run a collective concurrently with kernels of all its ranks."""
    setup = request.setup
    assert not isinstance(plan, Shape)
    builder = ScheduleBuilder(setup.known, "part")
    ranks = [rank for group in setup.together for rank in group.comm.ranks]
    kernels = kernels_beside(builder, ranks, work_ps, hbm_bytes)
    tasks = emit_together(builder, request, plan)
    return ran(request.of(builder.build()), tasks, kernels)


def followed_part(
    setup: Setup,
    plan: ParallelPlan,
    granularity: str | int,
    part: tuple[Sequence[int], Write],
) -> FollowedPart | None:
    """Return the extrapolation of a part of these ranks; None if it is simulated in full."""
    ranks, write = part
    if setup.nodes is None or len(ranks) <= MOST_RANKS:
        return None
    asking = _Asking(plan, ScheduleBuilder(plan.fabric, "part"), only=frozenset(ranks), setup=setup)
    write(asking, {rank: rank for rank in ranks})
    request = asking.request(granularity)
    nodes = None if request is None else over_nodes(request, asking.chosen)
    found = None if request is None or nodes is None else in_one_size(request, nodes)
    return None if found is None else FollowedPart(*found, moved_by(asking))


def moved_by(emitter: Emitter) -> dict[str, tuple[int, int]]:
    """Return the calls and bytes sent that an emitter counted, by dimension."""
    return {name: (volume.calls, volume.sent_bytes) for name, volume in emitter.traffic.items()}


@dataclass
class _Asking(Emitter):
    """Emitter that records NCCL's choice and counts its traffic, without writing tasks.

    Attributes
    ----------
    gpus : list of tuple of int
        GPUs per node of each communicator, by their local number.
    own : Setup or None
        Setup of the first communicator.
    """

    setup: Setup = field(kw_only=True)
    gpus: list[tuple[int, ...]] = field(default_factory=list)
    own: Setup | None = None
    moved: CollectivePayload | None = None
    chosen: NcclPlan | None = None
    others: bool = False

    def __post_init__(self) -> None:
        """Number the GPUs of every node."""
        super().__post_init__()
        self._number: list[int] = []
        seen: dict[int, int] = defaultdict(int)
        for zone in self._zones:
            self._number.append(seen[zone])
            seen[zone] += 1

    def request(self, granularity: str | int) -> Request | None:
        """Return the recorded collective; None if there are others, or work that NCCL does not plan."""
        if self.others or self.own is None or self.moved is None or self.chosen is None:
            return None
        setup, moved = replace(self.own, beside=tuple(self.gpus[1:])), self.moved
        return Request(
            setup, moved.operation, moved.bytes, dtype=moved.dtype, granularity=granularity
        )

    def _write(
        self, operation: str, size: int, stream: str, waits: Tails, options: dict[str, Any]
    ) -> tuple[Sequence[int], str]:
        """Record a collective; return its ranks, and its algorithm."""
        group, moved = options["ranks"], CollectivePayload(operation, size, options["dtype"])
        gpus = self._of_each(group)
        if gpus is None or self.moved not in (None, moved) or not self._by_nccl(operation, options):
            self.others = True
            return group, ""
        self.gpus.append(gpus)
        if self.moved is None:
            self._choose(moved, gpus)
        return group, self.chosen.selection.algorithm.own if self.chosen is not None else ""

    def _choose(self, moved: CollectivePayload, gpus: tuple[int, ...]) -> None:
        """Record NCCL's choice for the first of the concurrent communicators."""
        every = len(gpus) * self.plan.fabric.num_zones == self.plan.fabric.num_ranks
        self.moved, self.own = moved, self.setup if every else replace(self.setup, gpus=gpus)
        width = element(moved.dtype).size_bytes
        self.chosen = choose(self.own.comm, moved.operation, moved.bytes, element_bytes=width).plan

    def _of_each(self, group: Sequence[int]) -> tuple[int, ...] | None:
        """Return the GPUs of a group per node, by local number; None if nodes differ."""
        result: Mapping[int, list[int]] = defaultdict(list)
        for rank in group:
            result[self._zones[rank]].append(self._number[rank])
        patterns = {tuple(numbers) for numbers in result.values()}
        if (
            len(result) < self.plan.fabric.num_zones
            or len(patterns) > 1
            or list(group) != sorted(group)
        ):
            return None
        return patterns.pop()

    def _pace(self, group: Sequence[int], step: Comm) -> Tails:
        """Record whether a step lasts longer than its messages."""
        self.others = self.others or step.least_ps > 0
        return {}
