"""The primitives of the program IR: their numbers, names, and actions of the engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clusim.base.errors import InternalError
from clusim.engine.abi import OPCODE_SLOTS, Op


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
    raise InternalError(f"{len(OPCODES)} opcodes; clusim.h has room for {OPCODE_SLOTS}")

OP_FLAGS = np.array([opcode.flags for opcode in OPCODES.values()], np.uint32)
"""Flags of the opcodes by number, in the engine's layout."""
