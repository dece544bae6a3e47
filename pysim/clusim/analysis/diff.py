"""Comparison of two runs by phase, reason and link, and the diagnosis of a traced run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from clusim.analysis.blame import blame
from clusim.analysis.critical import Traced, critical, open_traced
from clusim.analysis.judge import judged, without_path
from clusim.analysis.tablejson import DiffRowJson
from clusim.base.errors import TraceError
from clusim.base.tables import ColumnTable
from clusim.base.units import format_time
from clusim.results.result import Result
from clusim.results.trace.reader import read_result


def judged_trace(path: str | Path) -> Result:
    """Return the result in a trace, with its stored diagnosis or one computed from its slices."""
    result = read_result(path)
    if result.judge is not None:
        return result
    try:
        with critical(path) as run:
            results = judged(run).verdict
    except TraceError as error:
        results = without_path(result, str(error).removeprefix(f"{path}: "))
    return replace(result, judge=lambda _: results)


LEAST = 0.005
"""Smallest reported change, as a share of the first run."""


def diff(path_a: str | Path, path_b: str | Path) -> ColumnTable:
    """Return the differences of run B from run A.

    Rows of level ``run`` (time), ``phase`` (tasks of one name: from the first start to the last end), ``blame`` (time
    breakdown of the critical path), ``tier`` and ``wire`` (busy time); the largest changes first. Wires and phases
    are matched by name.
    """
    a, b = open_traced(path_a), open_traced(path_b)
    time_a, time_b = a.result.time_ps, b.result.time_ps
    rows: list[tuple[Any, ...]] = [("run", "time", time_a, time_b, time_b - time_a)]
    phases = _compare("phase", _phases(a), _phases(b))
    blames = _compare("blame", _blame(path_a), _blame(path_b))
    tiers = _compare("tier", _tier_busy(a), _tier_busy(b))
    wires = _compare("wire", _wire_busy(a), _wire_busy(b))
    rows += [*phases, *blames, *tiers, *wires]
    facts: dict[str, Any] = {
        "time_a_ps": time_a,
        "time_b_ps": time_b,
        "complete": a.result.complete and b.result.complete,
    }
    verdicts = [judged_trace(path).verdict for path in (path_a, path_b)]
    facts |= {
        f"verdict_{name}": verdict.to_json()
        for name, verdict in zip("ab", verdicts, strict=True)
    }
    notes = [_headline(a, b)]
    notes += [
        f"{name}: {line}"
        for name, verdict in zip("AB", verdicts, strict=True)
        for line in verdict.lines()
    ]
    notes += _inputs(a, b)
    notes += [
        f"phase {name!r}: {ps_a} in A, {ps_b} in B ({change})"
        for name, change, ps_a, ps_b in _changes(phases, time_a, 3)
    ]
    notes += [
        f"on the critical path, {name}: {change} ({ps_a} in A, {ps_b} in B)"
        for name, change, ps_a, ps_b in _changes(blames, time_a, 5)
    ]
    notes += _wire_sentences(wires, a, b)
    return ColumnTable.of(DiffRowJson.__annotations__, rows, facts, notes)


def _headline(a: Traced, b: Traced) -> str:
    before, after = a.result.time_ps, b.result.time_ps
    if before == after:
        same = a.result.fingerprint == b.result.fingerprint
        return f"both take {format_time(before)}" + (
            " and are the same run" if same else ""
        )
    word = "longer" if after > before else "shorter"
    part = abs(after - before) / max(1, before)
    return (
        f"B takes {format_time(after)}, {format_time(abs(after - before))} ({part:.1%}) {word} than A"
        f" ({format_time(before)})"
    )


def _inputs(a: Traced, b: Traced) -> list[str]:
    """List the inputs that differ."""
    notes, one, two = [], a.result.provenance, b.result.provenance
    if one.fabric != two.fabric:
        notes.append(f"A ran on {one.fabric}, B on {two.fabric}")
    elif one.fabric_text != two.fabric_text:
        notes.append(f"the topology files of {one.fabric} differ")
    if (one.granularity, one.burst_packets) != (two.granularity, two.burst_packets):
        notes.append(
            f"granularity: A {one.granularity_note}, B {two.granularity_note}"
        )
    calls = [
        f"{c.operation} {c.algorithm} {c.protocol} {c.size_bytes} B {c.channels} channels"
        if c
        else ""
        for c in (a.result.call, b.result.call)
    ]
    if calls[0] != calls[1]:
        notes.append(
            f"A is {calls[0] or 'several calls'}, B {calls[1] or 'several calls'}"
        )
    faults = [len(t.network.image["faults"]) for t in (a, b)]
    if faults[0] != faults[1]:
        notes.append(f"A has {faults[0]} faults, B {faults[1]}")
    rates = {
        n: float(r)
        for n, r in zip(a.result.wires.names, a.result.wires.rate_Bps, strict=True)
    }
    pairs = zip(b.result.wires.names, b.result.wires.rate_Bps, strict=True)
    other = [(n, float(r)) for n, r in pairs if n in rates and rates[n] != float(r)]
    if other:
        name, rate = other[0]
        more = f" and {len(other) - 1} more" if len(other) > 1 else ""
        notes.append(
            f"nominal rate of {name}{more}: {rates[name] / 1e9:.2f} GB/s in A, {rate / 1e9:.2f} GB/s in B"
        )
    return notes


def _compare(
    level: str, a: dict[str, int], b: dict[str, int]
) -> list[tuple[Any, ...]]:
    names = dict.fromkeys([*a, *b])
    rows = [
        (
            level,
            name,
            a.get(name, 0),
            b.get(name, 0),
            b.get(name, 0) - a.get(name, 0),
        )
        for name in names
    ]
    return sorted(rows, key=lambda row: (-abs(row[4]), row[1]))


def _phases(traced: Traced) -> dict[str, int]:
    """Return the time of all tasks of one name, from the first start to the last end [ps]."""
    spans: dict[str, tuple[int, int]] = {}
    tasks = traced.result.tasks
    ends = np.where(tasks.end_ps < 0, traced.result.time_ps, tasks.end_ps)
    for name, start, end in zip(
        tasks.names, tasks.start_ps.tolist(), ends.tolist(), strict=True
    ):
        if start >= 0:
            low, high = spans.get(name, (start, end))
            spans[name] = (min(low, start), max(high, end))
    return {name: high - low for name, (low, high) in spans.items()}


def _blame(path: str | Path) -> dict[str, int]:
    """Return the time breakdown by link name, ranks merged; empty without slices."""
    try:
        table = blame(path)
    except TraceError:
        return {}
    result: dict[str, int] = {}
    for row in table.rows():
        if row["wires"] and row["group"] == "stall":
            name = f"{row['resource']}: {row['reason']}"
        else:
            kinds = sorted({kind.split(" ")[0] for kind in row["class"].split(", ")})
            name = row["reason"] + (f" ({', '.join(kinds)})" if row["class"] else "")
        result[name] = result.get(name, 0) + int(row["time_ps"])
    return result


def _tier_busy(traced: Traced) -> dict[str, int]:
    """Return the mean busy time of the wires of each class that carried anything [ps]."""
    wires = traced.result.wires
    used, classes = wires.counters["packets"] > 0, np.array(wires.classes, object)
    names = dict.fromkeys(classes[used])
    return {
        n: int(wires.counters["busy_ps"][used & (classes == n)].mean())
        for n in names
    }


def _wire_busy(traced: Traced) -> dict[str, int]:
    wires = traced.result.wires
    return {
        name: int(busy)
        for name, busy in zip(wires.names, wires.counters["busy_ps"], strict=True)
        if busy
    }


def _changes(
    rows: list[tuple[Any, ...]], whole: int, most: int
) -> list[tuple[str, str, str, str]]:
    """Return name, change and both times of the largest changes."""
    largest = [row for row in rows if abs(row[4]) >= LEAST * whole][:most]
    return [
        (
            name,
            f"{'+' if change >= 0 else '-'}{format_time(abs(change))}",
            *map(format_time, ab),
        )
        for _, name, *ab, change in largest
    ]


def _wire_sentences(rows: list[tuple[Any, ...]], a: Traced, b: Traced) -> list[str]:
    """Return sentences on the wires whose utilisation changed most."""
    whole_a, whole_b = max(1, a.result.time_ps), max(1, b.result.time_ps)
    if a.result.provenance.fabric != b.result.provenance.fabric:
        return []
    shared = set(a.result.wires.names) & set(b.result.wires.names)
    rows = [row for row in rows if row[1] in shared]
    changed = [(row, row[3] / whole_b - row[2] / whole_a) for row in rows]
    changed = [item for item in changed if abs(item[1]) >= 0.02]
    up = sorted(
        (item for item in changed if item[1] > 0), key=lambda item: -item[1]
    )[:2]
    down = sorted(
        (item for item in changed if item[1] < 0), key=lambda item: item[1]
    )
    notes = [
        f"{row[1]} is busier: {row[2] / whole_a:.1%} of A, {row[3] / whole_b:.1%} of B"
        for row, _ in up
    ]
    if down:
        row = down[0][0]
        more = f" and {len(down) - 1} other wires are" if len(down) > 1 else " is"
        notes.append(
            f"{row[1]}{more} less busy: {row[2] / whole_a:.1%} of A, {row[3] / whole_b:.1%} of B for the first"
        )
    return notes
