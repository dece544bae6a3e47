"""Mutations of traces, and everything that is done with a trace."""

from __future__ import annotations

import io
import random
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np

import clusim
from clusim.collectives import emit
from clusim.schedule.builder import ProgramBuilder
from clusim.topology import Fabric
from clusim.training import train
from support.workloads import tiny

__all__ = ["ACTIONS", "mutate", "read", "samples", "use"]

_EDGES = (
    -1, 0, 1, 2, 3, 255, 65535, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**32, 2**52, 2**61, 2**62 - 1, 2**62,
    2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63),
)  # fmt: skip
_TEXTS = (
    b"",
    b"\xff\xfe",
    b"<script>",
    b"\x1b[2J",
    b"a->b.0",
    b"x" * 300,
    b"\n",
    b"nan",
    b"0",
    "gpu\u202e".encode(),
)


def _fabric() -> Fabric:
    from clusim.topology.loading import loads

    return loads(
        "name: four\narchitecture: hopper\nnodes:\n  gpu0..3: {kind: gpu, chip: h100-sxm5}\n"
        "  nvs0: {kind: switch, switch: nvswitch3}\nlinks:\n  - {from: gpu0..3, to: nvs0, count: 2, type: nvlink4}\n"
    )


def _training(fabric: Fabric, path: Path) -> None:
    builder = ProgramBuilder(fabric.num_ranks, "step")
    for layer in range(2):  # few columns of few rows: what is mutated shall matter
        done = [
            builder.kernel(rank, compute_ps=5_000_000, name=f"layer {layer} backward")
            for rank in range(fabric.num_ranks)
        ]
        after = [(task,) for task in done]
        emit(builder, fabric, "allreduce", "ring", 1 << 12, stream="dp", after=after, channels=1)
    clusim.simulate(
        fabric, builder.build(), trace_out=path, trace_primitives=True, bins=16, confirm=False
    )


def _folded(fabric: Fabric, path: Path) -> None:
    """Write a training step whose blocks are folded."""
    work = tiny("parallel: {tensor: 2, pipeline: 2}", batch="{global: 4, micro: 1}")
    train(work, fabric, steps=1, granularity="coarse", fold="all", trace_out=path, confirm=False)


@cache
def samples() -> list[dict[str, bytes]]:
    """Return small traces: a collective, one on a switch, a step with kernels, one folded, synthetic traffic."""
    fabric, found = _fabric(), []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"

        def keep() -> None:
            """Take the trace, without what differs from run to run: a mutation's number is to mean one file."""
            with h5py.File(path, "r+") as file:
                file["meta"].attrs.modify("wall_s", 0.5)
            found.append({path.name: path.read_bytes()})

        for algorithm in ("ring", "nvls"):
            schedule = clusim.collectives.build(fabric, "allreduce", algorithm, 1 << 12, channels=1)
            clusim.simulate(
                fabric, schedule, trace_out=path, trace_primitives=True, bins=16, confirm=False
            )
            keep()
        for write in (_training, _folded):
            write(fabric, path)
            keep()
        traffic = clusim.Traffic("permutation", 4096, 4096)
        clusim.simulate_traffic(fabric, traffic, trace_out=path, bins=16, confirm=False)
        keep()
    return found


def mutate(data: bytes, chance: random.Random, turn: int) -> bytes:
    """Return a trace with a few values, attributes, columns or raw bytes changed, each column when it is its `turn`."""
    if chance.random() < 0.2:
        return _raw(data, chance)
    held = io.BytesIO(data)
    with h5py.File(held, "r+") as file:
        names = _names(data)
        for number in range(chance.choice((1, 1, 1, 1, 2))):
            name = chance.choice(names) if number else names[turn % len(names)]
            change = chance.choice(_CHANGES if getattr(file.get(name), "size", 0) else _OTHERS)
            with suppress(ValueError, KeyError, RuntimeError, TypeError):  # HDF5 cannot do that
                change(file, name, chance)
    return held.getvalue()


@cache
def _names(data: bytes) -> list[str]:
    """Return the names of all that is in a sample."""
    names: list[str] = []
    with h5py.File(io.BytesIO(data), "r") as file:
        file.visit(names.append)
    return names


_HEADERS = re.compile(rb"OHDR|OCHK|FRHP|FHDB|BTHD|BTLF|FAHD|FADB|EAHD|SNOD|TREE|HEAP|GCOL")
"""Signatures of HDF5's structures in a file."""


@cache
def _header_places(data: bytes) -> list[int]:
    return [match.start() for match in _HEADERS.finditer(data)]


def _raw(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 2, 8))):
        at = chance.randrange(len(changed))
        where = chance.random()
        if where < 0.3:
            at = chance.randrange(min(len(changed), 4096))
        elif where < 0.8:
            at = min(chance.choice(_header_places(data)) + chance.randrange(96), len(changed) - 1)
        changed[at] = chance.choice(
            (changed[at] ^ 1 << chance.randrange(8), 0, 255, chance.randrange(256))
        )
    return bytes(changed[: chance.randrange(len(changed))] if chance.random() < 0.1 else changed)


def _value(file: Any, name: str, chance: random.Random) -> None:
    """Set one value, or all of them, to one at the edge of something."""
    item = file.get(name)
    if not isinstance(item, h5py.Dataset) or not 0 < item.size < 1 << 20:
        return
    values = item[...]
    part = values
    if values.dtype.names:
        part = values[chance.choice(values.dtype.names)]
    place = tuple(chance.randrange(n) for n in part.shape)
    if chance.random() < 0.2:
        place = (...,)
    if part.dtype.kind == "S":
        part[place] = chance.choice((*_TEXTS, part.reshape(-1)[chance.randrange(part.size)]))
    elif part.dtype.kind == "f":
        part[place] = chance.choice((np.nan, np.inf, -np.inf, -1.0, 0.0, 1e308, 5e-324))
    else:
        old = int(part[place].reshape(-1)[0]) if place == (...,) else int(part[place])
        other = int(part.reshape(-1)[chance.randrange(part.size)])
        new = chance.choice((*_EDGES, old + 1, old - 1, old * 2, other, other))
        part[place] = np.array(new % 2**64, np.uint64).astype(part.dtype)
    item[...] = values


def _drop(file: Any, name: str, chance: random.Random) -> None:
    if name in file:
        del file[name]


def _rename(file: Any, name: str, chance: random.Random) -> None:
    if name in file:
        file.move(name, f"{name}{chance.choice(('x', '_off', '/y'))}")


def _reshape(file: Any, name: str, chance: random.Random) -> None:
    """Put a column of another length, type or shape in the place of one."""
    item = file.get(name)
    if not isinstance(item, h5py.Dataset) or item.size > 1 << 20:
        return
    values = item[...]
    match chance.randrange(6):
        case 0:
            values = values[: chance.randrange(len(values) + 1)] if values.ndim else values
        case 1:
            values = np.concatenate([values, values])
        case 2:
            values = values.reshape(-1, 1)
        case 3 if values.dtype.names is None and values.dtype.kind in "iu":
            values = values.astype(chance.choice(("<i1", "<f8", ">i8", "<u8", "S4")))
        case 4:
            del file[name]
            big = chance.choice((2**31, 2**40))
            file.create_dataset(
                name, (big,), values.dtype if values.dtype.names is None else "<i8", chunks=(64,)
            )
            return
        case _:
            values = np.array(chance.choice(_EDGES[:10]))
    del file[name]
    file[name] = values


def _attribute(file: Any, name: str, chance: random.Random) -> None:
    meta = file.get("meta", file)
    item = chance.choice((file, meta, meta, meta, meta, file.get(name, file)))
    names = list(item.attrs)
    if not names:
        return
    key = chance.choice(names)
    if chance.random() < 0.2:
        del item.attrs[key]
        return
    value: Any = chance.choice(
        (
            *(e for e in _EDGES if -(2**63) <= e < 2**64),
            np.nan,
            1e308,
            "text",
            b"\xff",
            "",
            "x" * 1000,
            [1, 2],
            True,
        )
    )
    item.attrs[key] = value


def _link(file: Any, name: str, chance: random.Random) -> None:
    if name in file:
        del file[name]
        there: Any = chance.choice(
            (h5py.SoftLink("/"), h5py.SoftLink("/nowhere"), h5py.ExternalLink("/etc/passwd", "/"))
        )
        file[name] = there


_OTHERS = (_drop, _rename, _reshape, _attribute, _link)
"""Changes of groups and empty columns, which have no values."""
_CHANGES = (_value,) * 6 + _OTHERS


def _info(path: Path) -> None:
    from clusim.report.runreport import collective_report, traffic_report
    from clusim.results.trace.reader import columns, read_result

    result = read_result(path)
    columns(path)
    result.to_json()
    (traffic_report if result.messages else collective_report)(result)


def _analysis(name: str, function: str = "") -> Callable[[Path], None]:
    def action(path: Path) -> None:
        module = __import__(f"clusim.analysis.{name}", fromlist=["x"])
        table = getattr(module, function or name)(path)
        if hasattr(table, "rows"):
            list(table.rows())

    return action


def _what_if(path: Path) -> None:
    from clusim.analysis.blame import estimate

    estimate(path, "hbm", "x2")


def _diff(path: Path) -> None:
    from clusim.analysis.diff import diff

    good = path.parent / "good.h5"
    good.write_bytes(samples()[0]["run.h5"])
    list(diff(path, good).rows())


def _export(module: str, function: str) -> Callable[[Path], None]:
    def action(path: Path) -> None:
        found = __import__(f"clusim.report.export.{module}", fromlist=["x"])
        getattr(found, function)(path, path.parent / function)

    return action


def _tables(path: Path, one: bool = False) -> None:
    """Read every table, or `one` that follows from the file."""
    from clusim.results.trace.tables import iterate_table, table_names

    names = list(table_names(path))
    for name in [_chance(path).choice(names)] if one else names:
        for piece in iterate_table(path, name):
            assert len({len(values) for values in piece.values()}) == 1, name


def _chance(path: Path) -> random.Random:
    return random.Random(zlib.crc32(path.read_bytes()))


def _report(path: Path) -> None:
    from clusim.report.html import page
    from clusim.report.page_data import Feed

    feed = Feed.open(path)
    page(feed)
    feed.tasks(0, feed.result.time_ps, 100)


ACTIONS: dict[str, Callable[[Path], None]] = {
    "info": _info,
    "congestion": _analysis("congestion"),
    "history": _analysis("congestion", "wire_history"),
    "overlap": _analysis("overlap"),
    "blame": _analysis("blame"),
    "critical-path": _analysis("path", "critical_path"),
    "what-if": _what_if,
    "pipeline": _analysis("pipeline"),
    "timeline": _analysis("pipeline", "timeline"),
    "collectives": _analysis("calls", "collectives"),
    "memory": _analysis("memory"),
    "diff": _diff,
    "perfetto": _export("perfetto", "write_perfetto"),
    "chrome": _export("kineto", "write_chrome"),
    "kineto": _export("kineto", "write_kineto"),
    "nccl-log": _export("nccl_log", "write_nccl_log"),
    "tables": _tables,
    "report": _report,
}
"""What is done with a trace, by name."""

_OFTEN = [name for name in ACTIONS for _ in range(1 if name in ("diff", "report") else 3)]
"""The same, those that take four times as long as others only a third as often."""


def read(folder: Path) -> None:
    """Read all that analyses read of the trace in a folder, with every check of it."""
    from clusim.results.trace.inputs import read_run

    read_run(folder / "run.h5")


def use(folder: Path, every: bool = False) -> list[str]:
    """Do with the trace in a folder what a command does; return which were errors.

    Which one follows from the file, so that all have their turn, unless it is `every` one.
    """
    from clusim.base.errors import ClusimError

    path = folder / "run.h5"
    names = list(ACTIONS) if every else [_chance(path).choice(_OFTEN)]
    found = []
    for name in names:
        try:
            if name == "tables":
                _tables(path, one=not every)
            else:
                ACTIONS[name](path)
        except ClusimError as error:
            text = str(error)
            if error.exit_code != 2 or "\n" in text or not text.isprintable():
                raise AssertionError(f"{name}: {error!r}") from None
            found.append(name)
    return found
