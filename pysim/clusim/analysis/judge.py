"""Diagnosis of a run from its critical path: causes, phases, savings.

Causes are merged over equivalent CTAs, ranks and wires. Resource and instance of a charge, and a census of each class,
are counted from the run: wires by class, NICs, ranks with programs, proxy threads and reduction units of its image,
with the counters and faults of its wires.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np

from clusim.analysis.charge import Charge
from clusim.analysis.critical import Critical
from clusim.analysis.limits import limit
from clusim.analysis.network import Network
from clusim.analysis.walk import Step, StepKind
from clusim.analysis.whatif import Change, mended
from clusim.base.records import dataclass
from clusim.base.terms.links import kind_of, several, tier_of
from clusim.base.terms.times import includes
from clusim.engine.abi import NONE, FaultKind
from clusim.results.causes import (
    AS_BUSY,
    CauseKind,
    Census,
    Key,
    PartKey,
    VerdictCause,
    also_limiting,
    scaled,
    summed,
    wire_key,
)
from clusim.results.diagnosis import SplitSpan, Verdict, diagnose
from clusim.results.result import Result

_OWNER = re.compile(r" (?:of|at|to) | \d.*")
"""Start of the instance in the resource of a charge: ``CTAs of rank 3``, ``flags 0->1``."""

_NODE = re.compile(r"n(\d+)/(.+)")

_NAMES = {"proxies": "proxy threads", "reduction unit": "reduction units", "rank": "CTAs"}
"""Resource of a charge -> name, if they differ; a slow rank has slow CTAs or kernels."""


def instance_name(node: str) -> str:
    """Return the name of a NIC or switch in a sentence: ``nic2 of node 1``."""
    match = _NODE.fullmatch(node)
    return f"{match[2]} of node {match[1]}" if match else node


_AT_HOSTS = " at hosts"
"""End of the resource of endpoints without a rank."""


class CausePlaces:
    """Places of the charges of a run.

    Parameters
    ----------
    run : Critical
        The run, with its counters.
    """

    def __init__(self, run: Critical) -> None:
        self._network: Network = run.traced.network
        self._rates = run.traced.result.wires
        self._image = self._network.image
        self._counted: dict[str, Census] = {}
        self._on_path: dict[str, set[str]] = defaultdict(set)

    def of(self, charge: Charge, step: Step) -> tuple[str, str]:
        """Return the resource and the instance of a charge."""
        if charge.wire >= 0:
            return self.of_wire(charge.wire)
        resource = _OWNER.split(charge.resource, maxsplit=1)[0]
        resource, place = _NAMES.get(resource, resource), self._endpoint(step.endpoint)
        if charge.cause is CauseKind.UNIT:
            place = instance_name(charge.resource.partition(" of ")[2])
        elif step.endpoint not in self._network.with_rank:
            resource += _AT_HOSTS
        self._on_path[resource].add(place)
        return resource, place

    def of_wire(self, wire: int) -> tuple[str, str]:
        """Return the link class of a wire on the path, and its link or NIC."""
        resource, place = self._network.classes[wire], self._wire_place(wire)
        self._on_path[resource].add(place)
        return resource, place

    def _wire_place(self, wire: int) -> str:
        network = self._network
        name = network.classes[wire]
        if wire_key(name)[0] is not CauseKind.NIC:
            return network.link(wire)
        end = "src" if name.rpartition(" ")[2].startswith("nic-") else "dst"
        return instance_name(network.nodes[int(network.wires[end][wire])])

    def _endpoint(self, endpoint: int) -> str:
        network = self._network
        if endpoint in network.with_rank:
            return f"rank {network.ranks[endpoint]}"
        return network.endpoint_name(endpoint)

    def census(self, key: tuple[CauseKind, str], resource: str) -> Census:
        """Count the instances of a resource of a cause, after the last charge."""
        kind, image = key[0], self._image
        if resource in self._classes:
            if resource not in self._counted:
                self._counted[resource] = self._wires(resource)
            return self._counted[resource]
        if kind is CauseKind.PROXY:
            threads = image["instances"]["thread"]
            return Census("proxy threads", len(np.unique(threads[threads != NONE])))
        if kind is CauseKind.UNIT:
            return Census("reduction units", len(image["units"]))
        if resource.endswith(_AT_HOSTS):
            return Census("hosts", len(image["endpoints"]) - len(self._network.with_rank))
        notes = self._slow if resource in ("CTAs", "kernels") else {}
        return Census("ranks", len(self._ranks), notes=notes)

    @cached_property
    def _classes(self) -> frozenset[str]:
        return frozenset(self._network.classes)

    @cached_property
    def _ranks(self) -> set[int]:
        """Endpoints of ranks with programs or kernels."""
        image = self._image
        used = np.union1d(image["instances"]["endpoint"], image["tasks"]["endpoint"])
        return set(used.tolist()) & self._network.with_rank

    @cached_property
    def _slow(self) -> dict[str, str]:
        """Slow ranks, with their largest factor."""
        slow = self._image["endpoints"]["slow_1024"].astype(np.int64)
        for fault in self._image["faults"]:
            if fault["kind"] == FaultKind.SLOW:
                index = int(fault["index"])
                slow[index] = max(slow[index], int(fault["num"]))
        return {
            self._endpoint(end): f"slow x{slow[end] / 1024:.3g}"
            for end in np.flatnonzero(slow > 1024).tolist()
        }

    def _instances(self, name: str) -> dict[str, list[int]]:
        """Return the instances of a link class, each with its wires."""
        rows: dict[str, list[int]] = {}
        for wire in np.flatnonzero(np.array(self._network.classes, object) == name).tolist():
            rows.setdefault(self._wire_place(wire), []).append(wire)
        return rows

    def _wires(self, name: str) -> Census:
        """Count the instances of a link class, by load and by faults."""
        rows, counters = self._instances(name), self._rates.counters
        left = self._rates.effective_Bps / np.maximum(self._rates.rate_Bps, 1e-300)
        busy = {place: int(counters["busy_ps"][wires].max()) for place, wires in rows.items()}
        most = max((busy[place] for place in self._on_path[name] if place in busy), default=0)
        limiting = [place for place in rows if most and busy[place] >= AS_BUSY * most]
        down = [place for place, wires in rows.items() if not left[wires].any()]
        notes = {
            place: f"at {float(left[wires].mean()):.0%} of its rate"
            for place, wires in rows.items()
            if 0 < left[wires].mean() < 1 - 1e-9
        }
        parts: tuple[str, ...] = ()
        if down and self._carries_more(rows, limiting, down):
            parts = tuple(self._parts_down(rows, down))
        unit = "NICs" if wire_key(name)[0] is CauseKind.NIC else "links"
        return Census(unit, len(rows), tuple(limiting), len(down), parts, notes)

    def _carries_more(self, rows: dict[str, list[int]], some: list[str], down: list[str]) -> bool:
        """Return True if instances carry more than the mean of a class, failed instances included."""
        counters = self._rates.counters
        total = counters["bytes"].astype(np.int64) + counters["control_bytes"].astype(np.int64)
        carried = {place: int(total[wires].sum()) for place, wires in rows.items()}
        if not some or len(down) == len(rows):
            return False
        mean = sum(carried[place] for place in some) / len(some)
        return mean > sum(carried.values()) / len(rows)

    def _parts_down(self, rows: dict[str, list[int]], down: list[str]) -> Iterable[str]:
        """Yield the graph nodes without a remaining link, or without one of a class, then further links."""
        network, lost = self._network, set(down)
        alive = np.flatnonzero(self._rates.effective_Bps > 0)
        living = {*network.wires["src"][alive].tolist(), *network.wires["dst"][alive].tolist()}
        ends: dict[int, set[str]] = defaultdict(set)
        for place, wires in rows.items():
            for wire in wires:
                for end in ("src", "dst"):
                    ends[int(network.wires[end][wire])].add(place)
        dead = {node: places for node, places in ends.items() if places <= lost}
        named: set[str] = set()
        for node in sorted(dead, key=lambda node: (node in living, -len(dead[node]), node)):
            places = dead[node]
            if places <= named or (node in living and len(places) == 1):
                continue
            named |= places
            yield instance_name(network.nodes[node])
        yield from (place for place in down if place not in named)


FULL = 0.9
"""Utilisation from which a wire is the bottleneck: no other fix saves more than the rest."""

LEAST_MIDDLE = 0.2
"""Smallest share of the run of a middle phase that separates a start and a tail."""

_RESOURCES = {
    CauseKind.LATENCY: "latency",
    CauseKind.STEP: "step",
    CauseKind.LAUNCH: "launch",
    CauseKind.PROXY: "proxy",
    CauseKind.CTA: "cta",
    CauseKind.MEMORY: "hbm",
    CauseKind.UNIT: "unit",
    CauseKind.COMPUTE: "compute",
}
"""Cause -> resource that `clusim.analysis.whatif` makes twice as fast."""

_WIRES = (CauseKind.WIRE, CauseKind.NIC, CauseKind.PCIE)
_NAMED = (CauseKind.FAULT, CauseKind.UNEVEN, CauseKind.CREDIT)
_MOVING = {*_WIRES, CauseKind.CTA, CauseKind.MEMORY, CauseKind.UNIT, CauseKind.UNEVEN}
_MOVING |= {CauseKind.FAULT, CauseKind.CONTENTION, CauseKind.CREDIT, CauseKind.WINDOW}
_WORKING = {CauseKind.COMPUTE, CauseKind.SHARING, CauseKind.STRAGGLER}


@dataclass(frozen=True, slots=True)
class Judged:
    """Diagnosis, with the change to the run's image that fixes each cause; None without a fix."""

    verdict: Verdict
    changes: tuple[Change | None, ...] = ()


@dataclass(slots=True)
class _Found:
    """Elements of a cause on the path."""

    wires: set[int] = field(default_factory=set)
    endpoints: set[int] = field(default_factory=set)
    rivals: set[int] = field(default_factory=set)


def judged(run: Critical) -> Judged:
    """Return the diagnosis by critical path; raises `TraceError` if it cannot be followed."""
    found: dict[Key, _Found] = defaultdict(_Found)
    segments: list[SplitSpan] = []
    places = CausePlaces(run)
    for step in run.walk.steps():
        parts: Counter[PartKey] = Counter()
        for charge in run.charges(step):
            if charge.ps:
                key = (charge.cause, _detail(run, charge, step))
                parts[*key, *places.of(charge, step)] += charge.ps
                _add(found[key], charge, step)
        segments.append(SplitSpan("", step.start_ps, step.end_ps, parts))
    phases = _full_first(run, _phases(segments[::-1]), found, places)

    def order(sums: Mapping[Key, int]) -> list[Key]:
        return sorted(sums, key=lambda key: (key != phases.first, -sums[key], key))

    def finish(cause: VerdictCause) -> VerdictCause:
        changes[cause.key] = _change(run, cause.kind, found[cause.key])
        if len(changes) > 1:
            return cause
        return replace(cause, also=_also(run, cause.key, changes[cause.key]))

    changes: dict[Key, Change | None] = {}
    verdict = diagnose(phases.spans, order, places.census, finish)
    verdict = replace(verdict, includes=_includes(run.traced.result))
    return Judged(verdict, tuple(changes.values()))


class _Split(NamedTuple):
    """Phases of a run, and the cause that has priority if a wire is the bottleneck."""

    spans: list[SplitSpan]
    first: Key | None = None


def _full_first(
    run: Critical, spans: list[SplitSpan], found: dict[Key, _Found], places: CausePlaces
) -> _Split:
    """Return the time by cause in each phase, the busiest wire first if no fix saves more than its idle time.

    The busy time of a wire is a path of the run and as critical as the path of the walk: a walk picks one of two
    equal paths arbitrarily. Its idle time is divided among the other causes in proportion to their parts of the walk,
    so that all parts add up to the run and to its phases. A fault or rivals that the walk found for that wire are more
    specific than its load.
    """
    result, network = run.traced.result, run.traced.network
    busy = result.wires.counters["busy_ps"]
    wire = int(np.argmax(busy))
    key = wire_key(network.classes[wire])
    known = {one for kind, what in found if kind in _NAMED for one in found[kind, what].wires}
    same = {network.link(one) for one in known}
    contended = any(cause is CauseKind.CONTENTION for cause, _ in found)
    if busy[wire] < FULL * result.time_ps or network.link(wire) in same or contended:
        return _Split(spans)
    cells = {(i, part): ps for i, span in enumerate(spans) for part, ps in span.parts.items()}
    others = {cell: ps for cell, ps in cells.items() if cell[1][:2] != key}
    whole_ps = sum(cells.values())
    own_ps = max(whole_ps - sum(others.values()), min(whole_ps, int(busy[wire])))
    new: list[dict[PartKey, int]] = [{} for _ in spans]
    for (i, part), ps in scaled(others, whole_ps - own_ps).items():
        new[i][part] = ps
    place = places.of_wire(wire)
    for i, span in enumerate(spans):
        mine = {part: ps for part, ps in span.parts.items() if part[:2] == key}
        rest_ps = span.end_ps - span.start_ps - sum(new[i].values())
        new[i] |= scaled(mine or {(*key, *place): 1}, rest_ps)
    found[key].wires.add(wire)
    spans = [span._replace(parts=parts) for span, parts in zip(spans, new, strict=True)]
    return _Split(spans, key)


def _also(run: Critical, key: Key, change: Change | None) -> tuple[str, ...]:
    """Return further kinds of links that limit the run, each with the busy share of its busiest wire."""
    result, classes = run.traced.result, run.traced.network.classes
    busy = result.wires.counters["busy_ps"] / max(1, result.time_ps)
    changed = frozenset[int]() if change is None else change.wires
    shares = ((classes[w], float(busy[w])) for w in range(len(busy)) if w not in changed)
    return also_limiting(shares, key)


def without_path(result: Result, why: str) -> Verdict:
    """Return the diagnosis of a run without critical path: its busiest wire, and the reason."""
    top = limit(result)
    if top is not None:
        why += f"; the fullest wire, {top.name}, was busy for {top.reached:.1%} of the time"
    return Verdict(result.time_ps, (), basis=why, includes=_includes(result))


def _includes(result: Result) -> str:
    if result.call is None or not result.complete:
        return ""
    launched_ps = result.launched_ps
    return includes(None if launched_ps is None else launched_ps / 1e6, result.model_us)


def _detail(run: Critical, charge: Charge, step: Step) -> str:
    """Return the detail of a cause: one name for equal links, a separate one for an outlier."""
    network, rivals = run.traced.network, run.charger.rivals
    if charge.cause in _WIRES:
        return wire_key(network.classes[charge.wire])[1]
    if charge.cause in _NAMED:
        return network.link(charge.wire)
    if charge.cause is CauseKind.CONTENTION and rivals is not None:
        return several(sorted({rivals.name(call) for call in charge.rivals}))
    if charge.cause is CauseKind.STRAGGLER:
        return f"rank {network.ranks[step.endpoint]}"
    if charge.cause is CauseKind.MEMORY:
        on_gpu = step.kind is StepKind.KERNEL or charge.resource.startswith("HBM of rank")
        return "of GPUs" if on_gpu else "of hosts"
    return ""


def _add(entry: _Found, charge: Charge, step: Step) -> None:
    entry.endpoints.add(step.endpoint)
    entry.rivals |= charge.rivals
    if charge.wire >= 0:
        entry.wires.add(charge.wire)


def _change(run: Critical, kind: CauseKind, entry: _Found) -> Change | None:
    """Return the change of the image that removes a cause or halves it; None if impossible."""
    network = run.traced.network
    if kind in _RESOURCES:
        return Change(_RESOURCES[kind], Fraction(2))
    if kind in _WIRES:
        keys = [_alike(kind, name) for name in network.classes]
        alike = {keys[wire] for wire in entry.wires}
        wires = frozenset(wire for wire, key in enumerate(keys) if key in alike)
        return Change("wires", Fraction(2), wires)
    if kind is CauseKind.FAULT:
        return mended(network.wires, network.classes, entry.wires)
    if kind is CauseKind.STRAGGLER:
        return Change("straggler", Fraction(1), endpoints=frozenset(entry.endpoints))
    if kind is CauseKind.CONTENTION and run.charger.rivals is not None:
        return Change(
            "without", Fraction(1), tasks=run.charger.rivals.tasks_of(frozenset(entry.rivals))
        )
    return None


def _alike(kind: CauseKind, wire_class: str) -> tuple[str, str]:
    """Return the common name of a cause's link classes: PCIe is one, however it branches."""
    tier = "" if kind is CauseKind.PCIE else tier_of(wire_class)
    return kind_of(wire_class), tier


def _phases(rows: list[SplitSpan]) -> list[SplitSpan]:
    """Return the phases of a path, given its segments in the order of time.

    The middle is the stretch in which the time of moving bytes, or of computing kernels, exceeds the other time by
    the largest amount. The start precedes it, the tail follows it.
    """
    total = sum(row.end_ps - row.start_ps for row in rows)
    gain = np.array(
        [2 * _time(row, _MOVING | _WORKING) - row.end_ps + row.start_ps for row in rows]
    )
    low, high = _largest_stretch(gain)
    if high and rows[high - 1].end_ps - rows[low].start_ps < LEAST_MIDDLE * total:
        low = high = 0
    phases = []
    names = ("start", "", "tail") if high else ("", "", "whole run")
    for name, group in zip(names, (rows[:low], rows[low:high], rows[high:]), strict=True):
        if group:
            ends = group[0].start_ps, group[-1].end_ps
            phase = SplitSpan(name, *ends, summed(row.parts for row in group))
            computes = 2 * _time(phase, _WORKING) > ends[1] - ends[0]
            middle = "computing" if computes else "bandwidth"
            phases.append(phase._replace(name=name or middle))
    return phases


def _time(span: SplitSpan, kinds: set[CauseKind]) -> int:
    return sum(ps for (kind, *_), ps in span.parts.items() if kind in kinds)


def _largest_stretch(gain: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[int, int]:
    """Return the half-open stretch with the largest sum; (0, 0) if no sum is above 0."""
    sums = np.concatenate(([0], np.cumsum(gain)))
    least = np.minimum.accumulate(sums)
    high = int(np.argmax(sums - least))
    if sums[high] <= least[high]:
        return 0, 0
    return int(np.flatnonzero(sums[: high + 1] == least[high])[-1]), high
