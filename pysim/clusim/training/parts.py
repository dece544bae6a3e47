"""Parts of training steps, simulated once and cached on disk.

A part is the joint communication of some ranks of a stage, with or without concurrent kernels, written as in the step
and run by the engine. Its result is cached by content: location of the ranks, communication, and the settings of the
workload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import log2
from typing import TYPE_CHECKING, Any

import numpy as np

from clusim.collectives.builder import ScheduleBuilder
from clusim.lowering.grain import COARSE, STEP, STEP_ERROR, name_of
from clusim.nccl.choice import way_of
from clusim.nccl.communicator import NcclPlan
from clusim.simulation.extrapolate import ERROR_LIMIT
from clusim.simulation.laws import Cut
from clusim.simulation.request import Request, ScheduleRequest
from clusim.simulation.setup import Setup
from clusim.topology.arrays import arrays_of
from clusim.topology.check_flow import endpoint_rates_Bps, wire_rates_Bps
from clusim.topology.subset import on_nodes
from clusim.training.extrapolated import (
    FollowedPart,
    JointWork,
    PartRan,
    followed_part,
    kernels_beside,
    moved_by,
    part_beside,
    places_of,
    run_part,
)
from clusim.workload.mesh import zones_of
from clusim.workload.parallel.emitter import Emitter
from clusim.workload.parallel.plan import ParallelPlan

if TYPE_CHECKING:
    from clusim.jobs.times import Times

LONGER = 4
"""Duration of the first kernels beside a part, relative to its time at the rates of its links, and of the next."""

LEAST_KERNEL_PS = 1 << 28
"""Least duration of kernels beside a part [ps]."""


@dataclass(frozen=True, eq=False)
class StepPart:
    """Known facts of a part, compared by identity.

    Attributes
    ----------
    share : float
        Relative rate of concurrent kernels.
    moved : dict
        Calls and bytes sent by dimension.
    bound : float or None
        Error limit of its time against exact packets; None is unknown.
    followed : str
        The runs on fewer nodes, or of fewer groups, that it was extrapolated from; empty if simulated in full.
    """

    time_ps: int
    share: float
    moved: dict[str, tuple[int, int]]
    bound: float | None
    followed: str = ""


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
    _fewer: dict[Any, FollowedPart | None] = field(default_factory=dict)
    _grounds: dict[tuple[int, ...], ParallelPlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        workload = self.plan.workload
        stated = (
            workload.communicators,
            workload.collectives,
            workload.experts,
            workload.pipeline.scatter_gather,
        )
        self._said = [str(item) for item in stated] + [self.plan.precision.dtype]
        self._machine = self.setup.identity
        self.zones = zones_of(self.plan.fabric)

    @property
    def different(self) -> int:
        """Return the number of parts."""
        return len(self._known)

    @property
    def followed(self) -> int:
        """Return the number of parts that were extrapolated from fewer nodes."""
        return sum(1 for part in self._known.values() if part.followed)

    def find(
        self, key: Any, work: JointWork, traffic_Bps: float | None = None
    ) -> StepPart:
        """Return the part of some work.

        Parameters
        ----------
        key : object
            Complete description except for the location; its repr is the cache key.
        traffic_Bps : float or None
            Memory traffic of the concurrent kernels [bytes/s]; None is without kernels.
        """
        intensity = rounded(traffic_Bps)
        part_key = key, work.ranks, intensity
        if part_key not in self._known:
            question = (*self.content(key, work.ranks), intensity)

            def simulate() -> dict[str, Any]:
                return self._from_coarse(question) or self._simulate(
                    key, work, intensity
                )

            self._known[part_key] = self._read(self.times.stored(question, simulate))
        result = self._known[part_key]
        self.bounds.append(result.bound)
        return result

    def _from_coarse(self, question: tuple[Any, ...]) -> Any:
        """Return the answer of a coarse run of the same part if it was as fine; otherwise None.

        None at other granularities than `STEP`.
        """
        if name_of(self.times.granularity) != STEP:
            return None
        answer = self.times.peek(
            question, str(self.times.granularity).replace(STEP, COARSE)
        )
        fine = (
            answer is not None
            and answer["bound"] is not None
            and answer["bound"] <= STEP_ERROR
        )
        return answer if fine else None

    def content(self, key: Any, ranks: tuple[int, ...]) -> tuple[Any, ...]:
        """Return the question of a part of some ranks, without its granularity and kernels."""
        return self._place(ranks), repr(key), self._said, self.seed

    def _read(self, answer: dict[str, Any]) -> StepPart:
        """Return a part from its cached form."""
        followed_note = answer["followed"]
        times = 1 + ERROR_LIMIT if followed_note and self.longer else 1
        time_ps = round(answer["time_ps"] * times)
        moved = {
            name: (calls, sent) for name, (calls, sent) in answer["moved"].items()
        }
        return StepPart(
            time_ps, answer["share"], moved, answer["bound"], followed_note
        )

    def _ground(self, ranks: tuple[int, ...]) -> tuple[ParallelPlan, dict[int, int]]:
        """Return the plan on the nodes of some ranks only, and their rank numbers there."""
        zones = tuple(sorted({self.zones[rank] for rank in ranks}))
        if zones not in self._grounds:
            self._grounds[zones] = _on_machines(self.plan, zones)
        plan = self._grounds[zones]
        called = dict(zip(self.plan.mesh.ranks, plan.mesh.ranks, strict=True))
        return plan, {rank: called[rank] for rank in ranks}

    def _place(self, ranks: tuple[int, ...]) -> tuple[Any, ...]:
        """Return the location of ranks; inside one node it does not depend on the other nodes."""
        inside = len({self.zones[rank] for rank in ranks}) == 1
        nodes = None if inside else self.setup.nodes
        return self._machine, nodes, places_of(self.plan.fabric).of(ranks).key

    def _simulate(
        self, key: Any, work: JointWork, intensity: str | None
    ) -> dict[str, Any]:
        """Run a part, beside kernels if `intensity` gives their memory traffic."""
        self.simulated.add((repr(key), work.ranks, intensity))
        part_key = repr(key), work.ranks
        if part_key not in self._fewer:
            self._fewer[part_key] = followed_part(
                self.setup, self.plan, self.times.granularity, work
            )
        part, work_ps, result = self._fewer[part_key], 0, None
        if intensity is not None:
            work_ps = LONGER * self._linked_ps(
                work.ranks, 2 * key[1].bytes * len(work.ranks)
            )
        # Kernels outlast the part.
        while result is None or (work_ps and result.kernels_ps < result.end_ps):
            work_ps *= 1 if result is None else LONGER
            hbm_bytes = round(float(intensity or 0) * work_ps / 1e12)
            if part is None:
                result, moved = self._in_full(work, work_ps, hbm_bytes)
            else:
                result, moved = part.run(work_ps, hbm_bytes, self._ran), part.moved
        share = (
            max(0.0, 1 - (result.kernels_ps - work_ps) / result.end_ps)
            if work_ps
            else 1.0
        )
        return {
            "time_ps": result.end_ps,
            "share": min(1.0, share),
            "moved": moved,
            "bound": result.bound,
            "followed": "; ".join(filter(None, (work.origin, result.note))),
        }

    def _linked_ps(self, ranks: tuple[int, ...], sent_bytes: int) -> int:
        """Return a time for bytes that ranks send, by the links of their GPUs or nodes, as a power of two [ps]."""
        arrays, zones = (
            arrays_of(self.plan.fabric),
            {self.zones[rank] for rank in ranks},
        )
        rate_Bps = endpoint_rates_Bps(arrays)[[*ranks]].sum()
        if len(zones) > 1:
            zone = arrays.nodes["zone"]
            out, to = zone[arrays.wires["src"]], zone[arrays.wires["dst"]]
            rate_Bps = wire_rates_Bps(arrays)[
                np.isin(out, [*zones]) & (out != to)
            ].sum()
        time_ps = max(LEAST_KERNEL_PS, int(1e12 * sent_bytes / max(1e9, rate_Bps)))
        return 1 << time_ps.bit_length()

    def _ran(
        self, request: Request, plan: Cut, work_ps: int, hbm_bytes: int
    ) -> PartRan:
        """Run a collective on fewer nodes, once for all nodes at equal positions."""
        request = replace(request, seed=self.seed)
        setup = request.setup
        place: Any = None
        if setup.zones is not None:
            # On the switches between these nodes only, so that equal nodes of different stages share runs.
            places, gpus = (
                places_of(setup.fabric),
                {*chain(setup.gpus or (), *setup.beside)},
            )
            ranks = [
                rank for rank, local in enumerate(places.local) if local in gpus
            ]
            place = places.of(tuple(ranks)).key
        smaller = replace(request, setup=replace(setup, zones=None))
        assert isinstance(plan, NcclPlan)
        plan_key = way_of(setup.comm, plan), plan.chunks, plan.parts
        question = smaller, place, plan_key, work_ps, hbm_bytes
        return self.times.find(
            question, partial(part_beside, request, plan, work_ps, hbm_bytes)
        )

    def _in_full(
        self, work: JointWork, work_ps: int, hbm_bytes: int
    ) -> tuple[PartRan, dict[str, tuple[int, int]]]:
        """Run a part on all its ranks; return also the calls and bytes sent by dimension."""
        writer, (tasks,) = self.write(work.ranks, [[work]])
        kernels = kernels_beside(
            writer.builder, sorted(writer.only or ()), work_ps, hbm_bytes
        )
        return run_part(self.request(writer), [*tasks], kernels, work_ps), moved_by(
            writer
        )

    def write(
        self, ranks: tuple[int, ...], rows: Sequence[Sequence[JointWork]]
    ) -> tuple[Emitter, list[set[int]]]:
        """Write work on the nodes of ranks, a row after another; return the writer and the last tasks of each work."""
        plan, placed = self._ground(ranks)
        builder = ScheduleBuilder(plan.fabric, "part")
        writer = Emitter(plan, builder, only=frozenset(placed.values()))
        tasks: list[set[int]] = []
        for row in rows:
            before = tuple(chain(*tasks))
            for work in row:
                writer.tail = dict.fromkeys(placed.values(), before)
                tails = work.write(writer, placed)
                tasks.append({*chain(*tails.values())} - {*before})
        return writer, tasks

    def request(self, writer: Emitter) -> ScheduleRequest:
        """Return the run of written work."""
        schedule, setup = writer.builder.build(), self.setup.on(writer.plan.fabric)
        return ScheduleRequest(
            setup, schedule, granularity=self.times.granularity, seed=self.seed
        )


def rounded(traffic_Bps: float | None) -> str | None:
    """Return memory traffic as a multiple of a quarter octave: stages of similar kernels share parts [bytes/s]."""
    if traffic_Bps is None:
        return None
    return (
        f"{2 ** (round(4 * log2(traffic_Bps)) / 4) if traffic_Bps > 0 else 0.0:.3e}"
    )


def _on_machines(plan: ParallelPlan, zones: tuple[int, ...]) -> ParallelPlan:
    """Return a plan on a fabric with only these nodes and the complete network between nodes.

    NCCL considers the nodes of a group only. Ranks of removed nodes become negative.
    """
    fabric_of_plan = plan.fabric
    if len(zones) == fabric_of_plan.num_zones:
        return plan
    fabric = on_nodes(fabric_of_plan, zones)
    positions = {name: rank for rank, name in enumerate(fabric.ranks)}
    ranks = tuple(
        positions.get(fabric_of_plan.ranks[rank], -1 - rank)
        for rank in plan.mesh.ranks
    )
    return replace(plan, fabric=fabric, mesh=replace(plan.mesh, ranks=ranks))


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
