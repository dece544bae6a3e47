"""Parts that runs on fewer machines stand for: a collective of NCCL's, of the same GPUs of every machine.

`clusim.simulation.approximate` decides which those are and on which machines they run,
`clusim.simulation.extrapolate_machines` how their times are followed: a term for every level or step of the algorithm.
What kernels beside them lose is followed by the same terms, as a GPU gives SMs to a collective for as long as this
lasts, and memory to what it moves there, which grows with them. What is moved is counted as of a part that is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from clusim.collectives import ScheduleBuilder
from clusim.nccl import NcclPlan
from clusim.nccl.calls.choice import choose
from clusim.nccl.programs import CollectivePayload
from clusim.schedule.dtypes import element
from clusim.simulation.api import result_of
from clusim.simulation.approximate import Fewer, fewer_machines
from clusim.simulation.extrapolate_bytes import MOST_RANKS, emit_together
from clusim.simulation.extrapolate_machines import followed
from clusim.simulation.job import RunOptions
from clusim.simulation.request import Request, ScheduleRequest
from clusim.simulation.setup import Setup
from clusim.training.breakdown import grain_error
from clusim.workload.layers import Comm
from clusim.workload.parallel.emitter import Emitter, Tails
from clusim.workload.parallel.plan import ParallelPlan

Write = Callable[[Emitter, Mapping[int, int]], Tails]
"""Writes a part on ranks that may be called otherwise there."""


class PartRan(NamedTuple):
    """Result of a part's run.

    Attributes
    ----------
    end_ps, kernels_ps : int
        When the part and when the kernels beside it are done [ps]; 0 without kernels.
    bound : float or None
        Bound on the error of its time against exact packets; None is not known.
    """

    end_ps: int
    kernels_ps: int
    bound: float | None


def ran(request: ScheduleRequest, tasks: Sequence[int], kernels: Sequence[int]) -> PartRan:
    """Run a part whose last tasks these are."""
    result = result_of(request, RunOptions(bins=2, histories=False))
    ends = result.tasks.end_ps
    done, behind = (max((int(ends[task]) for task in own), default=0) for own in (tasks, kernels))
    return PartRan(done, behind, grain_error(result))


@dataclass
class FollowedPart:
    """A part that other runs stand for.

    Attributes
    ----------
    moved : dict
        Calls and bytes sent by dimension.
    """

    fewer: Fewer
    plan: NcclPlan
    moved: dict[str, tuple[int, int]]
    note: str = ""

    def run(self, work_ps: int, hbm_bytes: int) -> PartRan:
        """Find the part beside kernels that take so long alone [ps] and move so much [bytes]; 0 is no kernels."""
        runs: dict[Request, PartRan] = {}

        def on(request: Request, plan: NcclPlan | None) -> PartRan:
            if request not in runs:
                runs[request] = part_beside(request, plan, work_ps, hbm_bytes)
            return runs[request]

        asked = self.fewer.request, self.plan, self.fewer.nodes
        end_ps, self.note = followed(*asked, lambda own, plan: on(own, plan).end_ps)
        lost_ps = 0
        if work_ps:
            lost_ps, _ = followed(*asked, lambda own, plan: on(own, plan).kernels_ps - work_ps)
        return PartRan(end_ps, work_ps + lost_ps, self.fewer.grain.step_error)


def part_beside(request: Request, plan: NcclPlan | None, work_ps: int, hbm_bytes: int) -> PartRan:
    """Run a collective beside kernels of all its ranks."""
    setup = request.setup
    builder = ScheduleBuilder(setup.known, "part")
    kernels = [
        builder.kernel(rank, compute_ps=work_ps, hbm_bytes=hbm_bytes)
        for own in (setup.together if work_ps else ())
        for rank in own.comm.ranks
    ]
    tasks = emit_together(builder, request, plan)
    return ran(request.of(builder.build()), tasks, kernels)


def followed_part(
    setup: Setup,
    plan: ParallelPlan,
    granularity: str | int,
    part: tuple[Sequence[int], Write],
) -> FollowedPart | None:
    """Return how a part of these ranks is followed; None where all of it is simulated."""
    ranks, write = part
    if setup.nodes is None or len(ranks) <= MOST_RANKS:
        return None
    asking = _Asking(plan, ScheduleBuilder(plan.fabric, "part"), only=frozenset(ranks), setup=setup)
    write(asking, {rank: rank for rank in ranks})
    found = asking.found(granularity)
    if found is None:
        return None
    moved = {name: (own.calls, own.sent_bytes) for name, own in asking.traffic.items()}
    return FollowedPart(*found, moved)


@dataclass
class _Asking(Emitter):
    """Notes what NCCL would run and counts what it moves, but writes nothing.

    Attributes
    ----------
    gpus : list of tuple of int
        Those of every machine that are in a communicator, for all communicators.
    own : Setup or None
        That of the first communicator.
    """

    setup: Setup = field(kw_only=True)
    gpus: list[tuple[int, ...]] = field(default_factory=list)
    own: Setup | None = None
    moved: CollectivePayload | None = None
    chosen: NcclPlan | None = None
    others: bool = False

    def __post_init__(self) -> None:
        """Number the GPUs of every machine."""
        super().__post_init__()
        self._number: list[int] = []
        seen: dict[int, int] = defaultdict(int)
        for zone in self._zones:
            self._number.append(seen[zone])
            seen[zone] += 1

    def found(self, granularity: str | int) -> tuple[Fewer, NcclPlan] | None:
        """Return which runs stand for what was asked for, and the plan of all of it."""
        if self.others or self.own is None or self.moved is None or self.chosen is None:
            return None
        setup = replace(self.own, beside=tuple(self.gpus[1:]))
        moved = self.moved
        request = Request(
            setup, moved.operation, moved.bytes, dtype=moved.dtype, granularity=granularity
        )
        fewer = fewer_machines(request, self.chosen)
        return None if fewer is None else (fewer, self.chosen)

    def _write(
        self, operation: str, size: int, stream: str, waits: Tails, options: dict[str, Any]
    ) -> tuple[Sequence[int], str]:
        """Note a collective; return the tasks that it would have, and its algorithm."""
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
        """Let NCCL choose what runs, as it does for the first of communicators that are beside each other."""
        every = len(gpus) * self.plan.fabric.num_zones == self.plan.fabric.num_ranks
        self.moved, self.own = moved, self.setup if every else replace(self.setup, gpus=gpus)
        width = element(moved.dtype).size_bytes
        self.chosen = choose(self.own.comm, moved.operation, moved.bytes, element_bytes=width).plan

    def _of_each(self, group: Sequence[int]) -> tuple[int, ...] | None:
        """Return which GPUs of every machine a group has, in its order; None where machines differ."""
        found: Mapping[int, list[int]] = defaultdict(list)
        for rank in group:
            found[self._zones[rank]].append(self._number[rank])
        own = {tuple(numbers) for numbers in found.values()}
        if len(found) < self.plan.fabric.num_zones or len(own) > 1 or list(group) != sorted(group):
            return None
        return own.pop()

    def _pace(self, group: Sequence[int], step: Comm) -> Tails:
        """Note what lasts longer than its messages."""
        self.others = self.others or step.least_ps > 0
        return {}
