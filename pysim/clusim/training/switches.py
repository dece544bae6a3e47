"""Cost of overlap on GPUs: SMs and memory traffic of communication, time lost by kernels.

**In-switch reduction** (NVLS, SHARP) compared with rings. **Hardware** A ring reads and writes every byte several times
on every GPU, with one CTA per channel. In-switch reduction needs the data once, and fewer CTAs. **Model** Every kind of
in-switch collective of a run is simulated in isolation, unchanged and as a ring; the differences are multiplied by its
number of calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.json_schema import JsonObject, Round3, Whole, Written
from clusim.collectives.algorithms.sharp import uses_switches
from clusim.collectives.builder import ScheduleBuilder
from clusim.nccl.choice import Communicators
from clusim.nccl.env import parse_env
from clusim.nccl.programs import CollectivePayload
from clusim.schedule.builder import Site
from clusim.schedule.ir import Schedule
from clusim.simulation.api import result_of
from clusim.simulation.job import RunOptions
from clusim.simulation.request import ScheduleRequest
from clusim.simulation.setup import Setup
from clusim.topology.model import Fabric
from clusim.workload.mesh import zones_of
from clusim.workload.parallel.fold import Folded
from clusim.workload.parallel.volumes import (
    SpannedMachines,
    Switched,
    Volume,
    sent_bytes,
)


@dataclass(frozen=True, slots=True)
class Sharing:
    """Sums over all ranks and the complete run.

    Attributes
    ----------
    kernel_ps, alone_ps : int
        Time of all kernels, and their time on undisturbed GPUs [ps].
    sm_ps : int
        SMs held by CTAs of collectives and messages, times the duration [SM x ps].
    moving_ps : int
        Time of these collectives and messages [ps].
    """

    kernel_ps: int = 0
    alone_ps: int = 0
    sm_ps: int = 0
    moving_ps: int = 0

    @property
    def lost_ps(self) -> int:
        """Time that kernels lose."""
        return max(0, self.kernel_ps - self.alone_ps)

    @property
    def sms(self) -> Round3:
        """Mean SMs held while a collective or message is in progress."""
        return self.sm_ps / max(1, self.moving_ps)


def sharing(
    schedule: Schedule, start_ps: Any, end_ps: Any, folded: Iterable[Folded] = ()
) -> Sharing:
    """Return the cost of a run's communication; `folded` are its replicated blocks."""
    held_sms: dict[int, int] = {}
    for item in schedule.instances:
        held_sms[item.task] = held_sms.get(item.task, 0) + item.sm
    kernel = alone = sms = moving = 0
    for index, task in enumerate(schedule.tasks):
        if task.kind not in ("kernel", "program"):
            continue
        length = int(end_ps[index]) - int(start_ps[index])
        if task.kind == "kernel":
            kernel += length
            alone += task.compute_ps
        else:
            sms += held_sms.get(index, 0) * length
            moving += length
    parts = [(kernel, alone, sms, moving), *(block.done.sharing for block in folded)]
    return Sharing(*map(sum, zip(*parts, strict=True)))


MOST_KINDS = 4
"""Maximum kinds of collectives that are run, by bytes moved. The rest use the first kind's cost."""

LARGEST_BYTES = 64 << 20
"""Larger collectives are run at this size [bytes]."""


@dataclass(frozen=True, slots=True)
class SwitchCost(JsonObject):
    """GPU costs of collectives per step: mean SMs; traffic and bytes sent [bytes]; time [s]."""

    KEYS = ("sms", "memory_bytes", "sent_bytes", "alone_s=time_ps")

    sms: Round3
    memory_bytes: Whole
    sent_bytes: Whole
    time_ps: Annotated[float, Written(9)]


@dataclass(frozen=True, slots=True)
class Switching(JsonObject):
    """In-switch collectives of a step, per GPU: number, cost, and cost as rings.

    SMs are means over the collectives; the rest are sums over a step.

    Attributes
    ----------
    collectives : float
        Their number.
    """

    collectives: Round3
    switch: SwitchCost
    ring: SwitchCost


def switching(
    setup: Setup,
    traffic: Mapping[str, Volume],
    gpus: int,
    steps: int = 1,
    granularity: str | int = "auto",
) -> Switching | None:
    """Return the in-switch collectives of a step and their cost as rings; None without any."""
    kinds: dict[Switched, tuple[int, tuple[int, ...]]] = {}
    for moved in traffic.values():
        for kind, (count, group) in moved.switched.items():
            kinds[kind] = (kinds.get(kind, (0, group))[0] + count, group)
    if not kinds:
        return None
    order = sorted(kinds, key=lambda kind: -kind.bytes * kinds[kind][0])
    times_of: dict[Switched, Array] = {}
    calls, costs = 0.0, np.zeros((2, 4))
    for kind in order:
        count, group = kinds[kind]
        like = kind if len(times_of) < MOST_KINDS else order[0]
        if like not in times_of:
            times_of[like] = _alone(setup, like, group, granularity)
        share = count * kind.ranks / gpus / steps
        calls += share
        costs += _scaled(times_of[like], kind.bytes / like.bytes) * share
    costs[:, 0] /= calls
    switch, ring = costs.tolist()
    return Switching(calls, SwitchCost(*switch), SwitchCost(*ring))


def _scaled(costs: Array, factor: float) -> Array:
    """Return the costs of collectives that are larger by a factor, in as many SMs."""
    result: Array = costs * np.array([1, factor, factor, factor])
    return result


def _alone(
    setup: Setup, kind: Switched, group: Sequence[int], granularity: str | int
) -> Array:
    """Return the costs of a collective as in-switch reduction and as a ring.

    Each is a row with the fields of `SwitchCost`.
    """
    fabric, size = setup.known, min(kind.bytes, LARGEST_BYTES)
    zones = zones_of(fabric)
    machines = SpannedMachines(
        len({zones[r] for r in group}), uses_switches(fabric, tuple(group))
    )
    costs = []
    for algorithm in (kind.algorithm, "ring"):
        schedule = _schedule(fabric, kind, algorithm, size, group)
        request = ScheduleRequest(setup, schedule, granularity=granularity)
        result = result_of(request, RunOptions(bins=16))
        sms = sum(item.sm for item in schedule.instances)
        sent = sent_bytes(kind.operation, algorithm, size, len(group), machines)
        of_group = np.array([sms, float(result.bins.hbm_bytes.sum()), sent]) / len(
            group
        )
        costs.append([*of_group, result.time_ps])
    return _scaled(np.array(costs), kind.bytes / size)


def _schedule(
    fabric: Fabric, kind: Switched, algorithm: str, size: int, group: Sequence[int]
) -> Schedule:
    """Return a schedule of one collective, with NCCL's channels where NCCL chose them."""
    builder = ScheduleBuilder(fabric, "in a switch")
    if not kind.nccl_dtype:
        builder.collective(
            kind.operation, size, algorithm=algorithm, ranks=tuple(group)
        )
        return builder.build()
    settings = parse_env({"NCCL_ALGO": "Ring"}) if algorithm == "ring" else None
    moved = CollectivePayload(kind.operation, size, kind.nccl_dtype)
    Communicators(fabric, settings=settings).collective(Site(builder), group, moved)
    return builder.build()
