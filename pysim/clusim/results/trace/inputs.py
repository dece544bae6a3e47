"""Inputs of a traced run: engine image, columns of the schedule, nodes.

The engine checks the image before any code follows its indices; the other columns have their rules.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import ScheduleError, TraceError
from clusim.engine.abi import NONE
from clusim.engine.image import DTYPES, image_of
from clusim.engine.simulation import check_image
from clusim.results.result import Result
from clusim.results.trace.held import Inputs
from clusim.results.trace.layout import IMAGE
from clusim.results.trace.reader import open_trace, result_of
from clusim.results.trace.rules import length, read, read_texts
from clusim.results.trace.structure import Opened


def read_inputs(path: str | Path) -> Inputs:
    """Return the inputs in a trace; raises `TraceError` for format 1, which has no inputs."""
    with open_trace(path) as file:
        return inputs_of(file)


def read_run(path: str | Path) -> tuple[Result, Inputs]:
    """Return the result and inputs in a trace; raises `TraceError` like `read_inputs`."""
    with open_trace(path) as file:
        return result_of(file), inputs_of(file)


def inputs_of(file: Opened) -> Inputs:
    """Return the inputs that an open trace repeats; raises `TraceError` like `read_inputs`."""
    path = file.filename
    if "/image" not in file:
        raise TraceError(
            f"{path}: written by an older clusim, without the inputs of the run; run it again"
        )
    image, nvc, seed = _image(file)
    tier = "node_tier" if "/fabric/node_tier" in file else "node_kind"
    inputs = Inputs(
        image=image,
        nvc=nvc,
        seed=seed,
        schedule=_schedule(file),
        nodes=read_texts(file, "/fabric/node"),
        node_kinds=read_texts(file, "/fabric/node_kind"),
        rank_endpoint=read(file, "/fabric/rank_endpoint"),
        node_tiers=read_texts(file, f"/fabric/{tier}"),
    )
    if not inputs.schedule and "/tasks/name" in file and length(file, "/tasks/name"):
        raise TraceError(
            f"{path}: /schedule: missing, though there are tasks; is the file complete?"
        )
    _check_calls(inputs, path)
    _check_names(inputs, read_texts(file, "/wires/wire"), path)
    return inputs


def _image(file: Opened) -> tuple[dict[str, Array], int, int]:
    """Return the engine's input and its two numbers; table lengths match the trace's names."""
    where, names = f"{file.filename}: {IMAGE}", file.columns(IMAGE)
    for name in sorted({*DTYPES, "scalars"} ^ {*names}):
        raise TraceError(
            f"{where}: {name}: {'unknown' if name in names else 'missing'}"
        )
    for name, dtype in DTYPES.items():
        if file.dtype(f"{IMAGE}/{name}").newbyteorder("=") != dtype:
            raise TraceError(
                f"{where}: {name}: not the columns of this version of clusim; run it again"
            )
    image = {
        name: read(file, f"{IMAGE}/{name}").astype(DTYPES[name], copy=False)
        for name in DTYPES
    }
    for name, column in _NAMED.items():
        if len(image[name]) != length(file, column):
            raise TraceError(f"{where}/{name}: not one row for each of {column}")
    for name, column in _COUNTED.items():
        if column in file and len(image[name]) < length(file, column):
            raise TraceError(f"{where}/{name}: fewer rows than {column}")
    scalars = read(file, f"{IMAGE}/scalars").tolist()
    if len(scalars) != 2:
        raise TraceError(f"{where}/scalars: must be two integers")
    nvc, seed = scalars
    try:
        check_image(
            image_of(image, min(nvc, NONE), seed)
        )  # more would not be a uint32_t
    except ScheduleError as error:
        raise TraceError(f"{where}: {str(error).removeprefix('image: ')}") from None
    return image, nvc, seed


_NAMED = {
    "wires": "/wires/wire",
    "nodes": "/fabric/node",
    "endpoints": "/hbm/endpoint",
}
_COUNTED = {"tasks": "/tasks/name", "instances": "/schedule/instances/task"}


def _schedule(file: Opened) -> dict[str, Array | list[str]]:
    """Return the columns of the schedule by name."""
    result: dict[str, Array | list[str]] = {}
    for name in file.columns("/schedule"):
        where = f"/schedule/{name}"
        text = file.dtype(where).kind == "S"
        result[name] = read_texts(file, where) if text else read(file, where)
    return result


_NEEDED = (
    *(f"tasks/{name}" for name in ("kind", "rank", "stream", "call")),
    *(f"instances/{name}" for name in ("task", "channel")),
    *(
        f"calls/{name}"
        for name in ("operation", "algorithm", "protocol", "dtype", "redop")
    ),
    *(
        f"calls/{name}"
        for name in ("bytes", "channels", "root", "ranks", "ranks_off")
    ),
)
"""Columns of the schedule that are checked."""


def _check_calls(inputs: Inputs, path: str | Path) -> None:
    """Check that calls have ranks and a type, and that each participant is one of the ranks."""
    where = f"{path}: /schedule"
    if not inputs.schedule:
        return
    for name in _NEEDED:
        if name not in inputs.schedule:
            raise TraceError(f"{where}/{name}: missing; run it again")
    for name in ("calls/dtype", "calls/operation"):
        if "" in inputs.texts(name):
            raise TraceError(f"{where}/{name}: an empty text")
    sizes = np.diff(inputs.numbers("calls/ranks_off"))
    if (sizes <= 0).any():
        raise TraceError(f"{where}/calls/ranks_off: a call without ranks")
    call, rank = inputs.numbers("tasks/call"), inputs.numbers("tasks/rank")
    every = max(1, len(inputs.rank_endpoint))
    members = np.repeat(np.arange(len(sizes)), sizes) * every + inputs.numbers(
        "calls/ranks"
    )
    pairs = (call * every + rank)[call >= 0]
    if not np.isin(pairs, members).all():
        raise TraceError(f"{where}/tasks/rank: a rank that is not one of its call's")


def _check_names(inputs: Inputs, wires: list[str], path: str | Path) -> None:
    """Check that wires are named after the nodes at their ends."""
    nodes = set(inputs.nodes)
    if len(nodes) < len(inputs.nodes):
        raise TraceError(f"{path}: /fabric/node: two nodes of one name")
    for name in wires:
        source, _, target_name = name.partition("->")
        if source not in nodes or target_name.rpartition(".")[0] not in nodes:
            raise TraceError(
                f"{path}: /wires/wire: {name[:80]!r}; must be named after two nodes"
            )
