"""Time breakdown of the critical path of a run, which adds up to its time, and estimates with faster hardware."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusim.analysis.critical import critical, open_traced
from clusim.analysis.judge import judged
from clusim.analysis.servers import Servers
from clusim.analysis.slices import Slices, all_starts
from clusim.analysis.tablejson import ServerRowJson
from clusim.analysis.whatif import Change, parse_change
from clusim.base.tables import ColumnTable, group_values
from clusim.results.servers import FULL

COLUMNS = (
    "group",
    "resource",
    "reason",
    "time_ps",
    "share",
    "steps",
    "class",
    "wires",
)

_ORDER = {"stall": 0, "cost": 1, "work": 2}


@dataclass(slots=True)
class _Sum:
    ps: int = 0
    steps: int = 0
    wires: set[int] = field(default_factory=set)


def blame(path: str | Path) -> ColumnTable:
    """Return the time breakdown of a trace's critical path.

    Rows have the group (``stall``: lost, ``cost``: latencies and fixed costs, ``work``), the resource, the reason,
    the time [ps], its share of the run, and for wires their class and names. Stalls are first, in descending order;
    the times add up to ``time_ps`` exactly. The notes are the run's bottleneck and its saving.
    """
    sums: dict[tuple[str, str, str], _Sum] = {}
    total = 0
    with critical(path) as run:
        network = run.traced.network
        for step in run.walk.steps():
            total += step.length_ps
            for part in run.charges(step):
                if part.ps:
                    entry = sums.setdefault(
                        (part.group, part.resource, part.reason), _Sum()
                    )
                    entry.ps += part.ps
                    entry.steps += 1
                    if part.wire >= 0:
                        entry.wires.add(part.wire)
        result = run.traced.result
        verdict = judged(run).verdict if result.judge is None else result.verdict
    ordered = sorted(
        sums.items(), key=lambda item: (_ORDER[item[0][0]], -item[1].ps, item[0])
    )
    rows = []
    for (group, resource, reason), entry in ordered:
        classes = sorted({network.classes[w] for w in entry.wires})
        wires = [network.names[w] for w in sorted(entry.wires)]
        share = entry.ps / max(1, total)
        rows.append(
            (
                group,
                resource,
                reason,
                entry.ps,
                share,
                entry.steps,
                ", ".join(classes),
                wires,
            )
        )
    facts = {"time_ps": total, "complete": result.complete}
    for group in _ORDER:
        facts[f"{group}_ps"] = sum(
            entry.ps for key, entry in sums.items() if key[0] == group
        )
    table = ColumnTable.of(COLUMNS, rows, facts)
    table.notes.extend(verdict.headlines())
    return table


def largest(table: ColumnTable, least: float = 0.01) -> ColumnTable:
    """Return a time breakdown with a single row per group for the rows with shares below `least`."""
    rows = []
    for group, members in group_values(
        (row["group"], row) for row in table.rows()
    ).items():
        small = [row for row in members if row["share"] < least]
        rows += [
            tuple(row.values())
            for row in members
            if len(small) < 2 or row not in small
        ]
        if len(small) > 1:
            ps, share, steps = (
                sum(row[name] for row in small)
                for name in ("time_ps", "share", "steps")
            )
            resource = f"{len(small)} rows below {least:.0%}"
            rows.append(
                (group, resource, "--top 0 shows them", ps, share, steps, "", [])
            )
    return ColumnTable.of(COLUMNS, rows, table.facts, table.notes)


def server_table(path: str | Path) -> ColumnTable:
    """Return the busy times of the serial servers of a trace by class, the fullest first."""
    traced = open_traced(path)
    starts_ps = all_starts(traced.network.image, traced.result.tasks.start_ps)
    slices = Slices(traced.network.image, starts_ps, path)
    streams = traced.inputs.texts("tasks/stream")
    servers = Servers(traced.result, traced.network, slices, streams)
    names = tuple(ServerRowJson.__annotations__)
    rows = [
        tuple(
            ", ".join(one.remedies) if name == "remedies" else getattr(one, name)
            for name in names
        )
        for one in servers.classes
    ]
    table = ColumnTable.of(names, rows, traced.facts)
    full = [
        f"{one.full} of {one.servers} {one.name}"
        for one in servers.classes
        if one.full
    ]
    table.notes.append(
        f"busy for at least {FULL:.0%}: {'; '.join(full) or 'no server'}"
    )
    return table


@dataclass(frozen=True, slots=True)
class Estimate:
    """Time of the run and critical-path estimate of the changed time [ps]."""

    before_ps: int
    after_ps: int
    change: Change


def estimate(path: str | Path, pattern: str, factor: str) -> Estimate:
    """Return the critical-path estimate of a trace's time with faster hardware.

    Every segment is shortened in isolation, transfers down to the next busiest resource on their path. No other time
    changes: another path may become critical, and the estimate is then too short.
    """
    with critical(path) as run:
        change = parse_change(pattern, factor, run.traced.network)
        steps = list(run.walk.steps())
        before_ps = sum(step.length_ps for step in steps)
        return Estimate(before_ps, run.scaled_ps(steps, change), change)


def alike(table: ColumnTable) -> list[dict[str, Any]]:
    """Return the rows, merged if they differ only by rank, link or channel, the longest first.

    The resource of a merged row is the common part of the names, and the number of merged rows.
    """
    kinds = (
        (row["class"] or str(row["resource"]).partition(" ")[0], row)
        for row in table.rows()
    )
    groups = group_values(
        ((row["group"], kind, row["reason"]), row) for kind, row in kinds
    )
    result = []
    for (group, kind, reason), rows in groups.items():
        sums = {
            name: sum(row[name] for row in rows)
            for name in ("time_ps", "share", "steps")
        }
        label = f"{kind} (x{len(rows)})"
        resource = rows[0]["resource"] if len(rows) == 1 else label
        result.append(
            {
                "group": group,
                "kind": kind,
                "resource": resource,
                "reason": reason,
                **sums,
            }
        )
    return sorted(result, key=lambda row: -row["time_ps"])
