"""Parts extrapolated from fewer nodes or smaller sizes: a NCCL collective of the same GPUs of its nodes.

`clusim.simulation.extrapolate` decides which parts are extrapolated, from which nodes, and with which law: one term per
level or step of the algorithm.
The loss of concurrent kernels is extrapolated by the same terms: a GPU cedes SMs to a collective for its duration, and
memory bandwidth for its traffic, which grow with them. The traffic is counted as for a part that is simulated in full.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from clusim.collectives.builder import ScheduleBuilder
from clusim.lowering import Grain
from clusim.lowering.grain import COARSE, STEP, name_of
from clusim.nccl.choice import choose
from clusim.nccl.communicator import NcclPlan
from clusim.nccl.programs import CollectivePayload
from clusim.schedule.dtypes import element
from clusim.schedule.shapes import Shape
from clusim.simulation.anchors import over_bytes, over_nodes, ranks_of
from clusim.simulation.api import result_of
from clusim.simulation.extrapolate import in_one_size, in_shorter_streams
from clusim.simulation.job import RunOptions
from clusim.simulation.laws import Cut, Extrapolation
from clusim.simulation.request import Request, ScheduleRequest
from clusim.simulation.samples import emit_together
from clusim.simulation.setup import Setup
from clusim.topology.model import Fabric
from clusim.training.breakdown import grain_error
from clusim.workload.parallel.emitter import Emitter
from clusim.workload.parallel.exchanges import Tails
from clusim.workload.parallel.plan import ParallelPlan
from clusim.workload.parallel.symmetry import EqualPlaces

MOST_EPOCHS = 1 << 17
"""Target number of divisions of memory bandwidth in a run, over all GPUs, within the limits of the interval."""

LONGEST_PS = 50_000_000
"""Longest interval [ps]: layers of the intended models are a hundred times as long."""

Write = Callable[[Emitter, Mapping[int, int]], Tails]
"""Callable that emits a part on ranks renumbered by a mapping."""


class JointWork(NamedTuple):
    """Communication of some ranks at a time.

    Attributes
    ----------
    ranks : tuple of int
        All ranks that take part.
    origin : str
        The work of further nodes that it represents, with the error limit of an extrapolation; empty if none.
    """

    ranks: tuple[int, ...]
    write: Write
    origin: str = ""


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


Runner = Callable[[Request, Cut, int, int], PartRan]
"""Callable that runs a collective beside kernels, as `part_beside`."""


def kernels_beside(
    builder: ScheduleBuilder, ranks: Iterable[int], work_ps: int, hbm_bytes: int
) -> list[int]:
    """Append concurrent kernels of `work_ps` [ps] and `hbm_bytes` [bytes] to ranks; 0: none."""
    return [
        builder.kernel(rank, compute_ps=work_ps, hbm_bytes=hbm_bytes)
        for rank in (ranks if work_ps else ())
    ]


def in_intervals(fabric: Fabric, quantum_ps: int) -> Fabric:
    """Return a fabric that divides memory bandwidth in intervals of at least `quantum_ps` [ps]; cached."""
    fabrics: dict[int, Fabric] = fabric.cache.setdefault("in intervals", {})
    if quantum_ps not in fabrics:
        nodes = tuple(
            replace(node, endpoint=replace(node.endpoint, mem_quantum_ps=quantum_ps))
            if node.endpoint is not None
            and node.endpoint.mem_quantum_ps < quantum_ps
            else node
            for node in fabric.nodes
        )
        fabrics[quantum_ps] = (
            fabric if nodes == fabric.nodes else replace(fabric, nodes=nodes)
        )
    return fabrics[quantum_ps]


def run_part(
    request: ScheduleRequest,
    tasks: Sequence[int],
    kernels: Sequence[int],
    work_ps: int,
) -> PartRan:
    """Run a part with these last tasks and these kernels of `work_ps` [ps]; 0: none."""
    setup, quantum_ps = (
        request.setup,
        min(LONGEST_PS, work_ps * len(kernels) // MOST_EPOCHS),
    )
    if quantum_ps:
        # Powers of two, so that runs share fabrics.
        relaxed_fabric = in_intervals(setup.fabric, 1 << quantum_ps.bit_length() - 1)
        request = replace(request, setup=setup.on(relaxed_fabric))
    result = result_of(request, RunOptions(bins=2, histories=False))
    ends = result.tasks.end_ps
    done, behind = (
        max((int(ends[task]) for task in ids), default=0) for ids in (tasks, kernels)
    )
    return PartRan(done, behind, grain_error(result))


@dataclass(frozen=True)
class FollowedPart:
    """An extrapolated part.

    Attributes
    ----------
    moved : dict
        Calls and bytes sent by dimension.
    hops : int
        Burst-hops of the longest run; 0 for smaller sizes, which are not shortened again.
    """

    fewer: Extrapolation
    grain: Grain
    moved: dict[str, tuple[int, int]]
    hops: int = 0

    def run(
        self, work_ps: int, hbm_bytes: int, runner: Runner | None = None
    ) -> PartRan:
        """Extrapolate the part beside kernels of `work_ps` [ps] and `hbm_bytes` [bytes].

        0 is without concurrent kernels. `runner` is `part_beside` by default.
        """
        run = runner or part_beside

        def beside(request: Request, plan: Cut) -> PartRan:
            return run(request, plan, work_ps, hbm_bytes)

        def stream(request: Request, plan: Cut) -> PartRan:
            shorter = self._shorter(request, plan)
            if shorter is None:
                return beside(request, plan)
            return _over_runs(shorter, beside, work_ps)

        result = _over_runs(self.fewer, stream, work_ps)
        return result._replace(bound=self.grain.step_error)

    def _shorter(self, request: Request, plan: Cut) -> Extrapolation | None:
        """Return the extrapolation of one of the runs from smaller sizes; None if it is short."""
        longest, cut = self.fewer.runs[-1]
        share = ranks_of(request.setup, plan) / ranks_of(longest.setup, cut)
        share *= request.size_bytes / longest.size_bytes
        return over_bytes(request, plan, round(share * self.hops), linear=True)


def _over_runs(
    anchors: Extrapolation, run: Callable[[Request, Cut], PartRan], work_ps: int
) -> PartRan:
    """Extrapolate a part and the loss of concurrent kernels of `work_ps` [ps]; 0: none."""
    runs = [run(*anchor) for anchor in anchors.runs]
    end_ps, note = anchors.of([run.end_ps for run in runs])
    lost_ps = 0
    if work_ps:
        lost_ps, _ = anchors.of([run.kernels_ps - work_ps for run in runs])
    notes = dict.fromkeys(filter(None, (run.note for run in runs)))
    return PartRan(
        end_ps, work_ps + lost_ps, runs[-1].bound, "; ".join((note, *notes))
    )


def part_beside(
    request: Request, plan: Cut, work_ps: int, hbm_bytes: int
) -> PartRan:
    """Run a collective concurrently with kernels of all its ranks."""
    setup = request.setup
    assert not isinstance(plan, Shape)
    builder = ScheduleBuilder(setup.known, "part")
    ranks = [rank for group in setup.together for rank in group.comm.ranks]
    kernels = kernels_beside(builder, ranks, work_ps, hbm_bytes)
    tasks = emit_together(builder, request, plan)
    return run_part(request.of(builder.build()), tasks, kernels, work_ps)


@lru_cache(maxsize=8)
def places_of(fabric: Fabric) -> EqualPlaces:
    """Return the positions of the ranks of a topology."""
    return EqualPlaces(fabric)


def followed_part(
    setup: Setup, plan: ParallelPlan, granularity: str | int, work: JointWork
) -> FollowedPart | None:
    """Return the extrapolation of a part; None if it is simulated in full."""
    if len(work.ranks) < 2:
        return None
    asking = _Asking(
        plan,
        ScheduleBuilder(plan.fabric, "part"),
        only=frozenset(work.ranks),
        setup=setup,
    )
    work.write(asking, {rank: rank for rank in work.ranks})
    # Errors of bursts grow with the nodes: such runs are not coarse, and share no budget.
    name = name_of(granularity)
    request = asking.request(STEP if name == COARSE else name)
    if request is None:
        return None
    nodes = over_nodes(request, asking.chosen)
    fewer = None if nodes is None else in_one_size(request, nodes)
    if fewer is not None:
        return FollowedPart(*fewer, moved_by(asking), fewer[1].grant_hops)
    stream = in_shorter_streams(request, asking.chosen)
    return None if stream is None else FollowedPart(*stream, moved_by(asking))


def moved_by(emitter: Emitter) -> dict[str, tuple[int, int]]:
    """Return the calls and bytes sent that an emitter counted, by dimension."""
    return {
        name: (volume.calls, volume.sent_bytes)
        for name, volume in emitter.traffic.items()
    }


@dataclass
class _Asking(Emitter):
    """Emitter that records NCCL's choice and counts its traffic, without writing tasks.

    Attributes
    ----------
    setups : list of Setup
        Nodes of each communicator, and its GPUs of every node.
    """

    setup: Setup = field(kw_only=True)
    setups: list[Setup] = field(default_factory=list)
    moved: CollectivePayload | None = None
    chosen: NcclPlan | None = None
    others: bool = False

    def request(self, granularity: str | int) -> Request | None:
        """Return the recorded collective; None if there are others, or work that NCCL does not plan."""
        if self.others or self.moved is None or self.chosen is None:
            return None
        first, *further_setups = self.setups
        setup, moved = (
            replace(first, beside=tuple(own.gpus or () for own in further_setups)),
            self.moved,
        )
        return Request(
            setup,
            moved.operation,
            moved.bytes,
            dtype=moved.dtype,
            granularity=granularity,
        )

    def _write(
        self,
        operation: str,
        size: int,
        stream: str,
        waits: Tails,
        options: dict[str, Any],
    ) -> tuple[Sequence[int], str]:
        """Record a collective; return its ranks, and its algorithm."""
        group, moved = (
            options["ranks"],
            CollectivePayload(operation, size, options["dtype"]),
        )
        own = self._setup_of(group)
        if (
            own is None
            or self.moved not in (None, moved)
            or any(own.zones != other.zones for other in self.setups[:1])
            or not self._by_nccl(operation, options)
        ):
            self.others = True
            return group, ""
        self.setups.append(own)
        if self.moved is None:
            width = element(moved.dtype).size_bytes
            choice = choose(
                own.comm, moved.operation, moved.bytes, element_bytes=width
            )
            self.moved, self.chosen = moved, choice.plan
        return (
            group,
            self.chosen.selection.algorithm.key if self.chosen is not None else "",
        )

    def _setup_of(self, group: Sequence[int]) -> Setup | None:
        """Return the setup of a group: its nodes, and its GPUs of each; None if nodes differ."""
        result: Mapping[int, list[int]] = defaultdict(list)
        number = places_of(self.plan.fabric).local
        for rank in group:
            result[self._zones[rank]].append(number[rank])
        patterns = {tuple(numbers) for numbers in result.values()}
        if len(patterns) > 1 or list(group) != sorted(group):
            return None
        some = len(result) < self.plan.fabric.num_zones
        zones = tuple(result) if some else None
        return replace(self.setup, gpus=patterns.pop(), zones=zones)
