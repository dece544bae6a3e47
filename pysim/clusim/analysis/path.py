"""Critical path as a table: every segment in the order of time, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clusim.analysis.columns import ColumnTable
from clusim.analysis.critical import Critical, critical
from clusim.analysis.walk import Step, StepKind
from clusim.engine.opcodes import OPCODES

COLUMNS = (
    "start_ps", "end_ps", "time_ps", "kind", "rank", "task", "channel", "slice", "primitive", "wire", "peer",
)  # fmt: skip

MOST_STEPS = 200_000
"""Limit of segments in the table; a longer path keeps only its end."""

_PRIMITIVES = tuple(OPCODES)


def critical_path(path: str | Path) -> ColumnTable:
    """Return the segments of a trace's critical path in order; their times add up to the run.

    `kind` is a `clusim.analysis.walk.StepKind`; `peer` the rank at the other end of the connection, or -1.
    """
    rows: list[tuple[Any, ...]] = []
    kinds = dict.fromkeys((kind.name.lower() for kind in StepKind), 0)
    total, count, ranks = 0, 0, set()
    with critical(path) as run:
        for step in run.walk.steps():
            total += step.length_ps
            count += 1
            kinds[step.kind.name.lower()] += step.length_ps
            ranks.add(run.traced.network.ranks[step.endpoint])
            if len(rows) < MOST_STEPS:
                rows.append(_row(run, step))
        complete = run.traced.result.complete
    rows.reverse()
    facts: dict[str, Any] = {"time_ps": total, "steps": count, "complete": complete}
    facts["kinds_ps"] = {name: ps for name, ps in kinds.items() if ps}
    table = ColumnTable.of(COLUMNS, rows, facts)
    shares = sorted(facts["kinds_ps"].items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {ps / max(1, total):.1%}" for name, ps in shares)
    table.notes.append(f"{count} steps over {len(ranks)} ranks: {parts}")
    if count > len(rows):
        table.notes.append(f"only the last {len(rows)} steps are listed")
    return table


def _row(run: Critical, step: Step) -> tuple[Any, ...]:
    image, network = run.traced.network.image, run.traced.network
    channel, primitive, peer = -1, "", -1
    names = run.traced.result.tasks.names
    if step.instance >= 0:
        channels = run.traced.inputs.numbers("instances/channel")
        if step.instance < len(channels):
            channel = int(channels[step.instance])
        prim = int(run.walk.slices.table(step.instance).prim[step.seq])
        primitive = _PRIMITIVES[int(image["prims"]["opcode"][prim])]
    if step.connection >= 0:
        conn = image["conns"][step.connection]
        ends = {int(conn["src"]), int(conn["dst"])} - {step.endpoint}
        peer = network.ranks[ends.pop()] if ends else -1
    return (
        step.start_ps,
        step.end_ps,
        step.length_ps,
        step.kind.name.lower(),
        network.ranks[step.endpoint],
        names[step.task]
        if step.task < len(names)
        else f"proxy at {network.endpoint_name(step.endpoint)}",
        channel,
        step.seq,
        primitive,
        network.names[step.wire] if step.wire >= 0 else "",
        peer,
    )
