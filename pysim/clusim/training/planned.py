"""Planned work of an estimate, before it runs: its runs, and their packets where the step is small.

An estimate runs a part beside kernels twice, in isolation first. Parts of steps in bursts share the burst-hops of one
run. A step in exact packets may have each part once: its simulation is then less work than its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clusim.collectives import ScheduleBuilder
from clusim.lowering import lower
from clusim.lowering.grain import COARSE, STEP, rule_of
from clusim.training.clock import PhaseTime
from clusim.training.extrapolated import JointWork, moved_by
from clusim.training.parts import StepPart, StepParts, rounded
from clusim.training.run import MOST_RANKS
from clusim.workload.parallel.emitter import Emitter
from clusim.workload.parallel.volumes import Volume


class PlannedWork(NamedTuple):
    """Work of an estimate.

    Attributes
    ----------
    runs : int
        Runs that share the burst-hops of one; 0 if the step is in exact packets, and so are its parts.
    whole : bool
        The parts need at least as many packet-hops as the step.
    """

    runs: int
    whole: bool = False


class _Counted(NamedTuple):
    """A part: its place and key, its work, and the memory traffic of its kernels."""

    content: str
    key: Any
    work: JointWork
    intensity: str | None


@dataclass
class CountedParts(StepParts):
    """Parts that are counted only: all have the same time.

    Attributes
    ----------
    runs : set
        Content of every run that the parts need without a cache; extrapolated parts count as one.
    """

    runs: set[str] = field(default_factory=set)
    _counted: list[_Counted] = field(default_factory=list)

    def find(self, key: Any, work: JointWork, traffic_Bps: float | None = None) -> StepPart:
        """Count a part, in isolation and beside its kernels, and return a part of arbitrary time.

        Its traffic is one call of a separate dimension: the calls of that dimension are its uses.
        """
        intensity = rounded(traffic_Bps)
        near = key, work.ranks, intensity
        if near not in self._known:
            place, uses = self._place(work.ranks), {str(len(self._counted)): (1, 0)}
            self.runs.update(repr((place, key, how)) for how in (None, intensity))
            self._counted.append(_Counted(repr((place, key)), key, work, intensity))
            self._known[near] = StepPart(
                PhaseTime(1_000_000, 1.0 if intensity is None else 0.5), uses, 0.0
            )
        return self._known[near]

    def planned(
        self, granularity: str | int, uses: Mapping[str, Volume], times: int
    ) -> PlannedWork:
        """Return the work at a granularity, if the step has `times` times these uses of parts.

        Compared are the parts beside kernels. They are written in full in simulations of up to `MOST_RANKS` ranks;
        further parts run once in an estimate, and once or more in the simulation.
        """
        rule = rule_of(COARSE if granularity == STEP else str(granularity))
        if rule is None or self.plan.mesh.size > MOST_RANKS:
            return PlannedWork(len(self.runs))
        hops: dict[str, int] = {}
        left, step_hops = rule.exact_hops, 0
        for number, (content, key, work, intensity) in enumerate(self._counted):
            count = uses[str(number)].calls * times
            if content not in hops:
                hops[content] = self._packet_hops(key, work, left // max(1, count))
            left -= count * hops[content]
            if left < 0:
                return PlannedWork(len(self.runs))
            step_hops += count * hops[content] if intensity is not None else 0
        beside = {part.content for part in self._counted if part.intensity is not None}
        apart = {part.content for part in self._counted if part.intensity is None}
        parts_hops = sum(hops[content] * (2 - (content in apart)) for content in beside)
        return PlannedWork(0, bool(beside) and parts_hops >= step_hops)

    def _packet_hops(self, key: Any, work: JointWork, most: int) -> int:
        """Return the packet-hops of a part, also cached; a lower limit if that is more than `most`."""
        question = (*self._content(key, work), "packet-hops")
        if (known := self.times.kept.get(question)) is not None:
            return int(known)
        plan, there = self._ground(work.ranks)
        builder = ScheduleBuilder(plan.fabric, "part")
        writer = Emitter(plan, builder, only=frozenset(there.values()))
        work.write(writer, there)
        largest = max(max(form.payload_bytes.values()) for form in plan.fabric.formats.values())
        hops = sum(sent for _, sent in moved_by(writer).values()) // largest
        if hops <= most:
            hops = lower(plan.fabric, builder.build()).grain.packet_hops
            self.times.kept.put(question, hops)
        return hops
