"""Reader of traces: complete, of killed runs, or still being written.

Replicated blocks (`clusim.results.replicated`) are read and checked here. Completion records are read in blocks, so
memory is bounded for traces of any size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import TraceError
from clusim.base.files import destination, note_input
from clusim.engine.abi import WIRE_COUNTERS, FaultKind
from clusim.results.bins import COLUMNS, Bins
from clusim.results.diagnosis import Verdict
from clusim.results.flows import FLOW_COLUMNS, NO_FLOWS, Flows
from clusim.results.provenance import LaunchContext, Provenance
from clusim.results.replicated import BLOCK_COLUMNS, BLOCK_TEXTS, BlockRows
from clusim.results.result import Messages, Result, Tasks, Wires, mean_rates_Bps
from clusim.results.resultjson import Call, InOrderNic
from clusim.results.trace.held import BLOCK_ROWS, Records
from clusim.results.trace.layout import (
    AMOUNT_END,
    FLOWS,
    FORMAT,
    IMAGE,
    MESSAGES,
    META_NAMES,
    PRIMITIVES,
    RULES,
    WIRE_TOTALS,
)
from clusim.results.trace.rules import attribute, length, read, read_texts
from clusim.results.trace.structure import Opened, check_structure


def read_blocks(file: Opened, start_ps: Array, end_ps: Array) -> BlockRows | None:
    """Return the tasks of replicated blocks, given starts and ends of tasks [ps]; None without blocks.

    Raises
    ------
    TraceError
        A task that is not within its block.
    """
    if "/blocks" not in file:
        return None
    rows = BlockRows.of(
        {
            name: (read_texts if name in BLOCK_TEXTS else read)(
                file, f"/blocks/{name}"
            )
            for name in BLOCK_COLUMNS
        }
    )
    where, over = f"{file.filename}: /blocks", end_ps[rows.pause]
    if ((rows.start > rows.moves) | (rows.moves > rows.end)).any():
        raise TraceError(f"{where}: an end before its start")
    if ((over >= 0) & (rows.end > over - start_ps[rows.pause])).any():
        raise TraceError(f"{where}: a task that ends after its pause")
    return rows


@dataclass(frozen=True, slots=True)
class Column:
    """One dataset of a trace."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    units: str
    long_name: str
    stored_bytes: int


@contextmanager
def open_trace(path: str | Path) -> Iterator[Opened]:
    """Open `path` for reading; raises `TraceError` for any damage of the file."""
    path = Path(path)
    if not path.exists():
        hint = Path(f"{destination(path)}.partial")
        more = f"; the run did not finish: try {hint}" if hint.exists() else ""
        raise TraceError(f"{path}: no such file{more}")
    if not path.is_file():
        kind = "a directory" if path.is_dir() else "no regular file"
        raise TraceError(f"{path}: is {kind}; use a trace, such as run.h5")
    note_input(path)
    try:
        _check_start(path)
        with h5py.File(path, "r") as file:
            if "clusim_format" not in file.attrs:
                raise TraceError(f"{path}: an HDF5 file, but not a trace of clusim")
            opened = check_structure(file, path)
            number = attribute(opened, "/", "clusim_format")
            if number > FORMAT:
                raise TraceError(
                    f"{path}: trace format {number}; this version reads up to {FORMAT}; use a newer clusim"
                )
            yield opened
    except (
        OSError,
        KeyError,
        ValueError,
        RuntimeError,
        TypeError,
        IndexError,
    ) as error:
        raise _unreadable(path, error) from None


def _check_start(path: Path) -> None:
    """Raise `TraceError` for the file of a run that was stopped before its first flush."""
    with path.open("rb") as file:
        if path.name.endswith(".partial") and not file.read(8).strip(b"\0"):
            raise TraceError(
                f"{path}: empty; its run has not begun, or was stopped before it began: run it again"
            )


def columns(path: str | Path) -> list[Column]:
    """Return every dataset of a trace in the order of its name."""
    with open_trace(path) as file:
        return [_column(file, f"/{name}") for name in sorted(file.columns(""))]


def _column(file: Opened, name: str) -> Column:
    item = file[name]
    return Column(
        name,
        file.shape(name),
        "string" if file.dtype(name).kind == "S" else str(file.dtype(name)),
        attribute(file, name, "units", ""),
        attribute(file, name, "long_name", ""),
        int(item.id.get_storage_size()),
    )


def read_result(path: str | Path) -> Result:
    """Return the result in a trace; `complete` is False for the trace of a killed run."""
    with open_trace(path) as file:
        return result_of(file)


def result_of(file: Opened) -> Result:
    """Return the result in an open trace; raises `TraceError` if it has no result."""
    now_ps, bins, _ = progress(file)
    complete = bool(_meta(file, "complete"))
    verified = _meta(file, "verified", "")
    time_ps = _meta(file, "time_ps") if complete else now_ps
    return Result(
        time_ps=time_ps,
        wall_s=_meta(file, "wall_s", 0.0),
        fingerprint=_fingerprint(file),
        provenance=_provenance(file),
        wires=_wires(file, time_ps),
        tasks=_tasks(file, time_ps),
        bins=_bins(file, bins, now_ps),
        call=_call(file),
        messages=_messages(file, time_ps),
        in_order=_in_order(file),
        verified=None if not verified else verified == "true",
        verify_note=_meta(file, "verify_note", ""),
        complete=complete,
        judge=_judge(file),
    )


def _judge(file: Opened) -> Callable[[Result], Verdict] | None:
    """Return a function that returns the diagnosis in a trace; None without a diagnosis."""
    texts = _lines(file, "/meta/verdict")
    if not texts:
        return None
    where = f"{file.filename}: /meta/verdict"
    try:
        results = Verdict.from_json(json.loads(texts[0]), where)
    except (ValueError, RecursionError):
        raise TraceError(f"{where}: not JSON") from None
    return lambda result: results


def progress(file: Opened) -> tuple[int, int, int]:
    """Return the progress of a trace: time [ps], bins in use, records written."""
    result = read(file, "/meta/progress").tolist()
    if len(result) != 3:
        raise TraceError(
            f"{file.filename}: /meta/progress: {len(result)} values; must be 3"
        )
    for value, name in zip(
        result[1:], ("/wires/time", "/primitives/time"), strict=True
    ):
        if value > (length(file, name) if name in file else 0):
            raise TraceError(
                f"{file.filename}: /meta/progress: {value} rows; {name} has fewer"
            )
    return result[0], result[1], result[2]


def _meta(file: Opened, name: str, default: Any = None) -> Any:
    return attribute(file, "/meta", name, default)


def _optional(file: Opened, name: str) -> Any:
    """Return an attribute that not every run has, or None."""
    return _meta(file, name) if name in file["/meta"].attrs else None


def _launch_context(file: Opened) -> LaunchContext | None:
    result = {
        name: _optional(file, name) for name in LaunchContext.__dataclass_fields__
    }
    present = {name: value for name, value in result.items() if value is not None}
    # Older traces lack edges.
    return (
        LaunchContext(**{"launch_ps": None, "host_ps": None, **present})
        if present
        else None
    )


def _fingerprint(file: Opened) -> int:
    text = _meta(file, "fingerprint", "0")
    if not re.fullmatch("[0-9a-f]{1,16}", text):
        raise TraceError(
            f"{file.filename}: /meta: fingerprint {text[:40]!r}; must be 16 hex digits"
        )
    return int(text, 16)


def _provenance(file: Opened) -> Provenance:
    texts = [
        read_texts(file, f"/meta/{name}")
        for name in ("fabric_text", "schedule_text")
    ]
    if any(len(text) != 1 for text in texts):
        raise TraceError(
            f"{file.filename}: /meta: must have one topology and one schedule"
        )
    return Provenance(
        **{name: _meta(file, name) for name in META_NAMES},
        fabric_text=texts[0][0],
        schedule_text=texts[1][0],
        faults=_lines(file, "/meta/faults"),
        notes=_lines(file, "/meta/notes"),
        error_bound=_optional(file, "error_bound")
        if _meta(file, "complete")
        else None,
        around=_launch_context(file),
    )


def _call(file: Opened) -> Call | None:
    if "call_operation" not in file["/meta"].attrs:
        return None
    return Call(
        **{name: _meta(file, f"call_{name}") for name in Call.__dataclass_fields__}
    )


def _lines(file: Opened, name: str) -> tuple[str, ...]:
    return tuple(read_texts(file, name)) if name in file else ()


def _wires(file: Opened, time_ps: int) -> Wires:
    names = read_texts(file, "/wires/wire")
    counters = np.zeros(len(names), WIRE_COUNTERS)
    for name in WIRE_TOTALS:
        values = counters[name] = read(file, f"/wires/total/{name}")
        if name in _SUMMED and float(values.sum(dtype=np.float64)) >= AMOUNT_END:
            raise TraceError(
                f"{file.filename}: /wires/total/{name}: too large a sum to be one"
            )
    return Wires(
        names,
        read_texts(file, "/fabric/wire_class"),
        read(file, "/fabric/rate"),
        read(file, "/fabric/from_endpoint").astype(bool),
        counters,
        _mean_Bps(file, time_ps),
    )


def _mean_Bps(file: Opened, time_ps: int) -> Array | None:
    """Return the mean rates of the wires if a fault of the engine's input touched one."""
    name, rate_Bps = f"{IMAGE}/faults", read(file, "/fabric/rate")
    if name not in file:
        return None
    faults = read(file, name)
    if not {"kind", "index", "time_ps", "num", "den"} <= set(
        faults.dtype.names or ()
    ):
        raise TraceError(f"{file.filename}: {name}: not the columns of faults")
    changes = faults[faults["kind"] == FaultKind.RATE]
    if not len(changes):
        return None
    if (
        (changes["index"] >= len(rate_Bps)).any()
        or (changes["den"] < 1).any()
        or (changes["time_ps"] < 0).any()
    ):
        raise TraceError(
            f"{file.filename}: {name}: a fault of no wire, rate or time there is"
        )
    return mean_rates_Bps(rate_Bps, changes, time_ps)


_SUMMED = ("packets", "grants", "bytes", "payload", "control_bytes")


def _tasks(file: Opened, time_ps: int) -> Tasks:
    start, end = read(file, "/tasks/start"), read(file, "/tasks/end")
    _check_spans(f"{file.filename}: /tasks", start, end, time_ps)
    names = read_texts(file, "/tasks/name")
    return Tasks(names, start, end, read_blocks(file, start, end))


def _check_spans(where: str, start: Array, end: Array, time_ps: int) -> None:
    """Check that each end has an earlier start, and that no time is after the end of the run."""
    if ((end >= 0) & ((start < 0) | (start > end))).any():
        raise TraceError(f"{where}: an end before its start")
    if max(start.max(initial=-1), end.max(initial=-1)) > time_ps:
        raise TraceError(f"{where}: a time after the end of the run, {time_ps} ps")


def _bins(file: Opened, count: int, now_ps: int) -> Bins:
    edge_ps = np.zeros(1, np.int64)
    if count:
        edge_ps = np.append(read(file, "/wires/time", 0, count), now_ps)
        if edge_ps[0] != 0 or (np.diff(edge_ps) <= 0).any():
            raise TraceError(
                f"{file.filename}: /wires/time: bins must ascend from 0 to {now_ps} ps"
            )
    wires = {name: read(file, f"/wires/{name}", bins=count) for name in COLUMNS}
    return Bins(
        edge_ps, wires, read(file, "/hbm/bytes", bins=count), _flows(file, count)
    )


def _flows(file: Opened, count: int) -> Flows:
    """Return the flows with rate control, with `count` bins of their histories."""
    if "/flows" not in file:
        return NO_FLOWS
    columns: dict[str, Any] = {}
    for column, field in FLOWS.items():
        name = f"/flows/{column}"
        if RULES[name].kind == "text":
            columns[field] = read_texts(file, name)
        else:
            columns[field] = read(file, name)
    tables = {
        name: read(file, f"/flows/{name}", bins=count) for name in FLOW_COLUMNS
    }
    return Flows(**columns, tables=tables)


def _messages(file: Opened, time_ps: int) -> Messages | None:
    if "/messages" not in file:
        return None
    *names, flow = (f"/messages/{name}" for name in MESSAGES)
    columns = [read(file, name) for name in names]
    # Traces of earlier versions have no flows.
    columns.append(read(file, flow) if flow in file else np.arange(len(columns[0])))
    result = Messages(*columns)
    late = result.end_ps[(result.end_ps >= 0) & (result.end_ps < result.start_ps)]
    if len(late) or result.end_ps.max(initial=-1) > time_ps:
        raise TraceError(
            f"{file.filename}: /messages: an end before its start, or after the run"
        )
    return result


def _in_order(file: Opened) -> tuple[InOrderNic, ...]:
    if "/order" not in file:
        return ()
    names, *counters = (key.name for key in fields(InOrderNic))
    columns = [read(file, f"/order/{name}").tolist() for name in counters]
    rows = zip(read_texts(file, f"/order/{names}"), *columns, strict=True)
    return tuple(InOrderNic(*row) for row in rows)


KEPT_BLOCKS = 4
"""Blocks kept in memory: 30 MB in all."""


class FileRecords(Records):
    """Completion records in an open trace."""

    def __init__(self, file: Opened, block_rows: int) -> None:
        super().__init__(Path(file.filename), block_rows)
        _, _, self.count = progress(file)
        self.cut = bool(attribute(file, "/primitives", "cut", 0))
        self._file = file
        self._kept = lru_cache(KEPT_BLOCKS)(self._read)

    def block(self, index: int) -> dict[str, Array]:
        """Return a block; raises `TraceError` if a value is illegal."""
        return self._kept(index)

    def _read(self, index: int) -> dict[str, Array]:
        low = index * self._block_rows
        high = min(self.count, low + self._block_rows)
        try:
            rows = {
                name: read(self._file, f"/primitives/{name}", low, high)
                for name in PRIMITIVES
            }
        except (OSError, ValueError, KeyError) as error:
            raise _unreadable(self.path, error) from None
        if (rows["gate"] > rows["time"]).any():
            raise TraceError(
                f"{self.path}: /primitives: a slice complete before its gate opened"
            )
        return rows


@contextmanager
def open_records(
    path: str | Path, block_rows: int = BLOCK_ROWS
) -> Iterator[FileRecords]:
    """Open the completion records of a trace; raises `TraceError` without them or their waits."""
    with ExitStack() as stack:
        file = stack.enter_context(open_trace(path))
        if "/primitives" not in file:
            raise TraceError(
                f"{path}: holds no completed slices; run again with --trace-primitives"
            )
        if "/primitives/gate" not in file:
            raise TraceError(
                f"{path}: written by an older clusim, without the waits of slices; run it again"
            )
        records, opened = FileRecords(file, block_rows), stack.pop_all()
    with closing(opened):  # errors of the caller are not errors of the file
        yield records


def _unreadable(path: Path, error: Exception) -> TraceError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return TraceError(f"{path}: not a readable trace: {reason}")
