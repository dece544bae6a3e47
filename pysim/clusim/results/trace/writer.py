"""Writer of traces during a run, in bounded memory; a killed run leaves all flushed data.

The file is ``NAME.partial`` until it is complete and is then renamed. `clusim.results.trace.journal` keeps it
consistent between flushes, so the partial file of a killed or running job opens like any other. During writing
``NAME.partial.lock`` is locked: only one writer is permitted.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from clusim.base import files
from clusim.base.arrays import Array
from clusim.base.errors import EnvironmentFailure, InputError
from clusim.engine.abi import Engine
from clusim.results.bins import COLUMNS, BinRecorder, Bins
from clusim.results.flows import FLOW_COLUMNS, NO_FLOWS, Flows
from clusim.results.provenance import Provenance
from clusim.results.result import Result, Tasks, Wires
from clusim.results.resultjson import Call, InOrderNic
from clusim.results.trace.journal import Journal
from clusim.results.trace.layout import (
    CHUNK_BYTES,
    FLOWS,
    FORMAT,
    MESSAGES,
    META_NAMES,
    PRIMITIVES,
    WIRE_TOTALS,
    about,
)

FLUSH_S = 1.0
"""Least wall time between two flushes [s]."""

FLUSH_SHARE = 20
"""Minimum time between two flushes, as a multiple of the duration of the last flush."""

_CHUNK_ROWS = 65536

_TIMES = ("/wires/time", "/hbm/time", "/flows/time")
"""Scales of histories; xarray looks for them in the group of the history."""

_SCALAR = h5py.h5s.create_simple(())
_PLAIN = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
_PLAIN.set_obj_track_times(False)
_WITH_GROUPS = h5py.h5p.create(h5py.h5p.LINK_CREATE)
_WITH_GROUPS.set_create_intermediate_group(True)
_WITH_GROUPS.set_char_encoding(h5py.h5t.CSET_UTF8)

_PACKED = {"compression": "gzip", "compression_opts": 1, "shuffle": True}


@dataclass(frozen=True, slots=True)
class Begun:
    """Known facts before a run.

    Attributes
    ----------
    wires, tasks, flows : Wires, Tasks, Flows
        Only their names and constants are used.
    inputs : dict
        Dataset name -> input of the run: schedule, image, nodes; stored unchanged.
    """

    provenance: Provenance
    wires: Wires
    tasks: Tasks
    num_endpoints: int
    call: Call | None = None
    flows: Flows = NO_FLOWS
    inputs: Mapping[str, Array | list[str]] = field(default_factory=dict)


class TraceWriter:
    """Writer of one trace file; a `clusim.simulation.session.Sink`.

    Parameters
    ----------
    path : Path
        The final name.
    max_records : int
        Maximum number of completion records to store; 0 to disable them.
    """

    takes_proxies = True

    def __init__(self, path: Path, begun: Begun, *, max_records: int = 0) -> None:
        self.path = path
        self._target = files.destination(path)
        self.partial = Path(f"{self._target}.partial")
        self._records = 0
        self._tasks = len(begun.tasks.names)
        self._max_records = max_records
        self._held: list[Array] = []
        self._held_rows = 0
        self._next_flush_s = time.monotonic() + FLUSH_S
        self._journal: Journal | None = None
        self._lock: files.Lock | None = None
        self._file: Any = None
        try:
            self._begin(begun)
        except BaseException:
            self.discard()
            raise

    def _begin(self, begun: Begun) -> None:
        """Check and lock the target, and write all data that are known before the run."""
        provenance, wires, tasks = begun.provenance, begun.wires, begun.tasks
        for place in (self.path, self.partial):
            files.refuse_inputs(place, provenance.read_files)
        with self._guard():
            files.check_replaceable(self._target)
            self._lock = self._acquire_lock()
            self._journal = Journal(self.partial)
            self._file = h5py.File(self._journal, "w", libver=("v108", "v108"))
            self._write_meta(provenance, begun.call)
            self._write_fabric(wires)
            for name, values in begun.inputs.items():
                self._put(name, values)
            names = self._put("/tasks/name", tasks.names)
            names.make_scale("name")
            for column in ("start", "end"):
                times = self._put(
                    f"/tasks/{column}", np.full(len(tasks.names), -1, np.int64)
                )
                times.dims[0].attach_scale(names)
            self._write_flows(begun.flows)
            self._make_histories(
                len(wires.names), begun.num_endpoints, len(begun.flows)
            )
            if self._max_records:
                for column, (_, dtype) in PRIMITIVES.items():
                    self._growing(f"/primitives/{column}", (0,), dtype)
                self._file["/primitives"].attrs["cut"] = False
            self._commit()

    def _acquire_lock(self) -> files.Lock:
        try:
            return files.Lock(Path(f"{self.partial}.lock"))
        except files.LockedError as error:
            who = f"process {error.holder}" if error.holder else "another process"
            raise InputError(
                f"{self.path}: is being written by {who}; wait for it, or use another file"
            ) from None

    def records(self, records: Array) -> None:
        """Append completion records, up to the most there may be."""
        room = self._max_records - self._records - self._held_rows
        if (
            len(records) > room
            and self._max_records
            and not self._file["/primitives"].attrs["cut"]
        ):
            self._file["/primitives"].attrs["cut"] = True
        if room <= 0:
            return
        self._held.append(records[:room])
        self._held_rows += min(room, len(records))
        if self._held_rows >= _CHUNK_ROWS:
            with self._guard():
                self._write_records()

    def _write_records(self) -> None:
        """Write pending records in complete chunks, so that each chunk is compressed only once."""
        if not self._held_rows:
            return
        records = np.concatenate(self._held)
        end = self._records + len(records)
        for column, (name, _) in PRIMITIVES.items():
            dataset = self._file[f"/primitives/{column}"]
            dataset.resize(end, axis=0)
            dataset[self._records :] = records[name]
        self._records, self._held, self._held_rows = end, [], 0

    def tick(self, now_ps: int, engine: Engine, recorder: BinRecorder) -> None:
        """Flush if the last flush is long enough ago."""
        if time.monotonic() >= self._next_flush_s:
            self.flush(now_ps, engine, recorder)

    def flush(self, now_ps: int, engine: Engine, recorder: BinRecorder) -> None:
        """Put everything known by now on disk."""
        began_s = time.monotonic()
        with self._guard():
            times = (column[: self._tasks] for column in engine.task_times())
            self._write_state(now_ps, times, engine.wires(), recorder.bins())
            self._commit()
        ended_s = time.monotonic()
        self._next_flush_s = ended_s + max(
            FLUSH_S, FLUSH_SHARE * (ended_s - began_s)
        )

    def finish(self, result: Result) -> None:
        """Write the outcome, close the file and rename it to its final name."""
        with self._guard():
            times = (result.tasks.start_ps, result.tasks.end_ps)
            self._write_state(
                result.time_ps, times, result.wires.counters, result.bins
            )
            if (messages := result.messages) is not None:
                for column, item in zip(MESSAGES, fields(messages), strict=True):
                    self._put(f"/messages/{column}", getattr(messages, item.name))
            for key in fields(InOrderNic) if result.in_order else ():
                values = [getattr(nic, key.name) for nic in result.in_order]
                self._put(
                    f"/order/{key.name}",
                    values if key.name == "nic" else np.array(values),
                )
            self._put("/meta/verdict", [json.dumps(result.diagnose().to_json())])
            _set(self._file["/meta"], _outcome(result))
            self._close(commit=True)
            os.replace(self.partial, self._target)
            files.sync_folder(self._target.parent)
        self._release()

    def abandon(self, now_ps: int, engine: Engine, recorder: BinRecorder) -> None:
        """Close after an interrupt or an error; the partial file keeps everything up to now."""
        if self._is_open:
            with suppress(EnvironmentFailure):
                self.flush(now_ps, engine, recorder)
                self._close(commit=False)
        self._release()

    def discard(self) -> None:
        """Close and delete the file: the run never began, or writing is no longer possible."""
        if self._is_open:
            self._close(commit=False)
            self.partial.unlink(missing_ok=True)
        self._release()

    @property
    def _is_open(self) -> bool:
        return self._journal is not None and not self._journal.closed

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _commit(self) -> None:
        """Bring the file on disk to the present state."""
        assert self._journal is not None
        self._file.flush()
        self._journal.commit()
        if self._journal.error is not None:
            raise self._journal.error

    def _close(self, *, commit: bool) -> None:
        """Close the file, with or without its pending data."""
        assert self._journal is not None
        try:
            if self._file:
                self._file.close()
            if commit:
                self._journal.commit()
                self._journal.settle(self._target)
        finally:
            self._journal.close()
        if commit and self._journal.error is not None:
            raise self._journal.error

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Turn disk failures into one error; keep the file of the last flush, if there was one."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            if self._journal is not None and self._journal.is_consistent:
                if self._is_open:
                    self._close(commit=False)
                reason += f"; the data recorded before are in {self.partial}"
            elif self._journal is not None:
                self.partial.unlink(missing_ok=True)
            self.discard()
            raise EnvironmentFailure(
                f"{self.path}: cannot write the trace: {reason}"
            ) from None

    def _put(self, name: str, values: Array | list[str]) -> Any:
        """Store one column, compressed where that can pay, with its unit and description."""
        if isinstance(values, list):
            values = _texts(values)
        # One long text would be one piece.
        pays = values.nbytes > 4096 and values.dtype.itemsize <= CHUNK_BYTES
        return self._create(name, data=values, **(_PACKED if pays else {}))

    def _growing(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        chunks = (
            (_CHUNK_ROWS,) if len(shape) == 1 else (max(1, min(shape[0], 1024)), 64)
        )
        if name in _TIMES:
            chunks = (64,)
        kind = {"shape": shape, "dtype": dtype, "maxshape": (*shape[:-1], None)}
        return self._create(name, chunks=chunks, **kind, **_PACKED)

    def _create(self, name: str, **options: Any) -> Any:
        """Create a column with its unit and description."""
        data = options.pop("data", None)
        if data is None or options:
            column = self._file.create_dataset(name, data=data, **options)
        else:
            column = h5py.Dataset(_plain_column(self._file.id, name, data))
        for key, text in about(
            name, (column if data is None else data).dtype.kind == "S"
        ).items():
            kind, value = _attribute_text(text)
            h5py.h5a.create(column.id, key.encode(), kind, _SCALAR).write(
                value, kind
            )
        return column

    def _write_meta(self, provenance: Provenance, call: Call | None) -> None:
        root = {
            "clusim_format": FORMAT,
            "Conventions": f"clusim-{FORMAT}",
            "source": f"clusim {provenance.version}",
            "history": provenance.command,
        }
        _set(self._file, root)
        meta = {name: getattr(provenance, name) for name in META_NAMES} | {
            "complete": False
        }
        if provenance.error_bound is not None:
            meta["error_bound"] = provenance.error_bound
        context = asdict(provenance.around) if provenance.around is not None else {}
        meta |= {name: value for name, value in context.items() if value is not None}
        if call is not None:
            meta |= {
                f"call_{name}": getattr(call, name)
                for name in Call.__dataclass_fields__
            }
        _set(self._file.create_group("meta"), meta)
        self._put("/meta/fabric_text", [provenance.fabric_text])
        self._put("/meta/schedule_text", [provenance.schedule_text])
        for name in ("faults", "notes"):
            if lines := getattr(provenance, name):
                self._put(f"/meta/{name}", list(lines))
        self._put("/meta/progress", np.zeros(3, np.int64))

    def _write_fabric(self, wires: Wires) -> None:
        self._put("/wires/wire", wires.names)
        self._put("/fabric/wire_class", wires.classes)
        self._put("/fabric/rate", np.asarray(wires.rate_Bps, np.float64))
        self._put("/fabric/from_endpoint", np.asarray(wires.from_endpoint, np.uint8))
        for name in WIRE_TOTALS:
            self._put(f"/wires/total/{name}", np.zeros(len(wires.names), np.int64))

    def _write_flows(self, flows: Flows) -> None:
        """Write the flows with rate control, if there are any."""
        if flows:
            for column, name in FLOWS.items():
                self._put(f"/flows/{column}", getattr(flows, name))
            self._file["/flows/flow"].make_scale("flow")

    def _make_histories(
        self, num_wires: int, num_endpoints: int, num_flows: int
    ) -> None:
        file = self._file
        for name in _TIMES[: 2 + bool(num_flows)]:
            self._growing(name, (0,), "<i8")
            file[name].make_scale("time")
        file["/wires/wire"].make_scale("wire")
        self._put("/hbm/endpoint", np.arange(num_endpoints, dtype=np.uint32))
        file["/hbm/endpoint"].make_scale("endpoint")
        tables = [(f"/wires/{name}", num_wires, "/wires/wire") for name in COLUMNS]
        tables.append(("/hbm/bytes", num_endpoints, "/hbm/endpoint"))
        columns = FLOW_COLUMNS if num_flows else ()
        tables += [(f"/flows/{name}", num_flows, "/flows/flow") for name in columns]
        for name, rows, scale in tables:
            self._growing(name, (rows, 0), "<i8")
            file[name].dims[0].attach_scale(file[scale])
            file[name].dims[1].attach_scale(file[f"{scale.rpartition('/')[0]}/time"])
        for name in WIRE_TOTALS:
            file[f"/wires/total/{name}"].dims[0].attach_scale(file["/wires/wire"])

    def _write_state(
        self, now_ps: int, task_times: Iterable[Array], counters: Array, bins: Bins
    ) -> None:
        """Append records, and overwrite the times of tasks, totals and histories."""
        self._write_records()
        for name, times in zip(("start", "end"), task_times, strict=True):
            self._file[f"/tasks/{name}"][...] = times
        for name in WIRE_TOTALS:
            self._file[f"/wires/total/{name}"][...] = counters[name].astype(np.int64)
        count = len(bins.edge_ps) - 1
        tables = {f"/wires/{name}": table for name, table in bins.wires.items()}
        tables |= {
            "/hbm/bytes": bins.hbm_bytes,
            **dict.fromkeys(_TIMES, bins.edge_ps[:-1]),
        }
        tables |= {
            f"/flows/{name}": table for name, table in bins.flows.tables.items()
        }
        for name, table in tables.items():
            if name not in self._file:
                continue  # of flows, in a run without
            dataset = self._file[name]
            dataset.resize(count, axis=dataset.ndim - 1)
            dataset[...] = table
        self._file["/meta/progress"][:] = (now_ps, count, self._records)


def _outcome(result: Result) -> dict[str, Any]:
    """Return the facts that are known only after the run."""
    return {
        "time_ps": result.time_ps,
        "wall_s": result.wall_s,
        "fingerprint": f"{result.fingerprint:016x}",
        "verified": "" if result.verified is None else str(result.verified).lower(),
        "verify_note": result.verify_note,
        "complete": True,
    }


def _texts(values: list[str]) -> Array:
    """Return texts as a fixed-width column.

    HDF5 stores variable-length strings in the global heap, which has no checksums: the library can loop forever over
    a damaged heap.
    """
    # File names need not be Unicode; other bytes are written as Python escapes.
    encoded = [text.encode("utf-8", "backslashreplace") for text in values]
    width = max(1, *(len(text) for text in encoded)) if encoded else 1
    return np.array(encoded, dtype=h5py.string_dtype("utf-8", width))


def _plain_column(file: Any, name: str, values: Array) -> Any:
    """Return the handle of a new column in one piece, as `h5py` writes it in twice the time."""
    kind, space = (
        h5py.h5t.py_create(values.dtype, logical=True),
        h5py.h5s.create_simple(values.shape),
    )
    column = h5py.h5d.create(file, name.encode(), kind, space, _PLAIN, _WITH_GROUPS)
    column.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(values))
    return column


@lru_cache(1024)  # traces have the same units and descriptions
def _attribute_text(text: str) -> tuple[Any, Array]:
    """Return the type and the value of a text as an attribute."""
    value = np.asarray(_texts([text])[0])
    return h5py.h5t.py_create(value.dtype, logical=True), value


def _set(item: Any, values: dict[str, Any]) -> None:
    """Set attributes; texts with a fixed width, as in columns."""
    for name, value in values.items():
        item.attrs[name] = _texts([value])[0] if isinstance(value, str) else value
