"""Constants, enums and struct layouts of ``clusim.h`` and ``clusim_image.h``, and the engines' output.

The headers are their only definition. Names are repeated here for the type checker and for readers. The import of this
module fails if names of a class differ from its enum, or if NumPy cannot represent the layout of a struct. Values and
layouts are those that the C compiler found. The output's layouts and terms are shared by the C engine and the
reference.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Protocol, TypeVar

import numpy as np

from clusim._engine import ffi, lib
from clusim.base.arrays import Array
from clusim.base.errors import InternalError, PolicyFault, RangeExceeded
from clusim.base.units import format_time
from clusim.policies.kinds import CALLS, RAISED, WORDS
from clusim.policies.sender import SenderPolicy

NONE: int = lib.CLUSIM_NONE
"""Absent index."""

KINDS: int = lib.CLUSIM_SIZE_KINDS
"""Packet kinds, members of `Kind`."""

OPCODE_SLOTS: int = lib.CLUSIM_SIZE_OPCODES
"""Entries of a cost table, and largest number of opcodes."""

CLASSES: int = lib.CLUSIM_SIZE_CLASSES
"""Classes of a schedule."""

MOST_HOPS: int = lib.CLUSIM_SIZE_HOPS
"""Hops with telemetry per packet."""

E = TypeVar("E", bound=IntEnum)


def _values(enum: str) -> list[int]:
    """Return the values of a header enum in ascending order, for the names of a class."""
    return sorted(ffi.typeof(f"enum {enum}").relements.values())


def _all_of(enum: str) -> Callable[[type[E]], type[E]]:
    """Return a decorator that checks names and values of a class against a header enum."""

    def check(cls: type[E]) -> type[E]:
        header: set[tuple[str, int]] = set(
            ffi.typeof(f"enum {enum}").relements.items()
        )
        members = {(f"{enum.upper()}_{member.name}", int(member)) for member in cls}
        for name, value in sorted(header ^ members):
            where = (
                "clusim.h"
                if (name, value) in header
                else f"clusim.engine.abi.{cls.__name__}"
            )
            raise InternalError(f"{name} = {value}: only in {where}")
        return cls

    return check


@_all_of("clusim_stop")
class Stop(IntEnum):
    """Reasons for the return of `Engine.run`."""

    DONE, TIME, EVENTS, RECORDS, DEADLOCK = _values("clusim_stop")


@_all_of("clusim_state")
class State(IntEnum):
    """State of an instance."""

    NOT_STARTED, WAIT_CTA_SLOT, WAIT_RECV, WAIT_SEND, BUSY, DONE = _values(
        "clusim_state"
    )


@_all_of("clusim_cause")
class Cause(IntEnum):
    """Last cause of the wait of a slice at its gate."""

    NONE, RECV, SEND = _values("clusim_cause")


@_all_of("clusim_beyond")
class Beyond(IntEnum):
    """Source of an overflow (contract, section 1) or inconsistent aggregation (section 6).

    Of several the first, of the lowest id.
    """

    (
        WIRE,
        ENDPOINT,
        UNIT,
        CONNECTION,
        SOURCE,
        INSTANCE,
        TASK,
        VERTEX,
        SWITCH,
    ) = _values("clusim_beyond")


@_all_of("clusim_sender_call")
class SenderCall(IntEnum):
    """Functions of a policy (sections 4 and 5)."""

    (
        START,
        SENT,
        ACKED,
        NOTIFIED,
        TIMER,
        LOST,
        ENQUEUE,
        REQUESTED,
        ARRIVED,
        NEXT,
        CHOOSE,
    ) = _values("clusim_sender_call")


@_all_of("clusim_sender_mode")
class SenderMode(IntEnum):
    """Control of the rate of a flow (section 5): `SenderPolicy.mode` of a policy."""

    DCQCN, POLICY, TELEMETRY, QUEUE, RECEIVER, SCHEDULE, PATH = _values(
        "clusim_sender_mode"
    )


@_all_of("clusim_word")
class Word(IntEnum):
    """First words of the record of a flow with a sender policy (section 5)."""

    RATE, WINDOW, TIMER_PS, PATH, IN_FLIGHT, LINE_RATE, MIN_RATE, KEY = _values(
        "clusim_word"
    )


@_all_of("clusim_receiver_word")
class ReceiverWord(IntEnum):
    """Words of a receiver's record in place of those of a flow (section 5)."""

    CREDIT, FLOW, FLOWS = _values("clusim_receiver_word")


@_all_of("clusim_kind")
class Kind(IntEnum):
    """Packet kinds (section 3): the index of the tables of a format."""

    (
        WRITE,
        READ_REQ,
        READ_RESP,
        MCAST,
        RED_REQ,
        RED_FETCH,
        RED_DATA,
        RED_RESULT,
        FETCH,
        AGG_UP,
        AGG_DOWN,
        TRIMMED,
    ) = _values("clusim_kind")


@_all_of("clusim_op")
class Op(IntEnum):
    """Actions of the engine for an opcode: bits."""

    RECV, SEND, MCAST, REDUCE, AGGREGATE = _values("clusim_op")


@_all_of("clusim_node_kind")
class NodeKind(IntEnum):
    """Kinds of graph nodes."""

    ENDPOINT, SWITCH = _values("clusim_node_kind")


@_all_of("clusim_node_flag")
class NodeFlag(IntEnum):
    """Special properties of a graph node: bits."""

    STORE_FORWARD, BRIDGE = _values("clusim_node_flag")


@_all_of("clusim_conn_kind")
class ConnKind(IntEnum):
    """Transport of a connection: push, pull or in-switch."""

    WRITE, READ, FLAG, MULTIMEM, AGGREGATION = _values("clusim_conn_kind")


@_all_of("clusim_policy")
class Policy(IntEnum):
    """Distribution of a transfer over parallel wires (section 5)."""

    STRIPE, PINNED, ADAPTIVE = _values("clusim_policy")


@_all_of("clusim_load")
class Load(IntEnum):
    """Load of a wire, for packets that choose by load (section 6)."""

    QUEUE, CREDIT = _values("clusim_load")


@_all_of("clusim_prim_flag")
class PrimFlag(IntEnum):
    """Special properties of a primitive: bits."""

    (SYNC,) = _values("clusim_prim_flag")


@_all_of("clusim_mode")
class Mode(IntEnum):
    """Layout of a template's chunks in a buffer (section 7)."""

    INTERLEAVED, BLOCKED = _values("clusim_mode")


@_all_of("clusim_task_kind")
class TaskKind(IntEnum):
    """Kinds of tasks (section 9)."""

    PROGRAM, KERNEL, DELAY, MARKER = _values("clusim_task_kind")


@_all_of("clusim_source_flag")
class SourceFlag(IntEnum):
    """Special properties of a source: bits."""

    (SERIAL,) = _values("clusim_source_flag")


@_all_of("clusim_fault_kind")
class FaultKind(IntEnum):
    """Kinds of faults (section 11)."""

    RATE, SLOW = _values("clusim_fault_kind")


def _scalar(ctype: Any) -> str:
    sign = "i" if int(ffi.cast(ctype, -1)) < 0 else "u"
    return f"={sign}{ffi.sizeof(ctype)}"


def _layout(ctype: Any) -> np.dtype[Any]:
    """Return a C type's layout: an integer, or a struct of integers, structs and their arrays."""
    if ctype.kind != "struct":
        return np.dtype(_scalar(ctype))
    end, members = 0, []
    for name, member in ctype.fields:
        is_array = member.type.kind == "array"
        one = member.type.item if is_array else member.type
        shape = (member.type.length,) if is_array else ()
        if member.offset != end or one.kind != "primitive":
            raise InternalError(
                f"{ctype.cname}.{name}: not an integer directly after its neighbour"
            )
        end += ffi.sizeof(member.type)
        members.append((name, _scalar(one), shape))
    if end != ffi.sizeof(ctype):
        raise InternalError(f"{ctype.cname}: padding after its last member")
    return np.dtype(members)


TABLES: dict[str, np.dtype[Any]] = {
    name: _layout(member.type.item)
    for name, member in ffi.typeof("clusim_image").fields
    if member.type.kind == "pointer"
}
"""Row layout of every table of an image, in the header's order; ``op_flags`` is first."""

WIRE_COUNTERS = _layout(ffi.typeof("clusim_wire_counters"))
"""Counters of one wire, cumulative since time 0, as defined in the timing contract."""

ORDER_COUNTERS = _layout(ffi.typeof("clusim_order_counters"))
"""Counters of a target whose receivers accept packets in order only (contract, section 6)."""

WIRE_SAMPLE = _layout(ffi.typeof("clusim_wire_sample"))
"""Counters of one wire at a time during the run, with the names of `WIRE_COUNTERS`."""

FLOW_SAMPLE = _layout(ffi.typeof("clusim_flow_sample"))
"""State of one flow with rate control at a time during the run."""

RECORD = _layout(ffi.typeof("clusim_record"))
"""Completion of slice `seq` of an instance, with its cause (contract, section 7)."""

INSTANCE_STATE = _layout(ffi.typeof("clusim_instance_state"))
"""Position of an instance: `prim` indexes the image's prims, `conn` its conns or NONE."""


if (
    tuple(call.name.lower() for call in SenderCall),
    tuple(word.name.lower() for word in Word),
) != (
    tuple(CALLS),
    WORDS,
):
    raise InternalError("clusim.policies and clusim.h differ")

NEVER = 2**63 - 1
"""A time no run reaches [ps]."""


_END = "at or after 2^62 ps (53 days of simulated time)"
_WHY = {
    Beyond.WIRE: f"a packet on it would end, or its credit return, {_END}",
    Beyond.ENDPOINT: f"its memory would accept a packet, or a transfer end there, {_END},"
    " or be charged 2^56 bytes",
    Beyond.UNIT: f"a reduction would end {_END}",
    Beyond.CONNECTION: f"a flag would be seen, or the next packet leave, {_END},"
    " or two instances receive the same slots, or all repeats of a packet were lost",
    Beyond.SOURCE: f"the next packet would leave {_END}, or all repeats of a packet were lost",
    Beyond.INSTANCE: f"a step would end {_END}",
    Beyond.TASK: f"it would end {_END}",
    Beyond.VERTEX: "its children's packets of one number differ in size,"
    " or a member has two transfers at a time",
    Beyond.SWITCH: "an answer of its policy is illegal",
}


def range_exceeded(limit: Beyond, index: int) -> RangeExceeded:
    """Return the error of a run that an engine refused to continue."""
    return RangeExceeded(
        limit.name.lower(), index, f"{_WHY[limit]}; simulate less at once"
    )


_LEGAL_ANSWERS = {
    "queue": "0 to 3",
    "schedule": "a class with a packet",
    "path": "the number of a wire of `wires`",
}


def policy_failed(
    of: SenderPolicy,
    call: SenderCall,
    answer: tuple[str, int],
    who: tuple[Beyond, int],
    time_ps: int,
) -> PolicyFault:
    """Return the error of an illegal answer, a field and its value, of a sender policy."""
    field, value = answer
    limit = {
        "timer_ps": "later than now",
        "rate": "1 to 2^40 - 1",
        "window": "at least 1",
        "path": "0 to 2^32 - 1",
        "credit": "0 to 2^40 - 1",
        "flow": "the number of a flow",
    }
    if of.kind.answer:
        field = "answer"
        limit = {"answer": _LEGAL_ANSWERS[of.kind.name]}
    subject, remedy = (
        f"{field} = {value}",
        f"must be {limit.get(field, 'an integer of 64 bits')}",
    )
    if value == RAISED:
        subject, remedy = (
            "failed",
            "divided by zero, shifted by a negative number, or an index out of range",
        )
    place = f"policy {of.place(call.name.lower())}"
    words = f"{place}: {subject} at {format_time(time_ps)}", remedy
    return PolicyFault(words, who[0].name.lower(), who[1])


class Engine(Protocol):
    """A simulation in progress, of the C engine or the reference."""

    @property
    def now_ps(self) -> int:
        """Present simulated time [ps]."""
        ...

    def run(self, until_ps: int = NEVER, max_events: int = NEVER) -> Stop:
        """Advance; returns between two timestamps, never inside one.

        Raises
        ------
        RangeExceeded
            The run would leave the ranges that engines compute with (contract, section 1).
        """
        ...

    def wires(self) -> Array:
        """Counters of every wire at `now_ps` (`WIRE_COUNTERS`)."""
        ...

    def orders(self) -> Array:
        """Counters of receivers in order of every target at `now_ps` (`ORDER_COUNTERS`)."""
        ...

    def sample(self, first_ps: int, width_ps: int, count: int, flows: Array) -> None:
        """Schedule samples at `count` times [ps] during the next runs; discards earlier samples.

        Parameters
        ----------
        flows : ndarray
            Sampled flows: connections, then sources, with rate control.
        """
        ...

    def samples(self) -> tuple[Array, Array, Array]:
        """Return the samples of times passed; `run` may have stopped at the last one, but not ended.

        Returns
        -------
        wires : ndarray, shape (times, wires)
            `WIRE_SAMPLE`.
        mem_bytes_256 : ndarray of uint64, shape (times, endpoints)
        flows : ndarray, shape (times, flows)
            `FLOW_SAMPLE`.
        """
        ...

    def flows(self) -> Array:
        """Present state of the flows of the last `sample` (`FLOW_SAMPLE`)."""
        ...

    def task_times(self) -> tuple[Array, Array]:
        """Start and end of every task [ps], int64; -1 where not yet."""
        ...

    def message_times(self) -> Array:
        """Completion of every message [ps], int64; -1 where not yet."""
        ...

    def records(self) -> Array:
        """Return and forget the completion records since the last call (`RECORD`), in time order."""
        ...

    def instance_states(self) -> Array:
        """Positions of all instances (`INSTANCE_STATE`)."""
        ...

    def mem_bytes_256(self) -> Array:
        """Memory traffic of communication per endpoint, in 1/256 byte (uint64)."""
        ...

    def fingerprint(self) -> int:
        """The run's fingerprint; meaningful once `run` returned DONE."""
        ...

    def check_conservation(self) -> None:
        """Drain traffic in flight after DONE; raise `InternalError` unless all balances.

        Also if a physical law was broken. Values read afterwards are still those at the end of the run.
        """
        ...
