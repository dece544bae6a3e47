"""Critical path as a table and on a timeline.

The table has every segment in the order of time, in words; the timeline has the segments with their causes, and the
channels on the path.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clusim.analysis.critical import Critical, critical
from clusim.analysis.tablejson import StepRowJson
from clusim.analysis.walk import Step, StepKind
from clusim.base.arrays import Array
from clusim.base.tables import ColumnTable
from clusim.engine.image import OPCODES
from clusim.results.trace.reader import open_records

GROUPS = ("work", "cost", "stall")
"""Groups of critical-path segments; see `clusim.analysis.charge.Charge`."""


MOST_SLICES = 500_000
"""Maximum number of slices of its channels; the first ones are kept."""


_PRIMITIVES = tuple(OPCODES)


@dataclass(frozen=True, slots=True)
class RowSpans:
    """RowSpans of time on rows, by start: row, kind, index of a name, start and end [ps]."""

    row: Array
    kind: Array
    name: Array
    start_ps: Array
    end_ps: Array


@dataclass(frozen=True, slots=True)
class PathRows:
    """Critical path and its channels.

    Attributes
    ----------
    rows : list of (int, str)
        Rank, and its channel, stream of kernels, or proxy; the rows in which the path is longest, in the order of
        ranks, and last a row of rank -1 for all other rows, if any.
    path : RowSpans
        Segments; kinds index `GROUPS`, names index `whats`.
    tasks : ndarray
        Task of every segment, -1 without a rank.
    whats : list of str
        Causes of segments.
    slices : RowSpans
        Slices of the channels, each from its gate or the previous slice to its completion. Names index `primitives`.
    """

    rows: list[tuple[int, str]]
    path: RowSpans
    tasks: Array
    whats: list[str]
    slices: RowSpans
    primitives: tuple[str, ...] = _PRIMITIVES


_Row = tuple[int, str]


def path_rows(path: str | Path, most: int) -> PathRows:
    """Return a trace's critical path, at most `most` rows; raises `TraceError` without slices."""
    with critical(path) as run:
        places = _places(run)
        rows: list[_Row] = []
        result: list[tuple[int, int, int, int, int]] = []
        whats: dict[str, int] = {}
        for step in run.walk.steps():
            if len(result) == MOST_STEPS:
                break
            charges = run.charger.charges(step)
            if not charges:
                continue
            first = max(charges, key=lambda part: part.ps)
            reason = whats.setdefault(
                f"{first.resource}: {first.reason}", len(whats)
            )
            task = (
                step.task if step.task < len(run.traced.result.tasks.names) else -1
            )
            rows.append(_row_of(run, step, places))
            kind = GROUPS.index(first.group)
            result.append((step.start_ps, step.end_ps, kind, reason, task))
        listed, row_of = _longest(rows, result, set(places), most)
        table = np.array(result, np.int64).reshape(-1, 5)[::-1]
        row = np.array([row_of.get(key, len(row_of)) for key in rows], np.int64)[
            ::-1
        ]
        start, end, kinds, names, tasks = table.T
        spans = RowSpans(row, kinds, names, start, end)
        return PathRows(
            listed, spans, tasks, list(whats), _slices(run, row_of, places)
        )


def _places(run: Critical) -> list[_Row]:
    """Return rank and channel of every program."""
    inputs = run.traced.inputs
    ranks = inputs.numbers("tasks/rank")[inputs.numbers("instances/task")]
    keys = zip(
        ranks.tolist(), inputs.numbers("instances/channel").tolist(), strict=True
    )
    return [(rank, f"channel {number}") for rank, number in keys]


def _row_of(run: Critical, step: Step, places: list[_Row]) -> _Row:
    if 0 <= step.instance < len(places):
        return places[step.instance]
    network, streams = run.traced.network, run.traced.inputs.texts("tasks/stream")
    rank = network.ranks[step.endpoint] if step.endpoint in network.with_rank else -1
    return rank, streams[step.task] if step.task < len(streams) else "proxy"


def _longest(
    rows: list[_Row],
    times: list[tuple[int, int, int, int, int]],
    known: set[_Row],
    most: int,
) -> tuple[list[_Row], dict[_Row, int]]:
    """Return the rows to show, possibly with a last row for all others, and their indices."""
    lengths: Counter[_Row] = Counter()
    for row, (start, end, *_) in zip(rows, times, strict=True):
        lengths[row] += end - start
    listed = [row for row, _ in lengths.most_common() if row[0] >= 0][:most]
    # Also show the same channels of other ranks.
    listed += [
        row
        for name in dict.fromkeys(name for _, name in listed)
        for row in sorted(known)
        if row[1] == name and row not in lengths
    ]
    ordered = sorted(listed[:most], key=lambda row: (row[0], len(row[1]), row[1]))
    num_left = len(lengths.keys() - set(ordered))
    more = [(-1, f"{num_left} others")] if num_left else []
    return [*ordered, *more], {row: i for i, row in enumerate(ordered)}


def _slices(run: Critical, row_of: dict[_Row, int], places: list[_Row]) -> RowSpans:
    """Return the completed slices of the channels that have a row."""
    place, slices = (
        np.array([row_of.get(item, -1) for item in places]),
        run.walk.slices,
    )
    image, parts, count = run.traced.network.image, [], 0
    with open_records(run.traced.path) as records:
        for block in records.blocks():
            instance = block["instance"]
            mine = np.flatnonzero(instance < len(place))
            mine = mine[place[instance[mine]] >= 0]
            parts.append(
                np.stack(
                    [block[n][mine] for n in ("time", "gate", "instance", "seq")]
                )
            )
            count += len(mine)
            if count >= MOST_SLICES:
                break
    time, gate, instance, seq = (
        np.concatenate(parts, axis=1) if parts else np.zeros((4, 0), int)
    )
    order = np.lexsort((time, instance))
    time, gate, instance, seq = (
        item[order].astype(np.int64) for item in (time, gate, instance, seq)
    )
    before = np.zeros(len(time), np.int64)
    before[1:] = np.where(instance[1:] == instance[:-1], time[:-1], 0)
    start = np.where(gate <= time, np.maximum(gate, before), time)
    name = np.zeros(len(time), np.int64)
    for item in np.unique(instance).tolist():
        at = instance == item
        name[at] = image["prims"]["opcode"][slices.table(item).prims(seq[at])]
    order = np.argsort(start, kind="stable")
    kind = np.zeros(len(time), np.int64)
    columns = (place[instance], kind, name, start, time)
    return RowSpans(*(item[order] for item in columns))


MOST_STEPS = 200_000
"""Limit of segments in the table; a longer path keeps only its end."""


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
    table = ColumnTable.of(StepRowJson.__annotations__, rows, facts)
    shares = sorted(facts["kinds_ps"].items(), key=lambda item: -item[1])
    parts = ", ".join(f"{name} {ps / max(1, total):.1%}" for name, ps in shares)
    table.notes.append(
        f"{count} segments over {len(ranks)} rank{'s' * (len(ranks) != 1)}: {parts}"
    )
    if count > len(rows):
        table.notes.append(f"only the last {len(rows)} segments are listed")
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
