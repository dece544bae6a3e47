"""Diagnosis of a run from its critical path: causes, phases, savings.

Causes are merged over equivalent CTAs, ranks and wires (`clusim.analysis.cause_places`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from clusim.analysis.cause_places import CausePlaces, instance_name
from clusim.analysis.charge import Charge
from clusim.analysis.critical import Critical, Traced
from clusim.analysis.limits import limit
from clusim.analysis.remedies import (
    HALF_FULL,
    LEAST_PART,
    SHORTER_TIMEOUTS,
    WITHOUT_RATE_CONTROL,
    OnPath,
    Remedy,
    faster_hardware,
    remedies_of,
    repair_of,
)
from clusim.analysis.servers import Servers
from clusim.analysis.slices import Slices
from clusim.analysis.walk import Step, StepKind
from clusim.base.records import dataclass
from clusim.base.terms.links import link_class_name, several
from clusim.base.terms.times import includes
from clusim.results.cause_kinds import SETTINGS, CauseKind
from clusim.results.causes import (
    ALSO,
    Key,
    PartKey,
    VerdictCause,
    also_limiting,
    by_cause,
    divide_time,
    sum_times,
    wire_key,
)
from clusim.results.diagnosis import SplitSpan, Verdict, diagnose
from clusim.results.result import Result

LEAST_MIDDLE = 0.2
"""Smallest share of the run of a middle phase that separates a start and a tail."""

_WIRES = (CauseKind.WIRE, CauseKind.NIC, CauseKind.PCIE)
_MOVING = {*_WIRES, CauseKind.CTA, CauseKind.MEMORY, CauseKind.UNIT}
_MOVING |= {
    CauseKind.FAULT,
    CauseKind.CONTENTION,
    CauseKind.CREDIT,
    CauseKind.WINDOW,
}
_MOVING |= {CauseKind.RATE, CauseKind.TIMEOUT}
_WORKING = {CauseKind.COMPUTE, CauseKind.SHARING, CauseKind.STRAGGLER}


@dataclass(frozen=True, slots=True)
class Judged:
    """Diagnosis of a run by its critical path, and remedies in the order of estimated savings."""

    verdict: Verdict
    remedies: tuple[Remedy, ...] = ()


def judged(run: Critical) -> Judged:
    """Return the diagnosis by critical path; raises `TraceError` if it cannot be followed."""
    on_path: dict[Key, OnPath] = defaultdict(OnPath)
    segments: list[SplitSpan] = []
    places = CausePlaces(run.traced, run.servers)
    for step in run.walk.steps():
        parts: Counter[PartKey] = Counter()
        for charge in run.charges(step):
            if charge.ps:
                key = (charge.cause, _detail(run, charge, step))
                parts[*key, *places.of(charge, step)] += charge.ps
                _add(on_path[key], charge, step)
        segments.append(SplitSpan("", step.start_ps, step.end_ps, parts))
    phases = _phases(segments[::-1])
    changes = faster_hardware(run.traced, on_path)
    for key, entry in on_path.items():
        repair = repair_of(run, key, entry)
        if repair is not None:
            changes.setdefault(repair, []).append(key)
    sums = by_cause(sum_times(span.parts for span in phases))
    return _diagnosis(
        run.traced, run.servers, (phases, places), remedies_of(run, sums, changes)
    )


def judged_by_servers(traced: Traced, why: str) -> Judged:
    """Return the diagnosis of a run without critical path, by its fullest wire; `why` is the reason."""
    network, result = traced.network, traced.result
    slices = Slices(network.image, np.zeros(len(network.image["tasks"])))
    servers = Servers(result, network, slices, traced.inputs.texts("tasks/stream"))
    busy = result.wires.counters["busy_ps"]
    if not len(busy) or not busy.any():
        return Judged(
            Verdict(result.time_ps, (), basis=why, includes=_includes(result))
        )
    wire, places = int(np.argmax(busy)), CausePlaces(traced, servers)
    busy_ps = min(result.time_ps, int(busy[wire]))
    parts: dict[PartKey, int] = {
        (*wire_key(network.classes[wire]), *places.of_wire(wire)): busy_ps
    }
    idle = _idle_parts(result, places, result.time_ps - busy_ps)
    parts |= idle
    parts[CauseKind.OTHER, "", "", ""] = (
        result.time_ps - busy_ps - sum(idle.values())
    )
    sums = {
        key: ps
        for key, ps in by_cause(parts).items()
        if key[0] is not CauseKind.OTHER
    }
    hardware = [key for key in sums if key[0] not in _IDLE]
    changes = faster_hardware(traced, dict.fromkeys(hardware, OnPath()))
    full = {
        words
        for one in servers.classes
        if one.busy >= HALF_FULL
        for words in one.remedies
    }
    remedies = _idle_remedies(result, servers, idle)
    for (words, change), keys in changes.items():
        if words in full and words != "slots x2":
            most_ps = max(0, result.time_ps - int(servers.least_ps(words)))
            remedies.append(Remedy(words, change, tuple(keys), most_ps, most_ps))
    remedies.sort(key=lambda one: (-one.most_ps, one.words))
    if not remedies or (busy_ps < HALF_FULL * result.time_ps and not idle):
        return Judged(replace(without_path(result, why), servers=servers.classes))
    spans = [SplitSpan("", 0, result.time_ps, parts)]
    diagnosis = _diagnosis(traced, servers, (spans, places), remedies)
    return Judged(
        replace(diagnosis.verdict, order=f"by busy time; {why}"), diagnosis.remedies
    )


_IDLE = {CauseKind.RATE: WITHOUT_RATE_CONTROL, CauseKind.TIMEOUT: SHORTER_TIMEOUTS}
"""Causes of time in which not even the fullest wire is busy, and their remedies."""


def _idle_parts(
    result: Result, places: CausePlaces, idle_ps: int
) -> dict[PartKey, int]:
    """Return the parts of `idle_ps` in which the slowest NIC waited for timeouts, or policies held their flows."""
    parts: dict[PartKey, int] = {}
    waits = places.timeouts.by_nic
    slowest = max(waits, key=lambda nic: waits[nic], default="")
    waited_ps = min(idle_ps, waits.get(slowest, 0))
    if waited_ps >= max(1, LEAST_PART * result.time_ps):
        parts[CauseKind.TIMEOUT, "", "retransmission", instance_name(slowest)] = (
            waited_ps
        )
        idle_ps -= waited_ps
    for what, ps in _rate_control(result, places, idle_ps).items():
        parts[CauseKind.RATE, what, "rate control", ""] = ps
    return parts


def _idle_remedies(
    result: Result, servers: Servers, idle: Mapping[PartKey, int]
) -> list[Remedy]:
    """Return the remedies of the causes of `_idle_parts`."""
    remedies = []
    for kind in dict.fromkeys(key[0] for key in idle):
        words, change = _IDLE[kind]
        causes = tuple(key[:2] for key in idle if key[0] is kind)
        most_ps = max(0, result.time_ps - int(servers.least_ps(words)))
        whole_ps = sum(ps for key, ps in idle.items() if key[0] is kind)
        saved_ps = (
            int(whole_ps * (1 - 1 / change.factor))
            if change.factor > 1
            else whole_ps
        )
        remedies.append(
            Remedy(words, change, causes, min(saved_ps, most_ps), most_ps)
        )
    return remedies


def _rate_control(
    result: Result, places: CausePlaces, most_ps: int
) -> dict[str, int]:
    """Return the time in which held flows left their wires idle, by policy, at most `most_ps` in all [ps]."""
    if not result.bins.flows:
        return {}
    lost = {
        what: ps
        for what, ps in places.flows.lost_ps.items()
        if ps >= LEAST_PART * result.time_ps
    }
    total_ps = sum(lost.values())
    return divide_time(lost, min(total_ps, most_ps)) if total_ps else {}


def _diagnosis(
    traced: Traced,
    servers: Servers,
    split: tuple[list[SplitSpan], CausePlaces],
    remedies: Sequence[Remedy],
) -> Judged:
    """Return the diagnosis of a divided run, with the causes in the order of estimated savings."""
    of_key = {key: remedy for remedy in remedies for key in remedy.keys}
    spans, places = split

    def finish(cause: VerdictCause) -> VerdictCause:
        remedy = of_key.get(cause.key)
        changed = frozenset[int]() if remedy is None else remedy.change.wires
        words = "" if remedy is None else remedy.words
        also = _also(traced, cause.key, changed)
        settings = (
            SETTINGS.get(cause.kind, "") if traced.result.messages is None else ""
        )
        return replace(cause, also=also, remedy=words, settings=settings)

    def order(sums: Mapping[Key, int]) -> list[Key]:
        longest = sorted(sums, key=lambda key: (-sums[key], key))
        limits = {key: remedy.estimate_ps for key, remedy in of_key.items()}
        return sorted(longest, key=lambda key: -limits.get(key, 0))

    verdict = diagnose(spans, order, places.census, finish)
    verdict = replace(
        verdict, includes=_includes(traced.result), servers=servers.classes
    )
    return Judged(verdict, tuple(remedies))


def _also(traced: Traced, key: Key, changed: frozenset[int]) -> tuple[str, ...]:
    """Return further kinds of links that limit the run, each with the busy share of its busiest wire."""
    result, classes = traced.result, traced.network.classes
    busy = result.wires.counters["busy_ps"] / max(1, result.time_ps)
    full = set(np.flatnonzero(busy >= ALSO).tolist()) - changed
    return also_limiting(
        ((classes[wire], float(busy[wire])) for wire in sorted(full)), key
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
    return includes(
        None if launched_ps is None else launched_ps / 1e6, result.model_us
    )


def _detail(run: Critical, charge: Charge, step: Step) -> str:
    """Return the detail of a cause: one name for equal links, a separate one for an outlier."""
    network, rivals = run.traced.network, run.charger.rivals
    if charge.cause in _WIRES:
        return wire_key(network.classes[charge.wire])[1]
    if charge.cause is CauseKind.FAULT:
        return network.link(charge.wire)
    if charge.cause is CauseKind.CREDIT:
        return link_class_name(network.classes[charge.wire])
    if charge.cause is CauseKind.CONTENTION and rivals is not None:
        return several(sorted({rivals.name(call) for call in charge.rivals}))
    if charge.cause is CauseKind.RATE:
        return run.traced.result.bins.flows.control_of(step.connection)
    if charge.cause is CauseKind.STRAGGLER:
        return f"rank {network.ranks[step.endpoint]}"
    if charge.cause is CauseKind.MEMORY:
        on_gpu = step.kind is StepKind.KERNEL or charge.resource.startswith(
            "HBM of rank"
        )
        return "of GPUs" if on_gpu else "of hosts"
    return ""


def _add(entry: OnPath, charge: Charge, step: Step) -> None:
    entry.endpoints.add(step.endpoint)
    entry.rivals |= charge.rivals
    if charge.wire >= 0:
        entry.wires.add(charge.wire)


def _phases(rows: list[SplitSpan]) -> list[SplitSpan]:
    """Return the phases of a path, given its segments in the order of time.

    The middle is the stretch in which the time of moving bytes, or of computing kernels, exceeds the other time by
    the largest amount. The start precedes it, the tail follows it.
    """
    total = sum(row.end_ps - row.start_ps for row in rows)
    gain = np.array(
        [
            2 * _time(row, _MOVING | _WORKING) - row.end_ps + row.start_ps
            for row in rows
        ]
    )
    low, high = _largest_stretch(gain)
    if high and rows[high - 1].end_ps - rows[low].start_ps < LEAST_MIDDLE * total:
        low = high = 0
    phases = []
    names = ("start", "", "tail") if high else ("", "", "whole run")
    for name, group in zip(
        names, (rows[:low], rows[low:high], rows[high:]), strict=True
    ):
        if group:
            ends = group[0].start_ps, group[-1].end_ps
            phase = SplitSpan(name, *ends, sum_times(row.parts for row in group))
            computes = 2 * _time(phase, _WORKING) > ends[1] - ends[0]
            middle = "computing" if computes else "bandwidth"
            phases.append(phase._replace(name=name or middle))
    return phases


def _time(span: SplitSpan, kinds: set[CauseKind]) -> int:
    return sum(ps for (kind, *_), ps in span.parts.items() if kind in kinds)


def _largest_stretch(
    gain: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> tuple[int, int]:
    """Return the half-open stretch with the largest sum; (0, 0) if no sum is above 0."""
    sums = np.concatenate(([0], np.cumsum(gain)))
    lowest = np.minimum.accumulate(sums)
    high = int(np.argmax(sums - lowest))
    if sums[high] <= lowest[high]:
        return 0, 0
    return int(np.flatnonzero(sums[: high + 1] == lowest[high])[-1]), high
