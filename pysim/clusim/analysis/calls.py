"""The collectives of a run: how long, how fast, and how near to the limit of the busiest wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from clusim.analysis.columns import ColumnTable
from clusim.analysis.overlap import exposed_ps
from clusim.analysis.tasks import task_columns
from clusim.analysis.traced import open_traced
from clusim.analysis.usage import Usage
from clusim.units import format_time
from clusim.vocabulary.operations import bus_factor

__all__ = ["collectives"]

COLUMNS = (
    "call", "operation", "algorithm", "protocol", "dtype", "size_bytes", "ranks", "channels", "stream",
    "start_ps", "end_ps", "time_ps", "skew_ps", "algbw_GBps", "busbw_GBps",
    "limit", "limit_busy", "bound_GBps", "exposed_ps",
)  # fmt: skip


def collectives(path: str | Path) -> ColumnTable:
    """Return a row for each collective call, in the order of start.

    The time is from the first rank's start to the last one's end; `skew_ps` is how much later the last rank started.
    Bandwidths count from then on: ranks that come early only wait. `limit` is the wire that was busiest from then on
    (also with the traffic of others), `limit_busy` its utilisation, and `bound_GBps` the bus bandwidth if it were
    never idle; all bandwidths are 0 for a call that did not end. `exposed_ps` is the mean over the ranks.
    """
    traced = open_traced(path)
    tasks, inputs, result = task_columns(traced), traced.inputs, traced.result
    exposed = exposed_ps(tasks)
    usage = Usage(result.bins, traced.network.image["endpoints"]["mem_cost16"])
    names = ("operation", "algorithm", "protocol", "dtype")
    texts = {name: inputs.texts(f"calls/{name}") for name in names}
    numbers = {name: inputs.numbers(f"calls/{name}") for name in ("bytes", "channels", "ranks_off")}
    used = np.flatnonzero(result.wires.counters["packets"] > 0)
    rows: list[tuple[Any, ...]] = []
    order = np.argsort(tasks.call, kind="stable")
    bounds = np.searchsorted(tasks.call[order], np.arange(len(texts["operation"]) + 1))
    called = inputs.numbers("tasks/call")
    in_call = np.bincount(called[called >= 0], minlength=len(texts["operation"]))
    for call in range(len(texts["operation"])):
        mine = order[bounds[call] : bounds[call + 1]]
        if not len(mine):
            continue
        start, end = int(tasks.start_ps[mine].min()), int(tasks.end_ps[mine].max())
        time, size = end - start, int(numbers["bytes"][call])
        ranks = int(numbers["ranks_off"][call + 1] - numbers["ranks_off"][call])
        skew = int(tasks.start_ps[mine].max()) - start
        together = time - skew
        done = len(mine) == in_call[call] and bool(tasks.ended[mine].all())
        algbw = size * 1000 / together if together and done else 0.0
        busbw = algbw * bus_factor(texts["operation"][call], ranks)
        limit, busy = "", 0.0
        if len(used) and together:
            uses = usage.busy(used, start + skew, end)
            limit, busy = result.wires.names[int(used[np.argmax(uses)])], float(uses.max())
        rows.append(
            (
                call,
                *(texts[name][call] for name in names),
                size,
                ranks,
                int(numbers["channels"][call]),
                tasks.stream[mine[0]],
                start,
                end,
                time,
                skew,
                algbw,
                busbw,
                limit,
                busy,
                busbw / busy if busy else 0.0,
                round(float(exposed[mine].mean())),
            )
        )
    rows.sort(key=lambda row: (row[9], row[0]))
    facts = {"time_ps": result.time_ps, "complete": result.complete, "collectives": len(rows)}
    return ColumnTable.of(COLUMNS, rows, facts, _notes(rows))


def _notes(rows: list[tuple[Any, ...]]) -> list[str]:
    if not rows:
        return ["the run has no collectives"]
    row = max(rows, key=lambda item: (item[11], -item[0]))
    if not row[14]:
        return [
            f"the longest is call {row[0]}, {row[1]} over {row[6]} ranks: {format_time(row[11])} so far; it did not"
            " end, or moves no data"
        ]
    return [
        f"the longest is call {row[0]}, {row[1]} over {row[6]} ranks: {format_time(row[11])}, {row[14]:.2f} GB/s of bus"
        f" bandwidth, {row[16]:.1%} of what its busiest wire {row[15]} allows"
    ]
