"""Inputs of a traced run: engine image, columns of the schedule, nodes.

The image is checked before any code follows its indices. `clusim.engine.ranges` has the range of every number; here
are the checks of several numbers together: ranges of rows, connections of programs, routes, trees. The engine checks
an image again, and more thoroughly, before it runs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.base.errors import TraceError
from clusim.engine.abi import NONE, ConnKind, Op
from clusim.engine.image import OP_FLAGS
from clusim.engine.ranges import RANGES, TABLES, first_illegal
from clusim.results.result import Result
from clusim.results.trace.held import Inputs
from clusim.results.trace.layout import IMAGE
from clusim.results.trace.reader import open_trace, result_of
from clusim.results.trace.rules import length, read, read_texts
from clusim.results.trace.structure import Opened

Array = NDArray[Any]
Tables = Mapping[str, Array]

_SENDS = Op.SEND | Op.MCAST | Op.REDUCE | Op.AGGREGATE
_MULTIMEM = Op.MCAST | Op.REDUCE
_SPANS = (
    ("templates", "prim_lo", "prim_hi"),
    ("tasks", "inst_lo", "inst_hi"),
    ("tasks", "succ_lo", "succ_hi"),
    ("vertices", "child_lo", "child_hi"),
    ("sources", "msg_lo", "msg_hi"),
)


def check_image(tables: Tables, nvc: int, where: str) -> None:
    """Raise `TraceError` if an image has an illegal number or an index without a target."""
    wrong = next(_illegal(tables, nvc), None)
    if wrong is not None:
        raise TraceError(f"{where}: {wrong}")


def _illegal(tables: Tables, nvc: int) -> Iterator[str]:
    known = {name for name in TABLES if name != "op_flags"}
    for name in sorted(known ^ set(tables)):
        yield f"{name}: {'unknown' if name in tables else 'missing'}"
    for name in sorted(known):
        kinds = tables[name].dtype
        fields = {} if kinds.names is None else {n: kinds[n] for n in kinds.names}
        given = set(fields) or {""}
        if given != set(RANGES[name]):
            yield f"{name}: not the columns of this version of clusim; run it again"
        if any(kind.base.kind not in "iu" for kind in fields.values() or [kinds]):
            yield f"{name}: values that are not integers"
    wrong = first_illegal({**tables, "op_flags": OP_FLAGS}, nvc)
    if wrong is not None:
        yield wrong
    for name, low, high in _SPANS:
        if (tables[name][low] > tables[name][high]).any():
            yield f"{name}: a row whose {low} is above its {high}"
    yield from _programs(tables)
    yield from _connections(tables)
    yield from _kinds(tables)
    yield from _routes(tables)
    yield from _trees(tables)


def _programs(tables: Tables) -> Iterator[str]:
    """Check that primitives use connections that their instances have."""
    prims, templates, instances = tables["prims"], tables["templates"], tables["instances"]
    flags = OP_FLAGS[prims["opcode"]]
    most = np.zeros(len(prims), np.int64)
    for side, needs in (("recv", Op.RECV), ("send", _SENDS)):
        local = prims[side].astype(np.int64)
        if ((flags & needs != 0) & (local == NONE)).any():
            yield f"prims: a primitive without the connection it needs ({side})"
        most = np.maximum(most, np.where((flags & needs != 0), local + 1, 0))
    highest = np.array(
        [
            most[lo:hi].max(initial=0)
            for lo, hi in zip(templates["prim_lo"], templates["prim_hi"], strict=True)
        ],
        np.int64,
    )
    used = instances["conn_off"] + highest[instances["template"]] if len(instances) else most[:0]
    if used.max(initial=0) > len(tables["inst_conns"]):
        yield "instances: a program uses more connections than there are"


def _kinds(tables: Tables) -> Iterator[str]:
    """Check that operations of switches use connections of the matching kind."""
    prims, templates, instances = tables["prims"], tables["templates"], tables["instances"]
    flags, kinds = OP_FLAGS[prims["opcode"]], tables["conns"]["kind"]
    if not (flags & (_MULTIMEM | Op.AGGREGATE)).any() or not len(instances):
        return
    order = np.argsort(instances["template"], kind="stable")
    first = np.searchsorted(instances["template"][order], np.arange(len(templates) + 1))
    for template, (low, high) in enumerate(pairwise(first.tolist())):
        span = slice(int(templates["prim_lo"][template]), int(templates["prim_hi"][template]))
        for needs, kind in ((_MULTIMEM, ConnKind.MULTIMEM), (Op.AGGREGATE, ConnKind.AGGREGATION)):
            local = np.unique(prims["send"][span][flags[span] & needs != 0])
            starts = instances["conn_off"][order[low:high]]
            used = tables["inst_conns"][starts[:, None] + local[None, :].astype(np.int64)]
            if (kinds[used] != kind).any():
                yield "inst_conns: a switch operation over a connection of another kind"
                return


def _connections(tables: Tables) -> Iterator[str]:
    """Check that connections of switches have the entries that their kind needs."""
    conns = tables["conns"]
    multimem, aggregation = (
        conns["kind"] == kind for kind in (ConnKind.MULTIMEM, ConnKind.AGGREGATION)
    )
    for mine, names in ((multimem, ("mgroup", "first_group")), (aggregation, ("vertex",))):
        for name in names:
            if (conns[name][mine] == NONE).any():
                yield f"conns: a connection without its {name}"


def _routes(tables: Tables) -> Iterator[str]:
    """Check that every node has a place in `routes` for every target."""
    nodes, targets, wires = tables["nodes"], tables["targets"], tables["wires"]
    if len(targets) < len(tables["endpoints"]):
        yield "targets: not every endpoint is one"
    if not len(nodes) or not len(targets):
        return
    zones, number = np.unique(np.concatenate([nodes["zone"], targets["zone"]]), return_inverse=True)
    here, there = number[: len(nodes)], number[len(nodes) :]
    local, wide = np.full(len(zones), -1, np.int64), np.full(len(zones), -1, np.int64)
    np.maximum.at(local, there, targets["local"].astype(np.int64))
    np.maximum.at(wide, there, targets["wide"].astype(np.int64))
    first = int(np.argmax(wide))
    others = np.where(
        np.arange(len(zones)) == first, np.delete(wide, first).max(initial=-1), wide[first]
    )
    end = np.zeros(len(nodes), np.int64)
    own = local[here] >= 0
    end[own] = nodes["route_lo"][own] + local[here][own] + 1
    far = others[here] >= 0
    last = nodes["wide_lo"] + others[here] * nodes["wide_stride"].astype(np.int64) + 1
    end[far] = np.maximum(end[far], last[far])
    if end.max() > len(tables["routes"]):
        yield "routes: fewer than nodes have targets"
    if (wires["rate_num"] == 0).any() or (wires["rate_den"] == 0).any():
        yield "wires: a rate of 0"


def _trees(tables: Tables) -> Iterator[str]:
    """Check that aggregation trees have roots, and ways up and down to them."""
    vertices = tables["vertices"]
    parent = vertices["parent"].astype(np.int64)
    inner = parent != NONE
    if ((vertices["path_up"] == NONE) | (vertices["path_down"] == NONE))[inner].any():
        yield "vertices: a vertex without a way to its parent"
    if (vertices["unit"][parent[inner]] == NONE).any():
        yield "vertices: a parent without a reduction unit"
    above = np.where(inner, parent, np.arange(len(parent)))
    for _ in range(len(parent).bit_length()):
        above = above[above]
    if inner[above].any():
        yield "vertices: a tree without a root"


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
    image = {name: read(file, f"{IMAGE}/{name}") for name in file.columns(IMAGE)}
    for name, column in _NAMED.items():
        if length(file, f"{IMAGE}/{name}") != length(file, column):
            raise TraceError(f"{file.filename}: {IMAGE}/{name}: not one row for each of {column}")
    for name, column in _COUNTED.items():
        if column in file and length(file, f"{IMAGE}/{name}") < length(file, column):
            raise TraceError(f"{file.filename}: {IMAGE}/{name}: fewer rows than {column}")
    scalars = image.pop("scalars", np.empty(0))
    if scalars.shape != (2,) or scalars.dtype.kind not in "iu":
        raise TraceError(f"{file.filename}: {IMAGE}/scalars: must be two integers")
    check_image(image, int(scalars[0]), f"{file.filename}: {IMAGE}")
    return image, int(scalars[0]), int(scalars[1])


_NAMED = {"wires": "/wires/wire", "nodes": "/fabric/node", "endpoints": "/hbm/endpoint"}
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
    *(f"calls/{name}" for name in ("operation", "algorithm", "protocol", "dtype", "redop")),
    *(f"calls/{name}" for name in ("bytes", "channels", "root", "ranks", "ranks_off")),
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
    members = np.repeat(np.arange(len(sizes)), sizes) * every + inputs.numbers("calls/ranks")
    own = (call * every + rank)[call >= 0]
    if not np.isin(own, members).all():
        raise TraceError(f"{where}/tasks/rank: a rank that is not one of its call's")


def _check_names(inputs: Inputs, wires: list[str], path: str | Path) -> None:
    """Check that wires are named after the nodes at their ends."""
    nodes = set(inputs.nodes)
    if len(nodes) < len(inputs.nodes):
        raise TraceError(f"{path}: /fabric/node: two nodes of one name")
    for name in wires:
        source, _, rest = name.partition("->")
        if source not in nodes or rest.rpartition(".")[0] not in nodes:
            raise TraceError(f"{path}: /wires/wire: {name[:80]!r}; must be named after two nodes")
