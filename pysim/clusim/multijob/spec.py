"""Files of several jobs: the schema, and reading them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from clusim.base.resources import shipped_jobs
from clusim.base.units import parse_ranks
from clusim.simulation.traffic import Pattern
from clusim.topology.quantities import (
    Size,
    Spec,
    Time,
    TrafficClass,
    example,
    read_with,
)
from clusim.workload.workload_file import load_described

MOST_JOBS = 64
"""Most jobs of a file."""

MOST_ITERATIONS = 100_000
"""Most iterations of a job."""

Iterations = Annotated[int, Field(ge=1, le=MOST_ITERATIONS)]


def _numbers(value: Any) -> Any:
    """Return the numbers of a text such as ``0-3,8``, or of a number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    return (
        tuple(sorted(set(parse_ranks(value)))) if isinstance(value, str) else value
    )


Numbers = Annotated[
    tuple[Annotated[int, Field(ge=0)], ...],
    read_with(_numbers),
    Field(min_length=1),
    example("0-7"),
]
"""Numbers of nodes or ranks."""


class CollectiveJobSpec(Spec):
    """Collective, repeated, after a kernel of all SMs on each rank."""

    operation: str
    size: Size
    compute: Time = 0
    algorithm: str = ""
    dtype: str = "float32"


class StorageSpec(Spec):
    """Transfers between each rank of the job and a rank of the servers, in turn, by the NICs."""

    servers: Numbers
    size: Size
    direction: Literal["read", "write"] = "read"
    every: Time = 0


class SavedJobSpec(Spec):
    """Checkpoint of a training job, written by its ranks to the servers' ranks."""

    job: str
    servers: Numbers


class TrafficSpec(Spec):
    """Synthetic traffic; `load` and `duration` are for timed patterns."""

    pattern: Pattern
    message: Size = 1 << 20
    load: Annotated[float, Field(gt=0, le=10)] | None = None
    duration: Time = 10**9
    span: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _check(self) -> TrafficSpec:
        if self.load is None and "duration" in self.model_fields_set:
            raise PydanticCustomError("traffic", "duration needs load")
        return self


class AfterSpec(Spec):
    """Begin after iterations of another job, by its time in isolation."""

    job: str
    iterations: Iterations = 1


KINDS = (
    "train",
    "replay",
    "collective",
    "storage",
    "checkpoint",
    "traffic",
    "flows",
)
"""Kinds of jobs; a job has the key of one."""


class JobSpec(Spec):
    """Job: its work, nodes or ranks, and start."""

    train: str | None = None
    replay: str | list[str] | None = None
    collective: CollectiveJobSpec | None = None
    storage: StorageSpec | None = None
    checkpoint: SavedJobSpec | None = None
    traffic: TrafficSpec | None = None
    flows: str | None = None
    nodes: Numbers | None = None
    ranks: Numbers | None = None
    start: Time = 0
    after: AfterSpec | None = None
    repeat: Iterations | Literal["fill"] = 1
    traffic_class: TrafficClass = Field(0, alias="class")

    @property
    def kind(self) -> str:
        """Return the kind of the job."""
        return next(key for key in KINDS if getattr(self, key) is not None)

    @model_validator(mode="after")
    def _check(self) -> JobSpec:
        keys = [key for key in KINDS if getattr(self, key) is not None]
        if len(keys) != 1:
            raise PydanticCustomError(
                "job",
                "a job has one of {kinds}; this one has {found}",
                {"kinds": ", ".join(KINDS), "found": " and ".join(keys) or "none"},
            )
        if self.nodes is not None and self.ranks is not None:
            raise PydanticCustomError(
                "job", "nodes and ranks both place a job; use one"
            )
        only_nodes = {"train", "replay", "traffic"}
        if self.ranks is not None and keys[0] in only_nodes:
            raise PydanticCustomError(
                "job", "{kind} is placed by nodes, not by ranks", {"kind": keys[0]}
            )
        if keys[0] == "flows" and (self.nodes or self.ranks):
            raise PydanticCustomError("job", "flows name their ranks in the table")
        if keys[0] in ("checkpoint", "traffic", "flows") and self.repeat != 1:
            raise PydanticCustomError(
                "job", "{kind} is without repeat", {"kind": keys[0]}
            )
        if self.after is not None and "start" in self.model_fields_set:
            raise PydanticCustomError("job", "start and after both begin a job")
        return self


class JobsSpec(Spec):
    """Jobs on a system."""

    name: str = "jobs"
    description: str = ""
    topology: str | None = None
    nodes: Annotated[int, Field(ge=1, le=65_536)] | None = None
    policy: str = ""
    routing: str = "auto"
    priority: list[Annotated[int, Field(ge=0, le=7)]] = Field(default_factory=list)
    jobs: Annotated[dict[str, JobSpec], Field(min_length=1, max_length=MOST_JOBS)]

    @model_validator(mode="after")
    def _check(self) -> JobsSpec:
        """Refuse names of jobs that do not exist, and circles."""
        for name, job in self.jobs.items():
            for other in self.before(job):
                if other not in self.jobs:
                    raise PydanticCustomError(
                        "job",
                        "job {name}: {other} is not a job of the file",
                        {"name": name, "other": other},
                    )
            if job.checkpoint is not None and (
                self.jobs[job.checkpoint.job].train is None
            ):
                raise PydanticCustomError(
                    "job",
                    "job {name}: checkpoints are of train jobs",
                    {"name": name},
                )
        for name in self.jobs:
            self._follow(name)
        return self

    def _follow(self, first: str) -> None:
        seen, after = {first}, self.jobs[first].after
        while after is not None:
            if after.job in seen:
                raise PydanticCustomError(
                    "job", "jobs begin after each other: {name}", {"name": first}
                )
            seen.add(after.job)
            after = self.jobs[after.job].after

    @staticmethod
    def before(job: JobSpec) -> list[str]:
        """Return the jobs that a job names."""
        return [
            *([job.after.job] if job.after is not None else []),
            *([job.checkpoint.job] if job.checkpoint is not None else []),
        ]


def load_jobs(
    path: str | os.PathLike[str], changes: Mapping[str, Any] | None = None
) -> JobsSpec:
    """Return the jobs of a YAML file, or of the shipped file of that name.

    Parameters
    ----------
    changes : mapping or None
        Values of keys of the file, by their paths: ``{"jobs.storage.class": 1}``.

    Raises
    ------
    InputError
        A missing file, or an invalid line.
    """
    spec, folder = load_described(
        JobsSpec, path, shipped_jobs(), ("jobs", "'jobs'"), changes
    )
    for job in spec.jobs.values():
        _with_folder(job, folder)
    return spec


def _with_folder(job: JobSpec, folder: Path) -> None:
    """Let the paths of a job's files begin at the folder of the jobs file."""
    if isinstance(job.replay, str):
        job.replay = [job.replay]
    if job.replay is not None:
        job.replay = [os.fspath(folder / file) for file in job.replay]
    if job.flows is not None:
        job.flows = os.fspath(folder / job.flows)
    if job.train is not None and (folder / job.train).is_file():
        job.train = os.fspath(folder / job.train)
