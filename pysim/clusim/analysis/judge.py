"""Diagnosis of a run from its critical path: causes, phases, savings.

Causes are merged over equivalent CTAs, ranks and wires.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from clusim.analysis.charge import Charge
from clusim.analysis.critical import Critical
from clusim.analysis.limits import limit
from clusim.analysis.walk import Step, StepKind
from clusim.analysis.whatif import Change, mended
from clusim.base.terms.links import joined, kind_of, named, several, tier_of
from clusim.base.terms.times import includes
from clusim.results.diagnosis import (
    LEAST_PHASE,
    LEAST_SHARE,
    MOST_CAUSES,
    CauseKind,
    Phase,
    Verdict,
    VerdictCause,
)
from clusim.results.result import Result

FULL = 0.9
"""Utilisation from which a wire is the bottleneck: no other fix saves more than the rest."""

ALSO = 0.8
"""Utilisation from which a wire limits a run together with its bottleneck."""

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
class _Sum:
    ps: int = 0
    places: dict[str, None] = field(default_factory=dict)
    wires: set[int] = field(default_factory=set)
    endpoints: set[int] = field(default_factory=set)
    rivals: set[int] = field(default_factory=set)


_Key = tuple[CauseKind, str]


def judged(run: Critical) -> Judged:
    """Return the diagnosis by critical path; raises `TraceError` if it cannot be followed."""
    sums: dict[_Key, _Sum] = {}
    spans: list[tuple[int, int, dict[_Key, int]]] = []
    steps = list(run.walk.steps())
    for step in steps:
        parts: Counter[_Key] = Counter()
        for charge in run.charges(step):
            if charge.ps:
                key = (charge.cause, _detail(run, charge, step))
                parts[key] += charge.ps
                _add(run, sums.setdefault(key, _Sum()), charge, step)
        spans.append((step.start_ps, step.end_ps, parts))
    result = run.traced.result
    total = sum(step.length_ps for step in steps)
    ordered = sorted(sums.items(), key=lambda item: (-item[1].ps, item[0]))
    ordered = _full_first(run, ordered)[:MOST_CAUSES]
    told = [item for i, item in enumerate(ordered) if not i or item[1].ps >= LEAST_SHARE * total]
    changes = [_change(run, kind, entry) for (kind, _), entry in told]
    causes = [_cause(run, steps, item, change) for item, change in zip(told, changes, strict=True)]
    if causes:
        causes[0] = replace(causes[0], also=_also(run, told[0][0], changes[0]))
    verdict = Verdict(total, tuple(causes), _phases(spans[::-1]), includes=_includes(result))
    return Judged(verdict, tuple(changes))


def _full_first(run: Critical, ordered: list[tuple[_Key, _Sum]]) -> list[tuple[_Key, _Sum]]:
    """Return the causes, the busiest wire first if no fix saves more than its idle time.

    The busy time of a wire is a path of the run and as critical as the path of the walk: a walk picks one of two
    equal paths arbitrarily. Its idle time is divided among the other causes in proportion to their parts of the walk,
    so that all parts add up to the run. A fault or rivals that the walk found for that wire are more specific than
    its load.
    """
    result, network = run.traced.result, run.traced.network
    busy = result.wires.counters["busy_ps"]
    wire = int(np.argmax(busy))
    kind = run.charger.wire_cause(wire)
    key = (kind, _wire_detail(kind, network.classes[wire]))
    known = {place for (cause, _), entry in ordered if cause in _NAMED for place in entry.places}
    contended = any(cause is CauseKind.CONTENTION for (cause, _), _ in ordered)
    if busy[wire] < FULL * result.time_ps or network.link(wire) in known or contended:
        return ordered
    sums = dict(ordered)
    entry = sums.pop(key, None) or _Sum()
    others_ps = sum(one.ps for one in sums.values())
    rest_ps = max(0, entry.ps + others_ps - int(busy[wire]))
    if rest_ps < others_ps:
        entry.ps += others_ps - rest_ps
        _scale(list(sums.values()), rest_ps)
    entry.wires.add(wire)
    entry.places[network.link(wire)] = None
    return [(key, entry), *sums.items()]


def _scale(entries: list[_Sum], total_ps: int) -> None:
    """Scale times to a smaller total [ps]."""
    before_ps, done_ps = 0, 0
    all_ps = sum(entry.ps for entry in entries)
    for entry in entries:
        before_ps += entry.ps
        entry.ps = before_ps * total_ps // all_ps - done_ps
        done_ps += entry.ps


def _also(run: Critical, key: _Key, change: Change | None) -> tuple[str, ...]:
    """Return further kinds of links that limit the run, each with the busy share of its busiest wire."""
    result, network = run.traced.result, run.traced.network
    busy = result.wires.counters["busy_ps"] / max(1, result.time_ps)
    shares: dict[tuple[CauseKind, str], float] = {}
    for wire in np.flatnonzero(busy >= ALSO).tolist():
        if change is None or wire not in change.wires:
            kind = run.charger.wire_cause(wire)
            other = kind, _wire_detail(kind, network.classes[wire])
            shares[other] = max(shares.get(other, 0.0), float(busy[wire]))
    shares.pop(key, None)
    ordered = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        f"{VerdictCause(*other, (), 0).words()} ({share:.1%} busy)" for other, share in ordered
    )


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
        return _wire_detail(charge.cause, network.classes[charge.wire])
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


def _wire_detail(kind: CauseKind, wire_class: str) -> str:
    """Return the links that a cause is about: PCIe is one, however it branches."""
    return named("pcie") if kind is CauseKind.PCIE else joined(wire_class)


def _add(run: Critical, entry: _Sum, charge: Charge, step: Step) -> None:
    network = run.traced.network
    entry.ps += charge.ps
    entry.endpoints.add(step.endpoint)
    entry.rivals |= charge.rivals
    if charge.wire >= 0:
        entry.wires.add(charge.wire)
        entry.places[network.link(charge.wire)] = None
    elif step.endpoint in network.with_rank:
        entry.places[f"rank {network.ranks[step.endpoint]}"] = None


def _change(run: Critical, kind: CauseKind, entry: _Sum) -> Change | None:
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


def _cause(
    run: Critical, steps: list[Step], candidate: tuple[_Key, _Sum], change: Change | None
) -> VerdictCause:
    (kind, detail), entry = candidate
    saving: int | None = entry.ps
    if kind in (CauseKind.SLOTS, CauseKind.OTHER):
        saving = None
    elif change is not None and change.factor != 1:
        before = sum(step.length_ps for step in steps)
        saving = before - round(sum(run.charger.scaled_ps(step, change.scale) for step in steps))
    if saving is not None and change is not None:
        saving = min(saving, _most_saved(run, change))
    places = () if detail and kind not in (*_WIRES, CauseKind.MEMORY) else tuple(entry.places)
    return VerdictCause(kind, detail, places, entry.ps, saving)


def _most_saved(run: Critical, change: Change) -> int:
    """Return the largest possible saving of a change [ps], limited by the busiest other wire."""
    result = run.traced.result
    others = np.ones(len(result.wires.names), bool)
    others[list(change.wires)] = change.what == "without"
    fullest = int(result.wires.counters["busy_ps"][others].max(initial=0))
    return result.time_ps - (0 if change.what == "without" else fullest)


def _phases(spans: Iterable[tuple[int, int, dict[_Key, int]]]) -> tuple[Phase, ...]:
    """Return the phases of a path, given its segments in the order of time.

    The middle is the stretch in which the time of moving bytes, or of computing kernels, exceeds the other time by
    the largest amount. The start precedes it, the tail follows it.
    """
    rows = list(spans)
    if not rows:
        return ()
    total = rows[-1][1] - rows[0][0]
    work = [
        sum(ps for (kind, _), ps in parts.items() if kind in _MOVING | _WORKING)
        for *_, parts in rows
    ]
    gain = np.array(
        [2 * group - (end - start) for group, (start, end, _) in zip(work, rows, strict=True)]
    )
    low, high = _largest_stretch(gain)
    if high and rows[high - 1][1] - rows[low][0] < LEAST_MIDDLE * total:
        low = high = 0
    ends = [0, low, high, len(rows)]
    phases = []
    names = ("start", "", "tail") if high else ("", "", "whole run")
    for name, first, last in zip(names, ends, ends[1:], strict=False):
        group = rows[first:last]
        length = group[-1][1] - group[0][0] if group else 0
        if length < max(1.0, LEAST_PHASE * total):
            continue
        sums: Counter[_Key] = Counter()
        for *_, parts in group:
            sums.update(parts)
        (kind, detail), _ = max(sums.items(), key=lambda item: (item[1], item[0]))
        computes = sum(ps for (cause, _), ps in sums.items() if cause in _WORKING)
        middle = "computing" if 2 * computes > length else "bandwidth"
        phases.append(Phase(name or middle, group[0][0], group[-1][1], kind, detail))
    return tuple(phases)


def _largest_stretch(gain: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[int, int]:
    """Return the half-open stretch with the largest sum; (0, 0) if no sum is above 0."""
    sums = np.concatenate(([0], np.cumsum(gain)))
    least = np.minimum.accumulate(sums)
    high = int(np.argmax(sums - least))
    if sums[high] <= least[high]:
        return 0, 0
    return int(np.flatnonzero(sums[: high + 1] == least[high])[-1]), high
