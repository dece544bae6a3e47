"""Attribution of a critical-path segment: its time, cut into parts that add up exactly.

The time of a transfer is attributed to the busiest resource on its path, found in the histories of the trace: a wire,
a memory, a reduction unit or the CTA. The part that the path needs anyway, until the next busiest resource or the
median of the parallel wires would be the limit, is work. The excess of the busiest resource is a stall, and is the
critical-path estimate of the saving if only this resource is upgraded. Time in which even the busiest resource was
idle is also a stall.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from clusim.analysis.loads import PathLoads, ResourceLoad, busiest, next_limit
from clusim.analysis.network import Delay, Network
from clusim.analysis.rivals import Rivals
from clusim.analysis.walk import Step, StepKind, Walk
from clusim.base.arrays import Array
from clusim.results.bins import Usage
from clusim.results.cause_kinds import CauseKind
from clusim.results.causes import wire_key

_PLAIN = {
    StepKind.TAIL: ("cost", "flags {ends}", "flag: data ready", CauseKind.LATENCY),
    StepKind.HEAD: ("cost", "flags {ends}", "flag: slots free", CauseKind.LATENCY),
    StepKind.LAUNCH: (
        "cost",
        "launch of {rank}",
        "staggered CTA start",
        CauseKind.LAUNCH,
    ),
    StepKind.SLOT: ("stall", "CTA slots of {rank}", "all in use", CauseKind.SLOTS),
    StepKind.DELAY: (
        "cost",
        "delays of {rank}",
        "pause in the schedule",
        CauseKind.LAUNCH,
    ),
    StepKind.TASK: ("cost", "{rank}", "task without slices", CauseKind.OTHER),
}
"""Segments with one part: its group, resource, reason and cause."""

_SCALED_AS = {
    **{StepKind.PACE: "cta", StepKind.FIXED: "step", StepKind.TAIL: "latency"},
    **{
        StepKind.HEAD: "latency",
        StepKind.LAUNCH: "launch",
        StepKind.DELAY: "launch",
    },
}
"""Segments on one resource, by its name in `Scale`."""

_FIGURES = {**_SCALED_AS, StepKind.TAIL: "flags", StepKind.HEAD: "flags"}
"""Segments that depend on one figure, by its name in `clusim.analysis.whatif.Change`."""

Scale = Callable[[str, int], float]
"""Factors of faster hardware by kind (wire hbm unit cta step latency compute launch) and number."""


class Charge(NamedTuple):
    """Part of a segment.

    `group` is ``stall`` (lost), ``cost`` (latencies and fixed costs) or ``work`` (bytes moving, kernels computing);
    `cause` is its cause in the diagnosis, `rivals` are the other calls that kept a wire busy.
    """

    group: str
    resource: str
    reason: str
    ps: int
    cause: CauseKind
    wire: int = -1
    rivals: frozenset[int] = frozenset()


class Charger:
    """Time breakdown of the segments of a walk.

    Parameters
    ----------
    walk : Walk
        Source of the segments.
    usage : Usage
        Histories of the same trace.
    used : ndarray of bool, shape (wires,)
        Wires with traffic; only these are used for the median of their class.
    rivals : Rivals or None
        Collectives that share wires; None does not distinguish them.
    """

    def __init__(
        self,
        walk: Walk,
        network: Network,
        usage: Usage,
        used: Array,
        rivals: Rivals | None = None,
    ) -> None:
        self.walk, self.network, self.usage = walk, network, usage
        self._image, self.rivals = network.image, rivals
        self.loads = PathLoads(walk, network, usage, used)
        names = np.array(network.classes)
        rates = network.wires["rate_num"] / np.maximum(1, network.wires["rate_den"])
        self._best = {
            name: float(rates[names == name].max()) for name in set(network.classes)
        }

    def charges(self, step: Step) -> list[Charge]:
        """Return the parts of a step; their times add up to its length."""
        if step.kind is StepKind.TRANSFER:
            parts = self._transfer(step)
        elif step.kind is StepKind.FLIGHT:
            parts = self._flight(step)
        elif step.kind is StepKind.KERNEL:
            parts = self._kernel(step)
        elif step.kind in (StepKind.PACE, StepKind.FIXED):
            parts = self._cta(step)
        else:
            rank, ends = self._rank(step.endpoint), self._ends(step.connection)
            group, resource, reason, cause = _PLAIN[step.kind]
            resource = resource.format(rank=rank, ends=ends)
            return [Charge(group, resource, reason, step.length_ps, cause)]
        return [part for part in parts if part.ps]

    def _rank(self, endpoint: int) -> str:
        if endpoint not in self.network.with_rank:
            return self.network.endpoint_name(endpoint)
        return f"rank {self.network.ranks[endpoint]}"

    def _ends(self, connection: int) -> str:
        """Return the ranks that a connection joins: ``0->1``; empty without connection."""
        if connection < 0:
            return ""
        conn, ranks = self._image["conns"][connection], self.network.ranks
        return f"{ranks[int(conn['src'])]}->{ranks[int(conn['dst'])]}"

    def _cta(self, step: Step) -> Iterator[Charge]:
        """Yield the nominal time of a CTA's segment, and the excess of a slow rank or a busy proxy thread."""
        rank, length = self._rank(step.endpoint), step.length_ps
        served = self.walk.threads.serves(step.instance)
        nominal = (
            min(length, self.loads.fixed_ps(step))
            if served
            else self._nominal(step, length)
        )
        proxies = f"proxies at {rank}"
        if served or step.instance >= self.network.num_programs:
            yield Charge(
                "cost", proxies, "work posted to the NIC", nominal, CauseKind.PROXY
            )
        elif step.kind is StepKind.FIXED:
            yield Charge(
                "cost",
                f"CTAs of {rank}",
                "per-slice overhead",
                nominal,
                CauseKind.STEP,
            )
        else:
            yield Charge(
                "work", f"CTAs of {rank}", "copy/reduce", nominal, CauseKind.CTA
            )
        excess = length - nominal
        if served:
            reason = "proxy thread busy with other messages"
            yield Charge("stall", proxies, reason, excess, CauseKind.PROXY)
        else:
            yield _slow(rank, excess)

    def _nominal(self, step: Step, length_ps: int) -> int:
        """Return the time of a CTA's work at the nominal pace of its rank [ps]."""
        slow = self.network.slow_1024(step.endpoint, step.start_ps)
        return min(length_ps, length_ps * 1024 // max(1, slow))

    def _alone(self, step: Step) -> tuple[int, int]:
        """Return the time of a kernel's compute and of its memory traffic if nothing shares its GPU [ps]."""
        task, ends = (
            self._image["tasks"][step.task],
            self._image["endpoints"][step.endpoint],
        )
        return int(task["compute_ps"]), int(task["mem_bytes"]) * int(
            ends["mem_cost16"]
        ) >> 16

    def _kernel(self, step: Step) -> Iterator[Charge]:
        """Yield the time of a kernel without contention on its GPU, and its loss to SM sharing."""
        compute, memory = self._alone(step)
        rank, length = self._rank(step.endpoint), step.length_ps
        alone = min(length, max(compute, memory))
        bound, cause, shared = "compute", CauseKind.COMPUTE, "SMs"
        if memory > compute:
            bound, cause, shared = "memory", CauseKind.MEMORY, "HBM"
        yield Charge(
            "work", f"kernels of {rank}", f"kernel, {bound}-bound", alone, cause
        )
        slow, lost = (
            self.network.slow_1024(step.endpoint, step.start_ps),
            length - alone,
        )
        dragged = min(lost, max(0, compute * (slow - 1024) // 1024))
        yield _slow(rank, dragged)
        reason = "kernel shares with others"
        yield Charge(
            "stall", f"{shared} of {rank}", reason, lost - dragged, CauseKind.SHARING
        )

    # ---- transfers

    def _transfer(self, step: Step) -> Iterator[Charge]:
        latency, loads = self.loads.of(step)
        where, length = (
            f"latency to {self._rank(step.endpoint)}",
            step.length_ps - latency,
        )
        yield Charge("cost", where, "round trips", latency, CauseKind.LATENCY)
        first = busiest(loads)
        busy = int(length * first.use)
        # While this CTA was otherwise occupied, the busiest resource served other transfers: use the complete turn.
        turn = step.length_ps + self.loads.fixed_ps(step)
        stall = int(turn * first.use * (1.0 - next_limit(first, loads)))
        yield from self._split(step, first, busy - min(stall, busy), busy)
        yield from self._idle(step, first, length - busy)

    def _split(
        self, step: Step, first: ResourceLoad, load: int, busy: int
    ) -> Iterator[Charge]:
        """Yield the time in which the busiest thing was busy, as load and as stall."""
        if first.what == "wire":
            yield from self._on_wire(step, first.number, load, busy)
        elif first.what == "cta":
            rank, nominal = self._rank(step.endpoint), self._nominal(step, busy)
            yield Charge(
                "work", f"CTAs of {rank}", "CTA throughput", nominal, CauseKind.CTA
            )
            yield _slow(rank, busy - nominal)
        else:
            name, cause = self._resource_name(first)
            yield Charge("work", name, "bytes served", load, cause)
            yield Charge(
                "stall", name, "slowest component of the path", busy - load, cause
            )

    def _on_wire(
        self, step: Step, wire: int, load: int, busy: int
    ) -> Iterator[Charge]:
        """Yield the busy time of a wire by cause.

        The parts are the load of this and the parallel wires, rivals, the time that the wire would not need at its
        nominal rate, and the excess of an overloaded wire.
        """
        name = self.network.link(wire)
        if self.rivals is not None:
            part, who = self.rivals.share(
                step.task, wire, step.start_ps, step.end_ps
            )
            busy_part = int(busy * part)
            charge = ("stall", name, "busy with other collectives", busy_part)
            yield Charge(*charge, CauseKind.CONTENTION, wire, frozenset(who))
            busy -= busy_part
            load = min(load, busy)
        best = self._best[self.network.classes[wire]]
        rate_share = min(1.0, self.network.rate(wire, step.start_ps) / best)
        lost = int(busy * (1 - rate_share)) if rate_share < 1 - 1e-6 else 0
        load, cause = min(load, busy - lost), self.wire_cause(wire)
        yield Charge("work", name, "transmission", load, cause, wire)
        yield Charge("stall", name, "degraded", lost, CauseKind.FAULT, wire)
        queued = busy - load - lost
        yield Charge(
            "stall", name, "overloaded, against parallel wires", queued, cause, wire
        )

    def wire_cause(self, wire: int) -> CauseKind:
        """Return the kind of cause of traffic on a wire."""
        return wire_key(self.network.classes[wire])[0]

    def _resource_name(self, load: ResourceLoad) -> tuple[str, CauseKind]:
        """Return the name of a resource besides CTAs, and the kind of cause that it is."""
        if load.what == "wire":
            return self.network.link(load.number), self.wire_cause(load.number)
        if load.what == "hbm":
            return f"HBM of {self._rank(load.number)}", CauseKind.MEMORY
        node = int(self._image["units"]["node"][load.number])
        return f"reduction unit of {self.network.nodes[node]}", CauseKind.UNIT

    def _idle(self, step: Step, first: ResourceLoad, idle: int) -> Iterator[Charge]:
        """Yield the time in which not even the busiest thing was busy."""
        if first.what == "wire":
            stalled = self.usage.one(
                "credit", first.number, step.start_ps, step.end_ps
            )
            credit = min(idle, int(step.length_ps * stalled))
            name = self.network.link(first.number)
            yield Charge(
                "stall", name, "no credit", credit, CauseKind.CREDIT, first.number
            )
            idle -= credit
        share = self.usage.held_share(step.connection, step.start_ps, step.end_ps)
        held_ps = min(idle, int(step.length_ps * share))
        reason = "rate or window of its policy"
        yield Charge("stall", "rate control", reason, held_ps, CauseKind.RATE)
        idle -= held_ps
        rank = self._rank(step.endpoint)
        if self.walk.threads.serves(step.instance):
            reason = "wire idle between messages"
            yield Charge(
                "stall", f"proxies at {rank}", reason, idle, CauseKind.PROXY
            )
        elif self.loads.is_request(step):
            reason = "read window exhausted, wire idle"
            yield Charge(
                "stall", f"window of {rank}", reason, idle, CauseKind.WINDOW
            )
        else:
            yield Charge(
                "stall",
                f"CTAs of {rank}",
                "wire idle between packets",
                idle,
                CauseKind.CTA,
            )

    def _flight(self, step: Step) -> Iterator[Charge]:
        """Yield the latency of a write's last packets, and their queueing after the first wire."""
        alone = min(step.length_ps, self.network.flight_ps(step.connection))
        where = f"latency {self._ends(step.connection)}"
        yield Charge("cost", where, "flight of packets", alone, CauseKind.LATENCY)
        queued = step.length_ps - alone
        if not queued:
            return
        loads = self.loads.after_first_wire(step)
        first = busiest(loads)
        busy = int(queued * first.use)
        yield from self._split(
            step, first, int(busy * next_limit(first, loads)), busy
        )
        name, cause = self._resource_name(first)
        wire = first.number if first.what == "wire" else -1
        yield Charge("stall", name, "queueing upstream", queued - busy, cause, wire)

    # ---- effect of faster resources

    def scaled_ps(self, step: Step, scale: Scale) -> float:
        """Return the length of a segment [ps] with scaled resources, otherwise unchanged."""
        kind, endpoint, length = step.kind, step.endpoint, float(step.length_ps)
        if kind is StepKind.TRANSFER:
            return self._scaled_transfer(step, scale)
        if kind is StepKind.FLIGHT:
            alone = min(length, self.network.flight_ps(step.connection))
            first = busiest(self.loads.after_first_wire(step))
            queue = (length - alone) / scale(first.what, first.number)
            return alone / scale("latency", endpoint) + queue
        name = _SCALED_AS.get(kind)
        if kind is StepKind.FIXED and self.walk.threads.serves(step.instance):
            name = "proxy"
        if kind is StepKind.KERNEL:
            compute, memory = self._alone(step)
            name = "hbm" if memory > compute else "compute"
        return length / scale(name, endpoint) if name else length

    def figures(self, step: Step) -> Iterator[Delay]:
        """Yield the time of a segment by figure; the parts add up to its length.

        The name is empty for time without a figure.
        """
        kind, length = step.kind, step.length_ps
        if kind is StepKind.TRANSFER:
            yield from self._transfer_figures(step)
        elif kind is StepKind.FLIGHT:
            alone = list(_within(self.network.flight(step.connection), length))
            yield from alone
            remainder = length - sum(delay.ps for delay in alone)
            yield from (
                self._bound(busiest(self.loads.after_first_wire(step)), remainder)
                if remainder
                else ()
            )
        elif kind is StepKind.KERNEL:
            compute, memory = self._alone(step)
            yield Delay("hbm" if memory > compute else "compute", length)
        elif kind in (StepKind.PACE, StepKind.FIXED) and self.walk.threads.serves(
            step.instance
        ):
            yield Delay("proxy", length)
        else:
            yield Delay(_FIGURES.get(kind, ""), length)

    def _transfer_figures(self, step: Step) -> Iterator[Delay]:
        """Yield the time of a transfer: latencies, and its busiest resource.

        Time in which a full window kept the busiest wire idle depends on the latencies.
        """
        latency, loads = self.loads.of(step)
        first, remainder, flags = (
            busiest(loads),
            step.length_ps - latency,
            self.loads.flags_of(step),
        )
        if not latency:
            yield from self._bound(first, remainder)
            return
        size = int(self.walk.slices.table(step.instance).bytes[step.seq])
        rate = self.network.way_rate(step.connection, step.endpoint, flags)
        moving = int(size / rate) if rate else 0
        busy = min(remainder, max(moving, int(remainder * first.use)))
        yield from self._bound(first, busy)
        delays = list(self.network.latencies(step.connection, step.endpoint, flags))
        all_ps, done_ps, before_ps = sum(delay.ps for delay in delays), 0, 0
        for delay in delays:
            before_ps += delay.ps
            part_ps = before_ps * (step.length_ps - busy) // all_ps - done_ps
            done_ps += part_ps
            yield delay._replace(ps=part_ps)

    def _bound(self, load: ResourceLoad, ps: int) -> Iterator[Delay]:
        """Yield a time that a resource limits."""
        on_wire = load.what == "wire"
        yield Delay(
            "wires" if on_wire else load.what, ps, load.number if on_wire else -1
        )

    def _scaled_transfer(self, step: Step, scale: Scale) -> float:
        latency, loads = self.loads.of(step)
        length = step.length_ps - latency
        first = busiest(loads)
        needs = [(load.what, load.number, load.mean) for load in loads]
        if first.sibling >= 0:
            needs.append((first.what, first.sibling, first.usual))
        before = max(mean for _, _, mean in needs)
        after = max(mean / scale(resource, index) for resource, index, mean in needs)
        gain = first.use * (1.0 - after / before) if before > 0 else 0.0
        turn = step.length_ps + self.loads.fixed_ps(step)
        pace_ps = min(length, self.loads.pace_ps(step)) / scale("cta", step.endpoint)
        return latency / scale("latency", step.endpoint) + max(
            pace_ps, length - turn * gain, 0.0
        )


def _slow(rank: str, lost_ps: int) -> Charge:
    return Charge("stall", rank, "slow rank", lost_ps, CauseKind.STRAGGLER)


def _within(delays: Iterable[Delay], most_ps: int) -> Iterator[Delay]:
    """Yield delays that add up to `most_ps` or less; headers, which overlap with data, are shortened first."""
    ordered = sorted(delays, key=lambda delay: delay.what != "wires")
    excess_ps = max(0, sum(delay.ps for delay in ordered) - most_ps)
    for delay in ordered:
        cut_ps = min(delay.ps, excess_ps)
        excess_ps -= cut_ps
        yield delay._replace(ps=delay.ps - cut_ps)
