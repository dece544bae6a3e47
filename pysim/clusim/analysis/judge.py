"""Diagnosis of a run from its critical path: causes, phases, savings.

Causes are merged over equivalent CTAs, ranks and wires.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from clusim.analysis.charge import Charge
from clusim.analysis.critical import Critical
from clusim.analysis.limits import limit
from clusim.analysis.walk import Step, StepKind
from clusim.analysis.whatif import Change, mended
from clusim.base.terms.links import kind_of, several, tier_of
from clusim.base.terms.times import includes
from clusim.results.diagnosis import (
    MOST_CAUSES,
    CauseKind,
    Key,
    SplitSpan,
    Verdict,
    VerdictCause,
    also_limiting,
    diagnose,
    scaled,
    summed,
    wire_key,
)
from clusim.results.result import Result

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
    """Places of a cause on the path."""

    places: dict[str, None] = field(default_factory=dict)
    wires: set[int] = field(default_factory=set)
    endpoints: set[int] = field(default_factory=set)
    rivals: set[int] = field(default_factory=set)


def judged(run: Critical) -> Judged:
    """Return the diagnosis by critical path; raises `TraceError` if it cannot be followed."""
    found: dict[Key, _Found] = defaultdict(_Found)
    segments: list[SplitSpan] = []
    steps = list(run.walk.steps())
    for step in steps:
        parts: Counter[Key] = Counter()
        for charge in run.charges(step):
            if charge.ps:
                key = (charge.cause, _detail(run, charge, step))
                parts[key] += charge.ps
                _add(run, found[key], charge, step)
        segments.append(SplitSpan("", step.start_ps, step.end_ps, parts))
    sums = summed(segment.parts for segment in segments)
    ordered = dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))
    ordered = _full_first(run, ordered, found)
    changes = {key: _change(run, key[0], found[key]) for key in [*ordered][:MOST_CAUSES]}

    def cause_of(key: Key) -> VerdictCause:
        change, (kind, detail) = changes[key], key
        saving_ps = _saving_ps(run, steps, (kind, ordered[key]), change)
        hidden = detail and kind not in (*_WIRES, CauseKind.MEMORY)
        places = () if hidden else tuple(found[key].places)
        also = _also(run, key, change) if key == next(iter(ordered)) else ()
        return VerdictCause(kind, detail, places, ordered[key], saving_ps, also=also)

    verdict = diagnose(_phases(segments[::-1]), ordered, cause_of, MOST_CAUSES)
    verdict = replace(verdict, includes=_includes(run.traced.result))
    return Judged(verdict, tuple(changes[cause.kind, cause.what] for cause in verdict.causes))


def _full_first(run: Critical, ordered: dict[Key, int], found: dict[Key, _Found]) -> dict[Key, int]:
    """Return the time by cause, the busiest wire first if no fix saves more than its idle time.

    The busy time of a wire is a path of the run and as critical as the path of the walk: a walk picks one of two
    equal paths arbitrarily. Its idle time is divided among the other causes in proportion to their parts of the walk,
    so that all parts add up to the run. A fault or rivals that the walk found for that wire are more specific than
    its load.
    """
    result, network = run.traced.result, run.traced.network
    busy = result.wires.counters["busy_ps"]
    wire = int(np.argmax(busy))
    key = wire_key(network.classes[wire])
    known = {place for one in ordered if one[0] in _NAMED for place in found[one].places}
    contended = any(cause is CauseKind.CONTENTION for cause, _ in ordered)
    if busy[wire] < FULL * result.time_ps or network.link(wire) in known or contended:
        return ordered
    others = {other: ps for other, ps in ordered.items() if other != key}
    whole_ps = sum(ordered.values())
    own_ps = max(ordered.get(key, 0), min(whole_ps, int(busy[wire])))
    found[key].wires.add(wire)
    found[key].places[network.link(wire)] = None
    return {key: own_ps, **scaled(others, whole_ps - own_ps)}


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


def _add(run: Critical, entry: _Found, charge: Charge, step: Step) -> None:
    network = run.traced.network
    entry.endpoints.add(step.endpoint)
    entry.rivals |= charge.rivals
    if charge.wire >= 0:
        entry.wires.add(charge.wire)
        entry.places[network.link(charge.wire)] = None
    elif step.endpoint in network.with_rank:
        entry.places[f"rank {network.ranks[step.endpoint]}"] = None


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


def _saving_ps(
    run: Critical, steps: list[Step], part: tuple[CauseKind, int], change: Change | None
) -> int | None:
    """Return the critical-path estimate of what a change of a cause saves [ps]; None if unknown."""
    kind, saving_ps = part
    if kind in (CauseKind.SLOTS, CauseKind.OTHER):
        return None
    if change is None:
        return saving_ps
    if change.factor != 1:
        saving_ps = sum(step.length_ps for step in steps) - run.scaled_ps(steps, change)
    return min(saving_ps, _most_saved(run, change))


def _most_saved(run: Critical, change: Change) -> int:
    """Return the largest possible saving of a change [ps], limited by the busiest other wire."""
    result = run.traced.result
    others = np.ones(len(result.wires.names), bool)
    others[list(change.wires)] = change.what == "without"
    fullest = int(result.wires.counters["busy_ps"][others].max(initial=0))
    return result.time_ps - (0 if change.what == "without" else fullest)


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
    return sum(ps for (kind, _), ps in span.parts.items() if kind in kinds)


def _largest_stretch(gain: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[int, int]:
    """Return the half-open stretch with the largest sum; (0, 0) if no sum is above 0."""
    sums = np.concatenate(([0], np.cumsum(gain)))
    least = np.minimum.accumulate(sums)
    high = int(np.argmax(sums - least))
    if sums[high] <= least[high]:
        return 0, 0
    return int(np.flatnonzero(sums[: high + 1] == least[high])[-1]), high
