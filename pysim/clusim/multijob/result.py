"""Result of several jobs on one fabric: slowdowns, who slows whom, the wires that jobs share, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clusim.base.arrays import Array
from clusim.base.json_schema import JsonObject, Picoseconds, Round3
from clusim.results.result import Result

MOST_WIRES = 8
"""Shared wires that a result lists."""


@dataclass(frozen=True, slots=True)
class JobRun:
    """Times of a job in one run.

    Attributes
    ----------
    start_ps, end_ps : int
        Its start, and the end of its last work [ps].
    begins_ps, ends_ps : ndarray of int64
        Of each iteration, or message [ps].
    """

    start_ps: int
    end_ps: int
    begins_ps: Array
    ends_ps: Array

    @property
    def time_ps(self) -> int:
        """Return the time from its start to its end [ps]."""
        return self.end_ps - self.start_ps

    @property
    def times_ps(self) -> Array:
        """Return the time of each iteration or message [ps]."""
        return self.ends_ps - self.begins_ps


@dataclass(frozen=True)
class TogetherRun:
    """One run of some jobs."""

    result: Result
    jobs: dict[str, JobRun]

    @property
    def wire_bytes(self) -> Array:
        """Return the bytes of every wire."""
        counted: Array = self.result.wires.counters["payload"]
        return counted


@dataclass(frozen=True, slots=True)
class JobOutcome(JsonObject):
    """A job beside the others, and in isolation.

    Attributes
    ----------
    ranks : int
        Number of its ranks.
    iterations : int
        Iterations, or messages, that are compared.
    mean_ps, alone_ps : int
        Mean time of an iteration or message, beside the others and in isolation [ps].
    slowdown, tail : float
        Ratios of these means and 99th percentiles.
    """

    KEYS = (
        "name",
        "kind",
        "ranks",
        "start_s=start_ps",
        "end_s=end_ps",
        "iterations",
        "mean_s=mean_ps",
        "alone_s=alone_ps",
        "slowdown",
        "tail",
    )

    name: str
    kind: str
    ranks: int
    start_ps: Picoseconds
    end_ps: Picoseconds
    iterations: int
    mean_ps: Picoseconds
    alone_ps: Picoseconds
    slowdown: Round3
    tail: Round3


@dataclass(frozen=True, slots=True)
class JobsWire(JsonObject):
    """Wire with bytes of several jobs.

    Attributes
    ----------
    busy : float
        Fraction of the run in which it carries data.
    shares : dict of str to float
        Fraction of its bytes by job.
    pauses, marks, drops : int
        Pause frames, marked and dropped packets beside the other jobs, more than in isolation.
    """

    wire: str
    busy: Round3
    shares: dict[str, Round3]
    pauses: int
    marks: int
    drops: int


@dataclass(frozen=True)
class JobsResult(JsonObject):
    """Several jobs on one fabric.

    Attributes
    ----------
    jobs : list of JobOutcome
        Jobs in the order of the file.
    matrix : dict of str to dict of str to float
        Slowdown of a job (first key) beside one other job (second key); empty if not asked for.
    shared : list of JobsWire
        Busiest wires with bytes of several jobs.
    fairness : float
        Jain's index of the jobs' speeds relative to isolation.
    error_bound : float or None
        Error limit of times, as a share of the time; None is not known.
    runs : int
        Runs of the engine.
    """

    KEYS = (
        "name",
        "system",
        "time_s=time_ps",
        "granularity",
        "error_bound",
        "jobs",
        "matrix",
        "shared_wires",
        "shared",
        "fairness",
        "verdict",
        "notes",
        "runs",
    )

    name: str
    system: str
    time_ps: Picoseconds
    granularity: str
    error_bound: float | None
    jobs: list[JobOutcome]
    matrix: dict[str, dict[str, Round3]]
    shared_wires: int
    shared: list[JobsWire]
    fairness: Round3
    verdict: list[str]
    notes: list[str]
    runs: int
    joint: TogetherRun = field(repr=False, compare=False)
    alone: Mapping[str, TogetherRun] = field(repr=False, compare=False)
