"""The image: a topology and a schedule as flat arrays, the only input of both engines.

Tables and fields are those of ``clusim_image`` in ``clusim.h``, with the units of ``docs/model/contract.md``. All
times are int64 ps. `OPCODES` contains the primitives of programs: numbers, names and actions of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from hashlib import blake2b
from typing import Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InternalError, ScheduleError
from clusim.base.records import dataclass
from clusim.engine.abi import OPCODE_SLOTS, TABLES, Op
from clusim.policies.choice import BoundSender

Senders = tuple[BoundSender | None, ...]
"""Sender policies by row of the rate controls of an image."""


@dataclass(frozen=True, slots=True)
class Opcode:
    """One primitive of the program IR: its number, name and actions of the engine."""

    number: int
    name: str
    flags: int


_OPCODE_FLAGS = {
    "send": Op.SEND,
    "recv": Op.RECV,
    "recvCopy": Op.RECV,
    "recvReduce": Op.RECV,
    "recvCopySend": Op.RECV | Op.SEND,
    "recvReduceSend": Op.RECV | Op.SEND,
    "recvReduceCopy": Op.RECV,
    "recvReduceCopySend": Op.RECV | Op.SEND,
    "copy": 0,
    "reduce": 0,
    "copySend": Op.SEND,
    "multicastStore": Op.MCAST,
    "reduceLoad": Op.REDUCE,
    "reduceLoadStore": Op.REDUCE | Op.MCAST,
    "signal": Op.SEND,
    "waitSignal": Op.RECV,
    "aggregate": Op.AGGREGATE,
    "recvReduceMore": Op.RECV,
    "sendMore": Op.SEND,
}
OPCODES: dict[str, Opcode] = {
    name: Opcode(number, name, int(flags))
    for number, (name, flags) in enumerate(_OPCODE_FLAGS.items())
}
"""Opcodes by name. A ``read`` is a ``recv``-family primitive on a read connection."""

if len(OPCODES) > OPCODE_SLOTS:
    raise InternalError(
        f"{len(OPCODES)} opcodes; clusim.h has room for {OPCODE_SLOTS}"
    )

OP_FLAGS = np.array([opcode.flags for opcode in OPCODES.values()], np.uint32)
"""Flags of the opcodes by number, in the engine's layout."""


DTYPES = {name: dtype for name, dtype in TABLES.items() if name != "op_flags"}
"""Layout of every table of an image except ``op_flags``; fields as in ``clusim.h``."""


def empty(name: str, count: int = 0) -> Array:
    """Return `count` zeroed rows of the array called `name`."""
    return np.zeros(count, DTYPES[name])


def _default(name: str) -> Any:
    offsets = name.endswith("_off")
    return field(default_factory=lambda: empty(name, 1 if offsets else 0))


@dataclass(slots=True)
class Image:
    """Input of a run, as arrays with the dtypes `DTYPES`; the contract defines their meaning."""

    nvc: int = 1
    seed: int = 0
    nodes: Array = _default("nodes")
    endpoints: Array = _default("endpoints")
    formats: Array = _default("formats")
    wires: Array = _default("wires")
    schedules: Array = _default("schedules")
    targets: Array = _default("targets")
    routes: Array = _default("routes")
    group_off: Array = _default("group_off")
    group_wires: Array = _default("group_wires")
    path_off: Array = _default("path_off")
    path_wires: Array = _default("path_wires")
    units: Array = _default("units")
    mgroup_off: Array = _default("mgroup_off")
    mgroup_members: Array = _default("mgroup_members")
    vertices: Array = _default("vertices")
    controls: Array = _default("controls")
    spreads: Array = _default("spreads")
    queue_keys: Array = _default("queue_keys")
    conns: Array = _default("conns")
    costs: Array = _default("costs")
    prims: Array = _default("prims")
    templates: Array = _default("templates")
    instances: Array = _default("instances")
    inst_conns: Array = _default("inst_conns")
    tasks: Array = _default("tasks")
    succ: Array = _default("succ")
    sources: Array = _default("sources")
    messages: Array = _default("messages")
    faults: Array = _default("faults")
    senders: Senders = ()
    """Sender policies by row of `controls`; empty without any. They are not a table."""

    def tables(self) -> dict[str, Array]:
        """Return all tables by name, including ``op_flags``."""
        return {"op_flags": OP_FLAGS} | {
            name: getattr(self, name) for name in DTYPES
        }

    def check_senders(self) -> None:
        """Raise `ScheduleError` unless `senders` has a policy for each row of `controls` that uses one."""
        senders = self.senders or (None,) * len(self.controls)
        modes = [0 if bound is None else bound.policy.mode for bound in senders]
        if modes != self.controls["sender"].tolist():
            used = np.flatnonzero(self.controls["sender"]).tolist()
            raise ScheduleError(
                f"image: controls{used}: no sender policy, or one too many"
            )

    def digest(self) -> bytes:
        """Return a 32-byte digest of the tables, byte for byte, and the seed."""
        result = blake2b(f"{self.nvc} {self.seed}".encode(), digest_size=32)
        for name in DTYPES:
            table = getattr(self, name)
            result.update(f"{name} {table.shape}".encode())
            result.update(table)
        for bound in self.senders:
            result.update(b"" if bound is None else bound.identity.encode())
        return result.digest()

    def __post_init__(self) -> None:
        """Check dtypes and contiguity, so that both engines may trust them."""
        for item in fields(self):
            if item.name in DTYPES:
                value = np.ascontiguousarray(getattr(self, item.name))
                if value.dtype != DTYPES[item.name]:
                    raise TypeError(
                        f"image.{item.name}: dtype {value.dtype}, expected {DTYPES[item.name]}"
                    )
                setattr(self, item.name, value)


if (
    _named := [
        item.name
        for item in fields(Image)
        if item.name not in ("nvc", "seed", "senders")
    ]
) != [*DTYPES]:
    raise InternalError(
        f"the engine was built from another version; run `make .venv/.built` (tables {sorted({*_named} ^ {*DTYPES})})"
    )


def image_of(
    arrays: Mapping[str, Array],
    nvc: int,
    seed: int,
    senders: Senders = (),
) -> Image:
    """Return the image of some tables, converted to their dtypes, and of sender policies."""
    fields = {name: values.astype(DTYPES[name]) for name, values in arrays.items()}
    return Image(nvc=nvc, seed=seed, senders=senders, **fields)
