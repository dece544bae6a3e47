"""Attribution of a critical-path segment: its time, cut into parts that add up exactly.

The time of a transfer is attributed to the busiest resource on its path, found in the histories of the trace: a wire,
a memory, a reduction unit or the CTA. The part that the path needs anyway, until the next busiest resource or the
median of the parallel wires would be the limit, is work. The excess of the busiest resource is a stall, and is the
critical-path estimate of the saving if only this resource is upgraded. Time in which even the busiest resource was
idle is also a stall.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clusim.analysis.network import Network, Stage
from clusim.analysis.rivals import Rivals
from clusim.analysis.walk import Step, StepKind, Walk
from clusim.engine.abi import NONE, ConnKind, Op
from clusim.results.bins import Usage
from clusim.results.diagnosis import CauseKind, wire_key

Array = NDArray[Any]

NEAR = 0.98
"""Share of the largest utilisation from which the first resource on the path is named.

Later resources on the path only follow the rate of the first.
"""

_KINDS = {"hbm": CauseKind.MEMORY, "unit": CauseKind.UNIT}
"""Kind of resource of a transfer, besides wires and CTAs -> its cause."""

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


class _Load(NamedTuple):
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
        names = np.array(network.classes)
        rates = network.wires["rate_num"] / np.maximum(1, network.wires["rate_den"])
        self._best = {
            name: float(rates[names == name].max()) * (1 - 1e-9) for name in set(network.classes)
        }
        self._peers = {
            name: np.flatnonzero(used & (names == name)) for name in set(network.classes)
        }

    # ---- parts of a segment

    def charges(self, step: Step) -> Iterator[Charge]:
        """Yield the parts of a step; their times add up to its length."""
        if step.kind is StepKind.TRANSFER:
            return self._transfer(step)
        if step.kind is StepKind.FLIGHT:
            return self._flight(step)
        if step.kind is StepKind.KERNEL:
            return self._kernel(step)
        if step.kind in (StepKind.PACE, StepKind.FIXED):
            return self._cta(step)
        return iter([self._plain(step)])

    def _rank(self, endpoint: int) -> str:
        if endpoint not in self.network.with_rank:
            return self.network.endpoint_name(endpoint)
        return f"rank {self.network.ranks[endpoint]}"

    def _is_proxy(self, step: Step) -> bool:
        return step.instance >= self.network.num_programs

    def _plain(self, step: Step) -> Charge:
        rank, length = self._rank(step.endpoint), step.length_ps
        if step.kind in (StepKind.TAIL, StepKind.HEAD):
            conn = self._image["conns"][step.connection]
            ends = [self.network.ranks[int(conn[end])] for end in ("src", "dst")]
            flag = "data ready" if step.kind is StepKind.TAIL else "slots free"
            return Charge(
                *("cost", f"flags {ends[0]}->{ends[1]}", f"flag: {flag}", length),
                CauseKind.LATENCY,
            )
        if step.kind is StepKind.LAUNCH:
            return Charge(
                *("cost", f"launch of {rank}", "staggered CTA start", length),
                CauseKind.LAUNCH,
            )
        if step.kind is StepKind.SLOT:
            return Charge("stall", f"CTA slots of {rank}", "all in use", length, CauseKind.SLOTS)
        if step.kind is StepKind.DELAY:
            return Charge(
                *("cost", f"delays of {rank}", "pause in the schedule", length), CauseKind.LAUNCH
            )
        return Charge("cost", rank, "task without slices", length, CauseKind.OTHER)

    def _cta(self, step: Step) -> Iterator[Charge]:
        """Yield the nominal time of a CTA's segment, and the excess of a slow rank."""
        rank = self._rank(step.endpoint)
        if self.walk.threads.serves(step.instance):
            nominal_ps = min(step.length_ps, self._fixed_ps(step))
            where = f"proxies at {rank}"
            yield Charge("cost", where, "work posted to the NIC", nominal_ps, CauseKind.PROXY)
            rest = step.length_ps - nominal_ps
            yield Charge(
                "stall", where, "proxy thread busy with other messages", rest, CauseKind.PROXY
            )
            return
        nominal = self._nominal(step, step.length_ps)
        if self._is_proxy(step):
            charge = ("cost", f"proxies at {rank}", "work posted to the NIC", nominal)
            yield Charge(*charge, CauseKind.PROXY)
        elif step.kind is StepKind.FIXED:
            yield Charge(
                *("cost", f"CTAs of {rank}", "per-slice overhead", nominal), CauseKind.STEP
            )
        else:
            yield Charge(*("work", f"CTAs of {rank}", "copy/reduce", nominal), CauseKind.CTA)
        yield from self._slow(rank, step.length_ps - nominal)

    def _nominal(self, step: Step, length_ps: int) -> int:
        """Return the time of a CTA's work at the nominal pace of its rank [ps]."""
        slow = self.network.slow_1024(step.endpoint, step.start_ps)
        return min(length_ps, length_ps * 1024 // max(1, slow))

    @staticmethod
    def _slow(rank: str, lost_ps: int) -> Iterator[Charge]:
        if lost_ps:
            yield Charge("stall", rank, "slow rank", lost_ps, CauseKind.STRAGGLER)

    def _kernel(self, step: Step) -> Iterator[Charge]:
        """Yield the time of a kernel without contention on its GPU, and its loss to SM sharing."""
        task = self._image["tasks"][step.task]
        ends = self._image["endpoints"][step.endpoint]
        compute = int(task["compute_ps"])
        memory = int(task["mem_bytes"]) * int(ends["mem_cost16"]) >> 16
        rank, length = self._rank(step.endpoint), step.length_ps
        alone = min(length, max(compute, memory))
        bound = "memory" if memory > compute else "compute"
        cause = CauseKind.MEMORY if bound == "memory" else CauseKind.COMPUTE
        yield Charge("work", f"kernels of {rank}", f"kernel, {bound}-bound", alone, cause)
        slow = self.network.slow_1024(step.endpoint, step.start_ps)
        lost = length - alone
        dragged = min(lost, max(0, compute * (slow - 1024) // 1024)) if slow > 1024 else 0
        yield from self._slow(rank, dragged)
        if lost > dragged:
            memory_bound = bound == "memory"
            resource = f"HBM of {rank}" if memory_bound else f"SMs of {rank}"
            reason = "kernel shares with others"
            yield Charge("stall", resource, reason, lost - dragged, CauseKind.SHARING)

    # ---- transfers

    def _transfer(self, step: Step) -> Iterator[Charge]:
        latency, loads = self.loads(step)
        if latency:
            where = f"latency to {self._rank(step.endpoint)}"
            yield Charge("cost", where, "round trips", latency, CauseKind.LATENCY)
        length = step.length_ps - latency
        if not length:
            return
        first = _busiest(loads)
        busy = int(length * first.use)
        # While this CTA was otherwise occupied, the busiest resource served other transfers: use the complete turn.
        turn = length + latency + self._fixed_ps(step)
        stall = int(turn * first.use * (1.0 - self._next(first, loads)))
        load = busy - min(stall, busy)
        yield from self._split(step, first, load, busy)
        idle = length - busy
        if idle:
            yield from self._idle(step, first, idle)

    def _split(self, step: Step, first: _Load, load: int, busy: int) -> Iterator[Charge]:
        """Yield the time in which the busiest thing was busy, as load and as stall."""
        if first.what == "wire":
            yield from self._on_wire(step, first, load, busy)
            return
        if first.what == "cta":
            rank, nominal = self._rank(step.endpoint), self._nominal(step, busy)
            yield Charge("work", f"CTAs of {rank}", "CTA throughput", nominal, CauseKind.CTA)
            yield from self._slow(rank, busy - nominal)
            return
        name, cause = self._name(first), _KINDS[first.what]
        yield Charge("work", name, "bytes served", load, cause)
        if busy > load:
            yield Charge("stall", name, "slowest component of the path", busy - load, cause)

    def _on_wire(self, step: Step, first: _Load, load: int, busy: int) -> Iterator[Charge]:
        """Yield the busy time of a wire by cause.

        The parts are the load of this and the parallel wires, rivals, and the excess of a slow or overloaded wire.
        """
        wire, name, rivals = first.number, self.network.link(first.number), frozenset[int]()
        if self.rivals is not None:
            part, who = self.rivals.share(step.task, wire, step.start_ps, step.end_ps)
            taken, rivals = int(busy * part), frozenset(who)
            if taken:
                charge = ("stall", name, "busy with other collectives", taken)
                yield Charge(*charge, CauseKind.CONTENTION, wire, rivals)
            busy -= taken
            load = min(load, busy)
        cause = self.wire_cause(wire)
        yield Charge("work", name, "transmission", load, cause, wire)
        if busy > load:
            broken = self.network.rate(wire, step.start_ps) < self._best[self.network.classes[wire]]
            why = CauseKind.FAULT if broken else CauseKind.UNEVEN
            reason = "degraded or overloaded, against parallel wires"
            yield Charge("stall", name, reason, busy - load, why, wire)

    def wire_cause(self, wire: int) -> CauseKind:
        """Return the kind of cause of traffic on a wire."""
        return wire_key(self.network.classes[wire])[0]

    def _next(self, first: _Load, loads: list[_Load]) -> float:
        """Return the utilisation of the next limit, as a share of the busiest resource's time."""
        if first.mean <= 0.0:
            return 1.0
        others = [load.mean for load in loads if load is not first]
        return min(1.0, max([first.usual, *others]) / first.mean)

    def _fixed_ps(self, step: Step) -> int:
        """Return the fixed cost of the slice that a segment transfers [ps]."""
        cost = self._image["costs"][int(self._image["instances"]["cost"][step.instance])]
        slow = self.network.slow_1024(step.endpoint, step.start_ps)
        return (int(cost["fixed_ps"]) * slow) >> 10

    def _name(self, load: _Load) -> str:
        if load.what == "hbm":
            return f"HBM of {self._rank(load.number)}"
        node = int(self._image["units"]["node"][load.number])
        return f"reduction unit of {self.network.nodes[node]}"

    def _idle(self, step: Step, first: _Load, idle: int) -> Iterator[Charge]:
        """Yield the time in which not even the busiest thing was busy."""
        if first.what == "wire":
            stalled = self.usage.no_credit(first.number, step.start_ps, step.end_ps)
            credit = min(idle, int(step.length_ps * stalled))
            if credit:
                charge = ("stall", self.network.link(first.number), "no credit", credit)
                yield Charge(*charge, CauseKind.CREDIT, first.number)
            idle -= credit
        if not idle:
            return
        rank = self._rank(step.endpoint)
        if self._asks(step):
            charge = ("stall", f"window of {rank}", "read window exhausted, wire idle", idle)
            yield Charge(*charge, CauseKind.WINDOW)
        else:
            charge = ("stall", f"CTAs of {rank}", "wire idle between packets", idle)
            yield Charge(*charge, CauseKind.CTA)

    def _asks(self, step: Step) -> bool:
        """Return True if a transfer is one of requests and answers."""
        conn = self._image["conns"][step.connection]
        kind, flags = int(conn["kind"]), self._flags(step)
        fetched = int(conn["stage"]) != NONE and step.endpoint == int(conn["dst"])
        return (
            kind in (ConnKind.READ, ConnKind.AGGREGATION)
            or fetched
            or bool(kind == ConnKind.MULTIMEM and flags & Op.REDUCE)
        )

    def _flags(self, step: Step) -> int:
        return self.walk.slices.flags(int(self.walk.slices.table(step.instance).prim[step.seq]))

    def loads(self, step: Step) -> tuple[int, list[_Load]]:
        """Return the latency of a transfer [ps], and the things it needs in the order of its way."""
        flags = self._flags(step)
        network = self.network
        # While this CTA was otherwise occupied, the wire served other transfers: use the complete turn.
        span = (step.start_ps - self._fixed_ps(step), step.end_ps)
        latency = 0
        if self._asks(step):
            latency = min(step.length_ps, network.latency_ps(step.connection, step.endpoint, flags))
        stages = network.stages_of(step.connection, step.endpoint, flags)
        whole = self._whole(step)
        result = [
            self._wire_load(stage, span, whole) for stage in narrow(stages, step.wire, network)
        ]
        conn = self._image["conns"][step.connection]
        ends = (int(conn["src"]), int(conn["dst"]))
        if int(conn["stage"]) != NONE:
            ends = (step.endpoint, int(conn["stage"]))
        if int(conn["kind"]) in (ConnKind.MULTIMEM, ConnKind.AGGREGATION):
            ends = (step.endpoint, step.endpoint)
        for end in dict.fromkeys(ends):
            use, mean = (self.usage.memory(end, *time) for time in (span, whole))
            result.append(_Load("hbm", end, use, mean))
        for unit in network.units_of(step.connection) if flags & (Op.REDUCE | Op.AGGREGATE) else ():
            use, mean = (self.usage.unit(unit, *time) for time in (span, whole))
            result.append(_Load("unit", unit, use, mean))
        turn = max(1, step.end_ps - span[0])
        pace = self._pace_ps(step, flags)
        utilisation = min(1.0, pace / max(1, step.length_ps - latency))
        least = (turn - step.length_ps + latency + pace) / turn
        result.append(_Load("cta", step.endpoint, utilisation, min(1.0, least)))
        return latency, result

    def _whole(self, step: Step) -> tuple[int, int]:
        """Return the time of the task that a step belongs to [ps]."""
        start_ps, end_ps = self.walk.task_span(step.task)
        return start_ps, max(end_ps, step.end_ps)

    def _wire_load(self, stage: Stage, span: tuple[int, int], whole: tuple[int, int]) -> _Load:
        """Return the busiest lane of a stage."""
        uses = self.usage.busy(stage.lanes, *span)
        lane = int(np.argmax(uses))
        wire = stage.lanes[lane]
        peers = [other for other in stage.group if other != wire]
        if not peers:
            peers = [int(w) for w in self._peers[self.network.classes[wire]] if w != wire]
        mean = float(self.usage.busy([wire], *whole)[0])
        usual = float(np.median(self.usage.busy(peers, *whole))) if peers else 0.0
        return _Load("wire", wire, float(uses[lane]), mean, usual, peers[0] if peers else -1)

    def _pace_ps(self, step: Step, flags: int) -> int:
        """Return the time that the CTA itself needs for the bytes of a transfer [ps]."""
        table = self.walk.slices.table(step.instance)
        opcode = int(self._image["prims"]["opcode"][int(table.prim[step.seq])])
        cost = int(self._image["instances"]["cost"][step.instance])
        slow = self.network.slow_1024(step.endpoint, step.start_ps)
        q = (int(self._image["costs"]["op_cost16"][cost][opcode]) * slow) >> 10
        expand = int(self._image["conns"]["expand_120"][step.connection])
        size = -(-int(table.bytes[step.seq]) * expand // 120)
        return (size * q) >> 16

    def _flight(self, step: Step) -> Iterator[Charge]:
        """Yield the latency of a write's last packets, and their queueing after the first wire."""
        alone = min(step.length_ps, self.network.flight_ps(step.connection))
        conn = self._image["conns"][step.connection]
        source, target = int(conn["src"]), int(conn["dst"])
        ends = [self.network.ranks[end] for end in (source, target)]
        if alone:
            charge = ("cost", f"latency {ends[0]}->{ends[1]}", "flight of packets", alone)
            yield Charge(*charge, CauseKind.LATENCY)
        rest = step.length_ps - alone
        if not rest:
            return
        loads = self._behind(step)
        first = _busiest(loads)
        busy = int(rest * first.use)
        load = int(busy * self._next(first, loads))
        yield from self._split(step, first, load, busy)
        if rest > busy:
            wire = first.number if first.what == "wire" else -1
            name = self.network.link(wire) if wire >= 0 else self._name(first)
            cause = self.wire_cause(wire) if wire >= 0 else CauseKind.MEMORY
            charge = ("stall", name, "queueing upstream", rest - busy)
            yield Charge(*charge, cause, wire)

    def _behind(self, step: Step) -> list[_Load]:
        """Return the time of written packets after their first wire."""
        conn = self._image["conns"][step.connection]
        source, target = int(conn["src"]), int(conn["dst"])
        span, whole = (step.start_ps, step.end_ps), self._whole(step)
        stages = self.network.stages_of(step.connection, source, 0)
        loads = [self._wire_load(stage, span, whole) for stage in stages[1:] or stages]
        use, mean = (self.usage.memory(target, *time) for time in (span, whole))
        return [*loads, _Load("hbm", target, use, mean)]

    # ---- effect of faster resources

    def scaled_ps(self, step: Step, scale: Scale) -> float:
        """Return the length of a segment [ps] with scaled resources, otherwise unchanged."""
        kind, endpoint, length = step.kind, step.endpoint, float(step.length_ps)
        if kind is StepKind.TRANSFER:
            return self._scaled_transfer(step, scale)
        if kind is StepKind.FLIGHT:
            alone = min(length, self.network.flight_ps(step.connection))
            first = _busiest(self._behind(step))
            queue = (length - alone) / scale(first.what, first.number)
            return alone / scale("latency", endpoint) + queue
        proxied = step.instance >= 0 and self.walk.threads.serves(step.instance)
        name = {
            StepKind.PACE: "cta",
            StepKind.FIXED: "proxy" if proxied else "step",
            StepKind.TAIL: "latency",
            StepKind.HEAD: "latency",
            StepKind.LAUNCH: "launch",
            StepKind.DELAY: "launch",
        }.get(kind)
        if kind is StepKind.KERNEL:
            task = self._image["tasks"][step.task]
            memory = int(task["mem_bytes"]) * int(self._image["endpoints"]["mem_cost16"][endpoint])
            name = "hbm" if memory >> 16 > int(task["compute_ps"]) else "compute"
        return length / scale(name, endpoint) if name else length

    def _scaled_transfer(self, step: Step, scale: Scale) -> float:
        latency, loads = self.loads(step)
        length = step.length_ps - latency
        first = _busiest(loads)
        needs = [(load.what, load.number, load.mean) for load in loads]
        if first.sibling >= 0:
            needs.append((first.what, first.sibling, first.usual))
        before = max(mean for _, _, mean in needs)
        after = max(mean / scale(resource, index) for resource, index, mean in needs)
        gain = first.use * (1.0 - after / before) if before > 0 else 0.0
        turn = step.length_ps + self._fixed_ps(step)
        least = min(length, self._pace_ps(step, self._flags(step))) / scale("cta", step.endpoint)
        return latency / scale("latency", step.endpoint) + max(least, length - turn * gain, 0.0)


def _busiest(loads: list[_Load]) -> _Load:
    """Return the first of the things that are about as busy as the busiest."""
    most = max(load.use for load in loads)
    cta = [load for load in loads if load.what == "cta" and load.use >= most]
    return cta[0] if cta else next(load for load in loads if load.use >= NEAR * most)


def narrow(stages: list[Stage], wire: int, network: Network) -> list[Stage]:
    """Return the stages with only the lanes to or from the wire that the last data crossed."""
    where = next((i for i, stage in enumerate(stages) if wire in stage.lanes), None)
    if where is None:
        return stages
    kept = list(stages)
    kept[where] = Stage([wire], stages[where].group)
    source, target = network.wires["src"], network.wires["dst"]
    for i in range(where + 1, len(stages)):
        ends = {int(target[w]) for w in kept[i - 1].lanes}
        lanes = [w for w in stages[i].lanes if int(source[w]) in ends]
        kept[i] = Stage(lanes or stages[i].lanes, stages[i].group)
    for i in range(where - 1, -1, -1):
        ends = {int(source[w]) for w in kept[i + 1].lanes}
        lanes = [w for w in stages[i].lanes if int(target[w]) in ends]
        kept[i] = Stage(lanes or stages[i].lanes, stages[i].group)
    return kept
