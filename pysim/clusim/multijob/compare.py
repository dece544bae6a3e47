"""Comparison of runs of all jobs, in isolation and in pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from clusim.analysis.flowrates import jain
from clusim.base.arrays import Array
from clusim.multijob.result import JobOutcome, JobRun, JobsWire, TogetherRun

if TYPE_CHECKING:
    from clusim.multijob.run import JobsRunner

SLOWED = 1.02
"""Slowdown from which the verdict explains a job."""

LEAST_SHARE = 0.01
"""Least share of the bytes of a wire from which a job shares it."""


def ratio_of(run: JobRun, alone: JobRun, until_ps: int | None = None) -> float:
    """Return the ratio of the mean times of iterations that begin before a time, to the mean time in isolation."""
    times = compared_times(run, until_ps)
    return float(times.mean() / max(1.0, alone.times_ps.mean()))


def compared_times(run: JobRun, until_ps: int | None) -> Array:
    """Return the times of the iterations that begin before a time, at least of the first [ps]."""
    times = run.times_ps
    if until_ps is None:
        return times
    return times[: max(1, int((run.begins_ps < until_ps).sum()))]


@dataclass
class Comparison:
    """Runs of all jobs, in isolation and in pairs.

    Attributes
    ----------
    pairs : dict
        Run of two jobs, by their names in the order of the file.
    """

    runner: JobsRunner
    joint: TogetherRun
    pairs: Mapping[tuple[str, str], TogetherRun] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Return the names of the jobs, in the order of the file."""
        return list(self.runner.spec.jobs)

    @property
    def alone(self) -> Mapping[str, TogetherRun]:
        """Return the run of each job in isolation."""
        return self.runner.alone

    @cached_property
    def filling(self) -> set[str]:
        """Return the jobs that repeat to fill the others' time."""
        jobs = self.runner.spec.jobs
        return {name for name, job in jobs.items() if job.repeat == "fill"}

    def until_ps(self, name: str, run: TogetherRun) -> int | None:
        """Return the end of the jobs that a job fills the time of [ps]; None for other jobs."""
        ends_ps = [
            one.end_ps
            for other, one in run.jobs.items()
            if other not in self.filling
        ]
        return max(ends_ps) if name in self.filling and ends_ps else None

    def ratio(self, name: str, run: TogetherRun) -> float:
        """Return the slowdown of a job in a run."""
        until_ps = self.until_ps(name, run)
        return ratio_of(run.jobs[name], self.alone[name].jobs[name], until_ps)

    @cached_property
    def outcomes(self) -> list[JobOutcome]:
        """Return the jobs of the run of all."""
        result = []
        for name in self.names:
            run, alone = self.joint.jobs[name], self.alone[name].jobs[name]
            times = compared_times(run, self.until_ps(name, self.joint))
            tails = [
                float(np.percentile(part, 99)) for part in (times, alone.times_ps)
            ]
            result.append(
                JobOutcome(
                    name,
                    self.runner.works[name].kind,
                    len(self.runner.ranks_of(name)),
                    run.start_ps,
                    run.end_ps,
                    len(times),
                    round(times.mean()),
                    round(alone.times_ps.mean()),
                    self.ratio(name, self.joint),
                    tails[0] / max(1.0, tails[1]),
                )
            )
        return result

    @cached_property
    def wire_bytes(self) -> Array:
        """Return the bytes of each job (row) in isolation on every wire."""
        return np.array(
            [self.alone[name].wire_bytes for name in self.names], np.float64
        )

    @cached_property
    def uses(self) -> Array:
        """Return whether a job (row) has a share of the bytes of each wire."""
        total = np.maximum(1.0, self.wire_bytes.sum(axis=0))
        used: Array = self.wire_bytes / total >= LEAST_SHARE
        return used

    def shared_of(self, *names: str) -> Array:
        """Return the wires that all of some jobs use, the busiest first."""
        rows = [self.names.index(name) for name in names]
        wires = np.flatnonzero(self.uses[rows].all(axis=0))
        busy = self.joint.result.wires.counters["busy_ps"]
        return wires[np.argsort(-busy[wires].astype(np.int64), kind="stable")]

    def _bytes_beside(self, name: str, other: str) -> float:
        """Return the bytes of another job on the wires that it shares with a job."""
        shared = self.shared_of(name, other)
        return float(self.wire_bytes[self.names.index(other), shared].sum())

    def all_shared(self) -> Array:
        """Return the wires that several jobs use, the busiest first."""
        wires = np.flatnonzero(self.uses.sum(axis=0) > 1)
        busy = self.joint.result.wires.counters["busy_ps"]
        return wires[np.argsort(-busy[wires].astype(np.int64), kind="stable")]

    def describe_wire(self, wire: int) -> JobsWire:
        """Return a shared wire with the shares of its jobs."""
        result = self.joint.result
        counters = result.wires.counters
        total = max(1.0, float(self.wire_bytes[:, wire].sum()))
        shares = {
            name: float(self.wire_bytes[row, wire]) / total
            for row, name in enumerate(self.names)
            if self.uses[row, wire]
        }
        more = {
            key: int(counters[key][wire])
            - sum(
                int(run.result.wires.counters[key][wire])
                for run in self.alone.values()
            )
            for key in ("pauses", "marks", "drops")
        }
        busy = float(counters["busy_ps"][wire]) / max(1, result.time_ps)
        counts = {key: max(0, value) for key, value in more.items()}
        return JobsWire(result.wires.names[wire], busy, shares, **counts)

    @cached_property
    def matrix(self) -> dict[str, dict[str, float]]:
        """Return the slowdown of each job beside each other one, 1 without a shared wire."""
        if not self.pairs:
            return {}
        result: dict[str, dict[str, float]] = {name: {} for name in self.names}
        for name in self.names:
            for other in self.names:
                if name == other:
                    continue
                pair = self.pairs.get((name, other)) or self.pairs.get((other, name))
                result[name][other] = 1.0 if pair is None else self.ratio(name, pair)
        return result

    @cached_property
    def fairness(self) -> float:
        """Return Jain's index of the jobs' speeds relative to isolation."""
        return jain([1 / one.slowdown for one in self.outcomes])

    def verdict(self) -> list[str]:
        """Return who slows whom, by how much and where; the slowest job is the first."""
        lines = []
        for job in sorted(self.outcomes, key=lambda job: -job.slowdown):
            if job.slowdown < SLOWED:
                continue
            lines.append(
                f"{job.name} is {job.slowdown:.2f} times slower{self._by(job.name)}"
            )
        return lines or ["no job slows another"]

    def _by(self, name: str) -> str:
        """Return the neighbour that slows a job most, and the busiest wire that they share."""
        neighbours = [other for other in self.names if other != name]
        row = self.matrix.get(name)
        worst = (
            max(neighbours, key=lambda other: row[other])
            if row
            else max(neighbours, key=lambda other: self._bytes_beside(name, other))
        )
        with_it = f" ({row[worst]:.2f} with it only)" if row else ""
        wires = self.shared_of(name, worst)
        text = f", most by {worst}{with_it}"
        if not len(wires):
            return f"{text}, without a shared wire: they share memory or SMs"
        first = self.describe_wire(int(wires[0]))
        mine, theirs = first.shares[name], first.shares[worst]
        pressure = "".join(
            f", {count:,} {what}"
            for what, count in (
                ("more pauses", first.pauses),
                ("more marks", first.marks),
                ("more drops", first.drops),
            )
            if count
        )
        return (
            f"{text}: they share {len(wires)} wires; {first.wire} is busy {first.busy:.0%} of the run, with"
            f" {theirs:.0%} of its bytes from {worst} and {mine:.0%} from {name}{pressure}"
        )
