"""Open a trace: a whole one, one that a killed run left behind, or one still being written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from clusim.bins import COLUMNS, Bins
from clusim.errors import TraceError
from clusim.files import destination, note_input
from clusim.outcome import WIRE_COUNTERS
from clusim.result import Call, Messages, Provenance, Result, Tasks, Wires, mean_rates_Bps
from clusim.trace.layout import FORMAT

__all__ = ["Column", "columns", "open_trace", "read_records", "read_result"]

Array = NDArray[Any]


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
def open_trace(path: str | Path) -> Iterator[Any]:
    """Open `path` for reading and turn every way in which a file can be broken into a `TraceError`."""
    path = Path(path)
    if not path.exists():
        hint = Path(f"{destination(path)}.partial")
        more = f"; the run did not finish: try {hint}" if hint.exists() else ""
        raise TraceError(f"{path}: no such file{more}")
    if not path.is_file():
        kind = "a directory" if path.is_dir() else "no regular file"
        raise TraceError(f"{path}: is {kind}; give a trace, such as run.h5")
    note_input(path)
    try:
        _check_start(path)
        with h5py.File(path, "r") as file:
            number = file.attrs.get("clusim_format")
            if number is None:
                raise TraceError(f"{path}: an HDF5 file, but not a trace of clusim")
            if int(number) > FORMAT:
                raise TraceError(
                    f"{path}: trace format {number}; this version reads up to {FORMAT}; use a newer clusim"
                )
            yield file
    except (OSError, KeyError, ValueError, RuntimeError, TypeError, IndexError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(f"{path}: not a readable trace: {reason}") from None


def _check_start(path: Path) -> None:
    """Raise `TraceError` for what a run left that was stopped before anything was on disk."""
    with path.open("rb") as file:
        if path.name.endswith(".partial") and not file.read(8).strip(b"\0"):
            raise TraceError(
                f"{path}: holds nothing; its run has not begun, or was stopped before it began: run it again"
            )


def columns(path: str | Path) -> list[Column]:
    """Return every dataset of a trace in the order of its name."""
    found: list[Column] = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found.append(
                Column(
                    f"/{name}",
                    tuple(item.shape),
                    "string" if item.dtype.kind == "S" else str(item.dtype),
                    _text(item.attrs.get("units", "")),
                    _text(item.attrs.get("long_name", "")),
                    int(item.id.get_storage_size()),
                )
            )

    with open_trace(path) as file:
        file.visititems(visit)
    return sorted(found, key=lambda column: column.name)


def read_result(path: str | Path) -> Result:
    """Return the result that a trace holds; `complete` is False for what a killed run left."""
    with open_trace(path) as file:
        meta = file["/meta"].attrs
        now_ps, bins, _ = (int(v) for v in file["/meta/progress"][:])
        complete = bool(meta["complete"])
        verified = _text(meta.get("verified", ""))
        return Result(
            time_ps=int(meta["time_ps"]) if complete else now_ps,
            wall_s=float(meta.get("wall_s", 0.0)),
            fingerprint=int(_text(meta.get("fingerprint", "0")), 16),
            provenance=_provenance(file),
            wires=_wires(file, int(meta["time_ps"]) if complete else now_ps),
            tasks=Tasks(
                _texts(file, "/tasks/name"), file["/tasks/start"][:], file["/tasks/end"][:]
            ),
            bins=_bins(file, bins, now_ps),
            call=_call(meta),
            messages=_messages(file),
            verified=None if not verified else verified == "true",
            verify_note=_text(meta.get("verify_note", "")),
            complete=complete,
        )


def read_records(path: str | Path) -> dict[str, Array]:
    """Return the completion records of a trace as columns: `time_ps`, `instance`, `seq`."""
    with open_trace(path) as file:
        if "/primitives" not in file:
            raise TraceError(f"{path}: holds no primitives; run again with --trace-primitives")
        count = int(file["/meta/progress"][2])
        return {
            "time_ps": file["/primitives/time"][:count],
            "instance": file["/primitives/instance"][:count],
            "seq": file["/primitives/seq"][:count],
        }


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _texts(file: Any, name: str) -> list[str]:
    return [_text(text) for text in file[name][:]]


def _provenance(file: Any) -> Provenance:
    meta = file["/meta"].attrs
    return Provenance(
        fabric=_text(meta["fabric"]),
        fabric_text=_texts(file, "/meta/fabric_text")[0],
        schedule_text=_texts(file, "/meta/schedule_text")[0],
        engine=_text(meta["engine"]),
        granularity=_text(meta["granularity"]),
        granularity_note=_text(meta["granularity_note"]),
        burst_packets=int(meta["burst_packets"]),
        seed=int(meta["seed"]),
        version=_text(meta["version"]),
        command=_text(meta["command"]),
        faults=tuple(_texts(file, "/meta/faults")) if "/meta/faults" in file else (),
        notes=tuple(_texts(file, "/meta/notes")) if "/meta/notes" in file else (),
    )


def _call(meta: Any) -> Call | None:
    if "call_operation" not in meta:
        return None
    numbers = ("size_bytes", "ranks", "channels", "root")
    values: dict[str, Any] = {}
    for name in Call.__dataclass_fields__:
        value = meta[f"call_{name}"]
        values[name] = int(value) if name in numbers else _text(value)
    return Call(**values)


def _wires(file: Any, time_ps: int) -> Wires:
    names = _texts(file, "/wires/wire")
    counters = np.zeros(len(names), WIRE_COUNTERS)
    for name in WIRE_COUNTERS.names or ():
        counters[name] = file[f"/wires/total/{name}"][:]
    return Wires(
        names,
        _texts(file, "/fabric/wire_class"),
        file["/fabric/rate"][:],
        file["/fabric/from_endpoint"][:].astype(bool),
        counters,
        _mean_Bps(file, time_ps),
    )


def _mean_Bps(file: Any, time_ps: int) -> Array | None:
    """Return the mean rates of the wires if a fault of the engine's input touched one."""
    faults = file["/image/faults"][:] if "/image/faults" in file else None
    if faults is None or not (faults["kind"] == 0).any():
        return None
    return mean_rates_Bps(file["/fabric/rate"][:], faults, time_ps)


def _bins(file: Any, count: int, now_ps: int) -> Bins:
    start_ps = file["/wires/time"][:count]
    edge_ps = np.append(start_ps, now_ps) if count else np.zeros(1, np.int64)
    wires = {name: file[f"/wires/{name}"][:, :count] for name in COLUMNS}
    return Bins(edge_ps, wires, file["/hbm/bytes"][:, :count])


def _messages(file: Any) -> Messages | None:
    if "/messages" not in file:
        return None
    names = ("source", "destination", "bytes", "start", "end")
    return Messages(*(file[f"/messages/{name}"][:] for name in names))
