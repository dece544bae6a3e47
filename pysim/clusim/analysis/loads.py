"""Loads of a transfer: utilisation of the resources that it needs, in the order of its path."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clusim.analysis.network import Network, Stage
from clusim.analysis.walk import Step, Walk
from clusim.base.arrays import Array
from clusim.engine.abi import NONE, ConnKind, Op
from clusim.results.bins import Usage

NEAR = 0.98
"""Share of the largest utilisation from which the first resource on the path is named.

Later resources on the path only follow the rate of the first.
"""

_Times = tuple[tuple[int, int], tuple[int, int]]
"""Slice and task of a transfer, from start to end [ps]."""


class ResourceLoad(NamedTuple):
    """Resource of a transfer, and its utilisation.

    `use` is the utilisation during the slice. `mean` and `usual` are for the complete task: of the resource, and of
    comparable resources (the median of the parallel wires, or of its class). Single slices fluctuate with other
    traffic.
    """

    what: str
    number: int
    use: float
    mean: float
    usual: float = 0.0
    sibling: int = -1


class PathLoads:
    """Loads of the transfers of a walk.

    Parameters
    ----------
    walk : Walk
        Source of the segments.
    usage : Usage
        Histories of the same trace.
    used : ndarray of bool, shape (wires,)
        Wires with traffic; only these are used for the median of their class.
    """

    def __init__(
        self, walk: Walk, network: Network, usage: Usage, used: Array
    ) -> None:
        self.walk, self.network, self.usage = walk, network, usage
        self._image = network.image
        self._usual: dict[
            tuple[int, tuple[int, ...], tuple[int, int]], tuple[int, float]
        ] = {}
        names = np.array(network.classes)
        self._peers = {
            name: np.flatnonzero(used & (names == name))
            for name in set(network.classes)
        }

    def of(self, step: Step) -> tuple[int, list[ResourceLoad]]:
        """Return the latency of a transfer [ps], and the things it needs in the order of its way."""
        flags, network = self.flags_of(step), self.network
        # While this CTA was otherwise occupied, the wire served other transfers: use the complete turn.
        span = (step.start_ps - self.fixed_ps(step), step.end_ps)
        latency = 0
        if self.is_request(step):
            latency = min(
                step.length_ps,
                network.latency_ps(step.connection, step.endpoint, flags),
            )
        stages = network.stages_of(step.connection, step.endpoint, flags)
        times = span, self._task_time_ps(step)
        result = [
            self._wire_load(stage, times)
            for stage in network.narrow_to(stages, step.wire)
        ]
        conn = self._image["conns"][step.connection]
        ends = (int(conn["src"]), int(conn["dst"]))
        if int(conn["stage"]) != NONE:
            ends = (step.endpoint, int(conn["stage"]))
        if int(conn["kind"]) in (ConnKind.MULTIMEM, ConnKind.AGGREGATION):
            ends = (step.endpoint, step.endpoint)
        result += [self._load("hbm", end, times) for end in dict.fromkeys(ends)]
        if flags & (Op.REDUCE | Op.AGGREGATE):
            units = network.units_of(step.connection)
            result += [self._load("unit", unit, times) for unit in units]
        turn = max(1, step.end_ps - span[0])
        pace = self.pace_ps(step)
        utilisation = min(1.0, pace / max(1, step.length_ps - latency))
        min_use = (turn - step.length_ps + latency + pace) / turn
        result.append(
            ResourceLoad("cta", step.endpoint, utilisation, min(1.0, min_use))
        )
        return latency, result

    def after_first_wire(self, step: Step) -> list[ResourceLoad]:
        """Return the time of written packets after their first wire."""
        conn = self._image["conns"][step.connection]
        times = (step.start_ps, step.end_ps), self._task_time_ps(step)
        stages = self.network.stages_of(step.connection, int(conn["src"]), Op.MCAST)
        loads = [self._wire_load(stage, times) for stage in stages[1:] or stages]
        return [*loads, self._load("hbm", int(conn["dst"]), times)]

    def _task_time_ps(self, step: Step) -> tuple[int, int]:
        """Return the time of the task that a step belongs to [ps]."""
        start_ps, end_ps = self.walk.task_span(step.task)
        return start_ps, max(end_ps, step.end_ps)

    def _load(self, what: str, number: int, times: _Times) -> ResourceLoad:
        use, mean = (self.usage.one(what, number, *time) for time in times)
        return ResourceLoad(what, number, use, mean)

    def _wire_load(self, stage: Stage, times: _Times) -> ResourceLoad:
        """Return the busiest lane of a stage."""
        wire = stage.lanes[0]
        if len(stage.lanes) > 1:
            wire = stage.lanes[
                int(np.argmax(self.usage.of("wire", stage.lanes, *times[0])))
            ]
        load = self._load("wire", wire, times)
        key = (wire, tuple(stage.group), times[1])
        if key not in self._usual:
            self._usual[key] = self._usual_load(*key)
        sibling, usual = self._usual[key]
        return load if sibling < 0 else load._replace(usual=usual, sibling=sibling)

    def _usual_load(
        self, wire: int, group: tuple[int, ...], span: tuple[int, int]
    ) -> tuple[int, float]:
        """Return a wire like another one, -1 if there is none, and the median of their use in a span."""
        peers = [other for other in group if other != wire]
        if not peers:
            peers = [
                int(w) for w in self._peers[self.network.classes[wire]] if w != wire
            ]
        if not peers:
            return -1, 0.0
        return peers[0], float(np.median(self.usage.of("wire", peers, *span)))

    def pace_ps(self, step: Step) -> int:
        """Return the time that the CTA itself needs for the bytes of a transfer; of a thread, before it [ps]."""
        if self.walk.threads.serves(step.instance):
            return 0
        table = self.walk.slices.table(step.instance)
        expand = int(self._image["conns"]["expand_120"][step.connection])
        size = -(-int(table.bytes[step.seq]) * expand // 120)
        return self.network.copy_ps(
            step.instance, int(table.prim[step.seq]), size, step.start_ps
        )

    def is_request(self, step: Step) -> bool:
        """Return True if a transfer is one of requests and answers."""
        conn = self._image["conns"][step.connection]
        kind, flags = int(conn["kind"]), self.flags_of(step)
        fetched = int(conn["stage"]) != NONE and step.endpoint == int(conn["dst"])
        return (
            kind in (ConnKind.READ, ConnKind.AGGREGATION)
            or fetched
            or bool(kind == ConnKind.MULTIMEM and flags & Op.REDUCE)
        )

    def flags_of(self, step: Step) -> int:
        """Return the flags of the operation of a segment."""
        return self.walk.slices.flags(
            int(self.walk.slices.table(step.instance).prim[step.seq])
        )

    def fixed_ps(self, step: Step) -> int:
        """Return the fixed cost of the slice that a segment transfers [ps]."""
        return self.network.cost_ps("fixed_ps", step.instance, step.start_ps)


def busiest(loads: list[ResourceLoad]) -> ResourceLoad:
    """Return the first of the things that are about as busy as the busiest."""
    highest = max(load.use for load in loads)
    cta = [load for load in loads if load.what == "cta" and load.use >= highest]
    return (
        cta[0] if cta else next(load for load in loads if load.use >= NEAR * highest)
    )


def next_limit(first: ResourceLoad, loads: list[ResourceLoad]) -> float:
    """Return the utilisation of the next limit, as a share of the busiest resource's time."""
    if first.mean <= 0.0:
        return 1.0
    means = [load.mean for load in loads if load is not first]
    return min(1.0, max([first.usual, *means]) / first.mean)
