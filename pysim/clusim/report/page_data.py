"""Data of a report's page: an overview, and histories and tasks of a window of time.

A report embeds the messages for the complete run; `clusim view` sends the same messages for the visible window. Only
classes of wires with traffic and the network are shown. The critical path is drawn over the lanes of ranks, and over
the channels that it passes.

A message is one block of bytes that a browser reads without parsing numbers. Four bytes contain the length of a JSON
header; then the header; then the columns it lists, each aligned to eight bytes. All is little-endian. The page of a
report carries such messages compressed, `clusim view` serves the same messages.
"""

from __future__ import annotations

import base64
import gzip
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.analysis.blame import blame, server_table
from clusim.analysis.calls import collectives
from clusim.analysis.diff import judged_trace
from clusim.analysis.flows import flow_use
from clusim.analysis.path import GROUPS, PathRows, RowSpans, path_rows
from clusim.base.arrays import Array
from clusim.base.drawing.boxes import Picture
from clusim.base.drawing.layout import draw
from clusim.base.drawing.machine import DrawnMachine, WireGroups, machine_of
from clusim.base.errors import TraceError
from clusim.base.tables import ColumnTable
from clusim.report.histories import MEASURES, History, group_wires, history
from clusim.report.lanes import (
    KINDS,
    Bars,
    Lanes,
    LaneTasks,
    Schedule,
    Shares,
    lanes_of,
    shares_of,
    window,
)
from clusim.results.result import Result
from clusim.results.trace.held import Inputs
from clusim.results.trace.inputs import inputs_of
from clusim.results.trace.reader import open_trace, result_of

ALIGN = 8
TYPES = {
    "uint8": "u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "int32": "<i4",
    "float64": "<f8",
}
"""Column types with a JavaScript array type.

64-bit integers are sent as float64, exact to 2^53.
"""


def pack(header: dict[str, Any], columns: dict[str, Array]) -> bytes:
    """Return the message with `header` and `columns`."""
    blocks, table, offset = [], [], 0
    for name, values in columns.items():
        kind = values.dtype.name
        if kind not in TYPES:
            kind = "float64"
        data = np.ascontiguousarray(values, TYPES[kind]).tobytes()
        table.append(
            {"name": name, "type": kind, "offset": offset, "count": values.size}
        )
        data += bytes(-len(data) % ALIGN)
        blocks.append(data)
        offset += len(data)
    text = json.dumps(
        {**header, "columns": table}, separators=(",", ":"), allow_nan=False
    )
    head = text.encode()
    head += b" " * (-(4 + len(head)) % ALIGN)
    return b"".join([len(head).to_bytes(4, "little"), head, *blocks])


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the argument of `pack`; columns are flat."""
    start = 4 + int.from_bytes(data[:4], "little")
    header: dict[str, Any] = json.loads(data[4:start])
    columns = {
        row["name"]: np.frombuffer(
            data, TYPES[row["type"]], row["count"], start + row["offset"]
        )
        for row in header.pop("columns")
    }
    return header, columns


def base64_text(data: bytes) -> str:
    """Return a message as text for a page: compressed, then base64."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


MOST_ROWS = 24
"""Channels that a page shows."""


@dataclass(frozen=True, slots=True)
class PathLanes:
    """A critical path, prepared for the page.

    Attributes
    ----------
    steps, slices, over : Lanes
        Segments on the rows of channels, slices of the channels, and segments on the lanes of the timeline.
    """

    found: PathRows
    steps: Lanes
    slices: Lanes
    over: Lanes

    @classmethod
    def of(cls, rows: PathRows, lanes: Lanes, schedule: Schedule) -> PathLanes:
        """Prepare a path; `lanes` are those of the timeline."""
        place = {
            key: i
            for i, key in enumerate(zip(lanes.ranks, lanes.streams, strict=True))
        }
        keys = zip(schedule["tasks/rank"], schedule["tasks/stream"], strict=True)
        # After the last task is the placeholder for segments without a rank.
        lane_of = np.array(
            [*(place.get((int(rank), thread), -1) for rank, thread in keys), -1],
            np.int64,
        )
        lane = lane_of[rows.tasks]
        on_lanes = np.flatnonzero(lane >= 0)
        path = rows.path
        over = RowSpans(lane, path.kind, path.name, path.start_ps, path.end_ps)
        picked = RowSpans(
            *(getattr(over, name)[on_lanes] for name in RowSpans.__slots__)
        )
        return cls(rows, _lanes(path), _lanes(rows.slices), _lanes(picked))

    def header(self) -> dict[str, Any]:
        """Return the data that do not depend on the window of time."""
        return {
            "rows": [
                f"rank {rank}, {label}" if rank >= 0 else label
                for rank, label in self.found.rows
            ],
            "ranks": [rank for rank, _ in self.found.rows],
            "whats": self.found.whats,
            "primitives": list(self.found.primitives),
            "groups": list(GROUPS),
        }

    def message(self, from_ps: int, until_ps: int, columns: int) -> bytes:
        """Return the data of a window of time."""
        result: dict[str, Any] = {}
        for name in ("steps", "slices", "over"):
            bars = window(getattr(self, name), from_ps, until_ps, columns)
            values = _columns(bars) | {"row": bars.lane.astype(np.uint16)}
            result |= {f"{name}_{key}": column for key, column in values.items()}
        return pack({}, result)


def _lanes(spans: RowSpans) -> Lanes:
    times = spans.start_ps, spans.start_ps, spans.end_ps
    return Lanes([], [], [], [LaneTasks(spans.row, spans.kind, spans.name, *times)])


def _columns(bars: Bars) -> dict[str, Any]:
    return {
        "start": bars.start_ps.astype(np.float64),
        "duration": (bars.end_ps - bars.start_ps).astype(np.float64),
        "kind": bars.kind.astype(np.uint8),
        "name": bars.name.astype(np.uint32),
        "count": bars.count.astype(np.uint32),
    }


def used_part(result: Result) -> tuple[Result, list[str]]:
    """Return a result without idle classes of wires, and the names of these classes.

    A collective over NVLink leaves PCIe, host memory and NICs idle, which would only crowd the
    picture. Idle wires of a used class stay, because their idleness is informative, as do wires between
    the switches of a used network. If no data were sent at all, all wires stay.
    """
    wires = result.wires
    busy = {
        name
        for name, count in zip(
            wires.classes, wires.counters["packets"].tolist(), strict=True
        )
        if count
    }
    ends = list(
        zip((name.count("/") for name in wires.names), wires.classes, strict=True)
    )
    if any(count == 1 and name in busy for count, name in ends):
        busy |= {name for count, name in ends if not count}
    idle = [name for name in dict.fromkeys(wires.classes) if name not in busy]
    if not busy or not idle:
        return result, []
    used_wires: NDArray[np.int64] = np.flatnonzero(
        [name in busy for name in wires.classes]
    )
    wires_with_traffic = replace(
        wires,
        names=[wires.names[wire] for wire in used_wires],
        classes=[wires.classes[wire] for wire in used_wires],
        rate_Bps=wires.rate_Bps[used_wires],
        from_endpoint=wires.from_endpoint[used_wires],
        counters=wires.counters[used_wires],
        mean_Bps=None if wires.mean_Bps is None else wires.mean_Bps[used_wires],
    )
    histories = {
        name: table[used_wires] for name, table in result.bins.wires.items()
    }
    return replace(
        result, wires=wires_with_traffic, bins=replace(result.bins, wires=histories)
    ), idle


@dataclass(frozen=True, slots=True)
class Feed:
    """A run prepared for the page.

    Attributes
    ----------
    rows : WireGroups
        Rows of the heatmap.
    picture : Picture
        Picture of the system; ``picture.lines`` are its lines.
    blame, calls, servers, flows : ColumnTable or None
        Time breakdown of the critical path, the collectives, the serial servers, and flows with rate control, if
        the trace has them.
    idle_classes : tuple of str
        Classes of wires without traffic, omitted from all of the above.
    path : PathLanes or None
        The critical path, if the trace has it.
    """

    result: Result
    schedule: Schedule
    machine: DrawnMachine
    rows: WireGroups
    picture: Picture
    lanes: Lanes
    shares: Shares
    blame: ColumnTable | None = None
    calls: ColumnTable | None = None
    servers: ColumnTable | None = None
    flows: ColumnTable | None = None
    idle_classes: tuple[str, ...] = ()
    path: PathLanes | None = None

    @classmethod
    def open(
        cls, path: str | Path, rows: int = 400, *, findings: bool = True
    ) -> Feed:
        """Read a trace; its wires are shown in at most about `rows` rows.

        Without `findings` no analysis is run.
        """
        with open_trace(path) as file:
            # An older trace lacks inputs and a timeline.
            inputs = inputs_of(file) if "/image" in file else None
            result = result_of(file)
        if findings:
            result = judged_trace(path)
        results = _findings(path) if findings and inputs is not None else {}
        servers = results.pop("servers", None)
        flows = results.pop("flows", None)
        feed = replace(
            cls.of(result, inputs, rows, **results), servers=servers, flows=flows
        )
        if "blame" not in results or not feed.lanes.ranks:
            return feed
        lanes = PathLanes.of(path_rows(path, MOST_ROWS), feed.lanes, feed.schedule)
        return replace(feed, path=lanes)

    @classmethod
    def of(
        cls,
        result: Result,
        inputs: Inputs | None = None,
        rows: int = 400,
        *,
        blame: ColumnTable | None = None,
        calls: ColumnTable | None = None,
    ) -> Feed:
        """Prepare a result; without `inputs` it has no timeline."""
        schedule: Schedule = inputs.schedule if inputs else {}
        result, idle = used_part(result)
        wires = result.wires
        nodes = inputs.nodes if inputs else ()
        machine = machine_of(wires.names, wires.classes, wires.from_endpoint, nodes)
        lanes = lanes_of(result, schedule)
        return cls(
            result,
            schedule,
            machine,
            group_wires(machine, wires, rows),
            draw(machine),
            lanes,
            shares_of(lanes, result.time_ps),
            blame,
            calls,
            idle_classes=tuple(idle),
        )

    def with_rows(self, rows: int) -> Feed:
        """Return the same with another number of rows."""
        return replace(self, rows=group_wires(self.machine, self.result.wires, rows))

    @property
    def name(self) -> str:
        """Name of the schedule, if set."""
        names = self.schedule.get("name", [])
        return str(names[0]) if len(names) and names[0] != "schedule" else ""

    @property
    def measures(self) -> list[tuple[str, str, str]]:
        """Name, title and meaning of the measures this run has."""
        has_groups = any(
            len(g) and g.sizes.max() > 1 for g in (self.rows, self.picture.lines)
        )
        return [
            (name, title, meaning)
            for name, (title, meaning) in MEASURES.items()
            if has_groups or name != "peak"
        ]

    def overview(self, *, live: bool) -> bytes:
        """Return everything that does not depend on the window."""
        lanes = self.lanes
        header: dict[str, Any] = {
            "time_ps": self.result.time_ps,
            "live": live,
            "measures": self.measures,
            "queue_max": int(self.result.bins.wires["queue"].max(initial=0)),
            "rows": self._table(self.rows) | {"line": self._line_of_rows()},
            "lines": self._table(self.picture.lines),
            "lanes": {
                "ranks": lanes.ranks,
                "streams": lanes.streams,
                "names": lanes.names,
                "kinds": KINDS,
            },
        }
        if self.path is not None:
            header["path"] = self.path.header()
        return pack(header, {})

    def wires(self, from_ps: int, until_ps: int, columns: int) -> bytes:
        """Return the histories of the heatmap's rows."""
        return self._history(self.rows, from_ps, until_ps, columns)

    def lines(self, from_ps: int, until_ps: int, columns: int) -> bytes:
        """Return the histories of the picture's lines."""
        return self._history(self.picture.lines, from_ps, until_ps, columns)

    def tasks(self, from_ps: int, until_ps: int, columns: int) -> bytes:
        """Return the data of the timeline."""
        bars = window(self.lanes, from_ps, until_ps, columns)
        fits_uint16 = len(self.lanes.ranks) < 1 << 16
        return pack(
            {},
            _columns(bars)
            | {"lane": bars.lane.astype(np.uint16 if fits_uint16 else np.uint32)},
        )

    def steps(self, from_ps: int, until_ps: int, columns: int) -> bytes:
        """Return the data of the critical path."""
        assert self.path is not None, "is called only for runs with a critical path"
        return self.path.message(from_ps, until_ps, columns)

    def _history(
        self, groups: WireGroups, from_ps: int, until_ps: int, columns: int
    ) -> bytes:
        result: History = history(
            self.result.bins,
            groups,
            columns=columns,
            from_ps=from_ps,
            until_ps=until_ps,
        )
        return pack(
            {}, {"edges": result.edge_ps.astype(np.float64), **result.values}
        )

    def _line_of_rows(self) -> list[int]:
        """Return the line of the picture that has all wires of a row, or -1."""
        if not len(self.rows):
            return []
        lines = self.picture.lines
        line_of = np.full(len(self.result.wires.names), -1, np.int64)
        line_of[lines.wires] = np.repeat(np.arange(len(lines)), lines.sizes)
        first, last = self.rows.largest(line_of), -self.rows.largest(-line_of)
        line: list[int] = np.where(first == last, first, -1).tolist()
        return line

    def _table(self, groups: WireGroups) -> dict[str, Any]:
        """Return the totals of every group as lists."""
        result, time_ps = self.result, max(1, self.result.time_ps)
        counters = result.wires.counters
        if not len(groups):
            return {"labels": [], "classes": [], "sizes": [], "busiest": []}
        part = {
            "busy": groups.mean(counters["busy_ps"] / time_ps),
            "busiest": groups.largest(counters["busy_ps"] / time_ps),
            "credit": groups.mean(counters["stall_credit_ps"] / time_ps),
            "contended": groups.mean(counters["stall_arbitration_ps"] / time_ps),
        }
        integers = {
            "rate": groups.mean(result.wires.rate_Bps),
            "effective": groups.mean(result.wires.effective_Bps),
            "payload": groups.total(counters["payload"]),
            "bytes": groups.total(counters["bytes"] + counters["control_bytes"]),
            "packets": groups.total(counters["packets"]),
            "queue": groups.largest(counters["queued_max"]),
        }
        columns = {
            name: np.round(values, 5).tolist() for name, values in part.items()
        }
        columns |= {
            name: np.rint(values).astype(np.int64).tolist()
            for name, values in integers.items()
        }
        head = {
            "labels": groups.labels,
            "classes": groups.classes,
            "sizes": groups.sizes.tolist(),
        }
        return head | columns


def _findings(path: str | Path) -> dict[str, ColumnTable]:
    """Return the results of analyses, without those for which the trace does not hold enough."""
    result: dict[str, ColumnTable] = {}
    analyses = {
        "blame": blame,
        "calls": collectives,
        "servers": server_table,
        "flows": flow_use,
    }
    for name, analyse in analyses.items():
        with suppress(TraceError):
            result[name] = analyse(path)
    return result
