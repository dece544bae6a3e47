"""Parts of training steps, simulated once and cached on disk.

A part is the joint communication of some ranks of a stage, with or without concurrent kernels, written as in the step
and run by the engine. Its result is cached by content: location of the ranks, communication, and the settings of the
workload.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from math import log2
from typing import Any

from clusim.collectives import ScheduleBuilder
from clusim.jobs.times import Times
from clusim.lowering.grain import COARSE, STEP, STEP_ERROR, name_of
from clusim.nccl import NcclPlan
from clusim.nccl.choice import way_of
from clusim.simulation.anchors import Cut
from clusim.simulation.extrapolate import ERROR_LIMIT
from clusim.simulation.request import Request, ScheduleRequest
from clusim.simulation.setup import Setup
from clusim.topology.model import Fabric
from clusim.topology.subset import on_nodes
from clusim.training.clock import PhaseTime
from clusim.training.extrapolated import (
    FollowedPart,
    JointWork,
    PartRan,
    followed_part,
    kernels_beside,
    moved_by,
    part_beside,
    ran,
)
from clusim.workload.mesh import zones_of
from clusim.workload.parallel.emitter import Emitter
from clusim.workload.parallel.plan import ParallelPlan
from clusim.workload.parallel.symmetry import EqualPlaces
from clusim.workload.parallel.volumes import Volume

LONGER = 4
"""Duration of kernels beside a part, relative to the part in isolation: they outlast the slowed part."""


@dataclass(frozen=True, eq=False)
class StepPart:
    """Known facts of a part, compared by identity.

    Attributes
    ----------
    moved : dict
        Calls and bytes sent by dimension.
    bound : float or None
        Error limit of its time against exact packets; None is unknown.
    followed : str
        The runs on fewer nodes, or of fewer groups, that it was extrapolated from; empty if simulated in full.
    """

    took: PhaseTime
    moved: dict[str, tuple[int, int]]
    bound: float | None
    followed: str = ""

    def volumes(self) -> dict[str, Volume]:
        """Return the traffic by dimension."""
        return {dim: Volume(*volume) for dim, volume in self.moved.items()}


@dataclass
class StepParts:
    """Parts of a plan, from the cache or from the engine.

    Attributes
    ----------
    bounds : list
        `StepPart.bound` of all requested parts.
    simulated : set
        Parts that the engine had to run.
    longer : bool
        Whether extrapolated parts are lengthened by their error limit.
    seed : int
        Seed of random events, such as bit errors.
    """

    setup: Setup
    plan: ParallelPlan
    times: Times
    bounds: list[float | None] = field(default_factory=list)
    simulated: set[Any] = field(default_factory=set)
    longer: bool = False
    seed: int = 0
    _known: dict[Any, StepPart] = field(default_factory=dict)
    _sized: set[Any] = field(default_factory=set)
    _fewer: dict[Any, FollowedPart | None] = field(default_factory=dict)
    _grounds: dict[tuple[int, ...], ParallelPlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        workload = self.plan.workload
        said = (
            workload.communicators,
            workload.collectives,
            workload.experts,
            workload.pipeline.scatter_gather,
        )
        self._said = [str(item) for item in said] + [self.plan.precision.dtype]
        self._machine = self.setup.identity
        self._zones = zones_of(self.plan.fabric)

    @property
    def different(self) -> int:
        """Return the number of parts."""
        return len(self._known.keys() | self._sized)

    @property
    def followed(self) -> int:
        """Return the number of parts that were extrapolated from fewer nodes."""
        return sum(1 for part in self._known.values() if part.followed)

    def find(self, key: Any, work: JointWork, traffic_Bps: float | None = None) -> StepPart:
        """Return the part of some work.

        Parameters
        ----------
        key : object
            Complete description except for the location; its repr is the cache key.
        traffic_Bps : float or None
            Memory traffic of the concurrent kernels [bytes/s]; None is without kernels.
        """
        intensity = rounded(traffic_Bps)
        near = key, work.ranks, intensity
        if near not in self._known:
            question = (*self._content(key, work), intensity)

            def simulate() -> dict[str, Any]:
                return self._from_coarse(question) or self._simulate(key, work, intensity)

            self._known[near] = self._read(self.times.stored(question, simulate))
        result = self._known[near]
        self.bounds.append(result.bound)
        return result

    def _coarse(self, question: tuple[Any, ...]) -> Any:
        """Return the answer of a coarse run of the same part; None at a granularity other than `STEP`."""
        if name_of(self.times.granularity) != STEP:
            return None
        return self.times.peek(question, str(self.times.granularity).replace(STEP, COARSE))

    def _from_coarse(self, question: tuple[Any, ...]) -> Any:
        """Return the answer of a coarse run of the same part if it was as fine; otherwise None."""
        answer = self._coarse(question)
        fine = answer is not None and answer["bound"] is not None and answer["bound"] <= STEP_ERROR
        return answer if fine else None

    def _isolated_ps(self, key: Any, work: JointWork) -> int:
        """Return the time of a part without kernels [ps], to size the kernels beside it.

        A coarse run suffices: only kernels that end before the part would change its result.
        """
        near = key, work.ranks, None
        answer = None if near in self._known else self._coarse((*self._content(key, work), None))
        if answer is None:
            return self.find(key, work).took.time_ps
        self._sized.add(near)
        return int(answer["time_ps"])

    def _content(self, key: Any, work: JointWork) -> tuple[Any, ...]:
        """Return the question of a part, without its granularity and kernels."""
        return self._place(work.ranks), repr(key), self._said, self.seed

    def _read(self, answer: dict[str, Any]) -> StepPart:
        """Return a part from its cached form."""
        followed_note = answer["followed"]
        times = 1 + ERROR_LIMIT if followed_note and self.longer else 1
        took = PhaseTime(round(answer["time_ps"] * times), answer["share"])
        moved = {name: (calls, sent) for name, (calls, sent) in answer["moved"].items()}
        return StepPart(took, moved, answer["bound"], followed_note)

    def _ground(self, ranks: tuple[int, ...]) -> tuple[ParallelPlan, dict[int, int]]:
        """Return the plan on the nodes of some ranks only, and their rank numbers there."""
        zones = tuple(sorted({self._zones[rank] for rank in ranks}))
        if zones not in self._grounds:
            self._grounds[zones] = _on_machines(self.plan, zones)
        plan = self._grounds[zones]
        called = dict(zip(self.plan.mesh.ranks, plan.mesh.ranks, strict=True))
        return plan, {rank: called[rank] for rank in ranks}

    def _place(self, ranks: tuple[int, ...]) -> tuple[Any, ...]:
        """Return the location of ranks; inside one node it does not depend on the other nodes."""
        inside = len({self._zones[rank] for rank in ranks}) == 1
        nodes = None if inside else self.setup.nodes
        return self._machine, nodes, _places(self.plan.fabric).of(ranks).key

    def _simulate(self, key: Any, work: JointWork, intensity: str | None) -> dict[str, Any]:
        """Run a part, beside kernels if `intensity` gives their memory traffic."""
        self.simulated.add((repr(key), work.ranks, intensity))
        work_ps = bytes_there = 0
        if intensity is not None:
            work_ps = _rounded_up(LONGER * self._isolated_ps(key, work))
            bytes_there = round(float(intensity) * work_ps / 1e12)
        near = repr(key), work.ranks
        if near not in self._fewer:
            # Errors of bursts grow with the nodes of an extrapolation: its runs are not coarse, and share no budget.
            name = name_of(self.times.granularity)
            fine = STEP if name == COARSE else name
            self._fewer[near] = followed_part(self.setup, self.plan, fine, work)
        part = self._fewer[near]
        if part is None:
            result, moved = self._in_full(work, work_ps, bytes_there)
        else:
            result, moved = part.run(work_ps, bytes_there, self._ran), part.moved
        share = max(0.0, 1 - (result.kernels_ps - work_ps) / result.end_ps) if work_ps else 1.0
        return {
            "time_ps": result.end_ps,
            "share": min(1.0, share),
            "moved": moved,
            "bound": result.bound,
            "followed": "; ".join(filter(None, (work.origin, result.note))),
        }

    def _ran(self, request: Request, plan: Cut, work_ps: int, hbm_bytes: int) -> PartRan:
        """Run a collective on fewer nodes, once for all nodes at equal positions."""
        request = replace(request, seed=self.seed)
        setup = request.setup
        place: Any = None
        if setup.zones is not None:
            # On the switches between these nodes only, so that equal nodes of different stages share runs.
            places, gpus = _places(setup.fabric), {*chain(setup.gpus or (), *setup.beside)}
            ranks = [rank for rank, local in enumerate(places.local) if local in gpus]
            place = places.of(tuple(ranks)).key
        asked = replace(request, setup=replace(setup, zones=None))
        assert isinstance(plan, NcclPlan)
        way = way_of(setup.comm, plan), plan.chunks, plan.parts
        question = asked, place, way, work_ps, hbm_bytes
        return self.times.find(question, partial(part_beside, request, plan, work_ps, hbm_bytes))

    def _in_full(
        self, work: JointWork, work_ps: int, hbm_bytes: int
    ) -> tuple[PartRan, dict[str, tuple[int, int]]]:
        """Run a part on all its ranks; return also the calls and bytes sent by dimension."""
        plan, there = self._ground(work.ranks)
        builder = ScheduleBuilder(plan.fabric, "part")
        writer = Emitter(plan, builder, only=frozenset(there.values()))
        kernels = kernels_beside(builder, there.values(), work_ps, hbm_bytes)
        tails = work.write(writer, there)
        setup = self.setup.on(plan.fabric)
        asked = ScheduleRequest(
            setup, builder.build(), granularity=self.times.granularity, seed=self.seed
        )
        tasks = [*chain.from_iterable(tails.values())]
        return ran(asked, tasks, kernels, work_ps), moved_by(writer)


def rounded(traffic_Bps: float | None) -> str | None:
    """Return memory traffic as a multiple of a quarter octave: stages of similar kernels share parts [bytes/s]."""
    if traffic_Bps is None:
        return None
    return f"{2 ** (round(4 * log2(traffic_Bps)) / 4) if traffic_Bps > 0 else 0.0:.3e}"


def _rounded_up(time_ps: int) -> int:
    """Return a time rounded up to two digits: parts of nearly the same time share runs beside kernels [ps]."""
    unit = int(10 ** max(0, len(str(time_ps)) - 2))
    return -(-time_ps // unit) * unit


def _on_machines(plan: ParallelPlan, zones: tuple[int, ...]) -> ParallelPlan:
    """Return a plan on a fabric with only these nodes and the complete network between nodes.

    NCCL considers the nodes of a group only. Ranks of removed nodes become negative.
    """
    whole = plan.fabric
    if len(zones) == whole.num_zones:
        return plan
    fabric = on_nodes(whole, zones)
    known = {name: rank for rank, name in enumerate(fabric.ranks)}
    ranks = tuple(known.get(whole.ranks[rank], -1 - rank) for rank in plan.mesh.ranks)
    return replace(plan, fabric=fabric, mesh=replace(plan.mesh, ranks=ranks))


@lru_cache(maxsize=8)
def _places(fabric: Fabric) -> EqualPlaces:
    return EqualPlaces(fabric)


def kernel_traffic_Bps(plan: ParallelPlan, stage: int) -> float:
    """Return the memory traffic of a stage's backward kernels while they run [bytes/s]."""
    kernels = {
        (id(layer), part): layer.kernels(part)
        for chunk in plan.stages[stage]
        for layer in chunk
        for part in ("input", "weight")
    }
    all_kernels = [kernel for result in kernels.values() for kernel in result]
    time_ps = sum(plan.chip.time_ps(kernel) for kernel in all_kernels)
    return sum(map(plan.chip.moved_bytes, all_kernels)) * 1e12 / max(1, time_ps)
