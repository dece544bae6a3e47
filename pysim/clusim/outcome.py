"""What an engine gives back: the layouts and words shared by the C engine and the reference."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from clusim.errors import RangeExceeded

__all__ = [
    "INSTANCE_STATE",
    "RECORD",
    "WIRE_COUNTERS",
    "Beyond",
    "Cause",
    "Engine",
    "State",
    "Stop",
    "range_exceeded",
]

NEVER = 2**63 - 1
"""A time no run reaches [ps]."""


class Stop(IntEnum):
    """Why `Engine.run` returned."""

    DONE = 0  # all tasks and messages are complete
    TIME = 1  # everything up to and including `until_ps` has happened
    EVENTS = 2  # `max_events` are used up; call again to go on
    RECORDS = 3  # the record buffer is nearly full; drain it and call again
    DEADLOCK = 4  # nothing can happen any more, and tasks or messages are left


class State(IntEnum):
    """What an instance is doing."""

    NOT_STARTED = 0
    WAIT_CTA_SLOT = 1
    WAIT_RECV = 2  # blocked on `conn`: its tail
    WAIT_SEND = 3  # blocked on `conn`: its head
    BUSY = 4
    DONE = 5


class Cause(IntEnum):
    """The last thing that kept a slice from passing its gate."""

    NONE = 0  # it did not wait: its instance came when the gate was open
    RECV = 1  # the data: the tail of its recv connection
    SEND = 2  # room: the head of its send connection


class Beyond(IntEnum):
    """Whose time or number left the ranges (contract, section 1), or which aggregation does not add up (section 6).

    Of several the first, of the lowest id.
    """

    WIRE = 0
    ENDPOINT = 1
    UNIT = 2
    CONNECTION = 3
    SOURCE = 4
    INSTANCE = 5
    TASK = 6
    VERTEX = 7


_END = "at or beyond 2^62 ps (53 days of simulated time)"
_WHY = {
    Beyond.WIRE: f"a packet on it would end, or its credit return, {_END}",
    Beyond.ENDPOINT: f"its memory would accept a packet, or a transfer end there, {_END},"
    " or be charged 2^56 bytes",
    Beyond.UNIT: f"a reduction would end {_END}",
    Beyond.CONNECTION: f"a flag would be seen, or the next packet leave, {_END},"
    " or two instances receive the same slots",
    Beyond.SOURCE: f"the next packet would leave {_END}",
    Beyond.INSTANCE: f"a step would end {_END}",
    Beyond.TASK: f"it would end {_END}",
    Beyond.VERTEX: "its children's packets of one number differ in size,"
    " or a member has two transfers at a time",
}


def range_exceeded(what: Beyond, index: int) -> RangeExceeded:
    """Return the error of a run that an engine refused to go on with."""
    return RangeExceeded(what.name.lower(), index, f"{_WHY[what]}; simulate less at once")


WIRE_COUNTERS: np.dtype[Any] = np.dtype(
    [
        ("packets", "<u8"),  # exact packets
        ("grants", "<u8"),  # packets or bursts put on the wire
        ("bytes", "<u8"),  # headers included, control bytes not
        ("payload", "<u8"),
        ("control_bytes", "<u8"),
        ("busy_ps", "<i8"),
        ("stall_credit_ps", "<i8"),
        ("stall_arbitration_ps", "<i8"),
        ("queued_bytes", "<u8"),
        ("queued_max", "<u8"),
        ("replays", "<u8"),
        ("overflows", "<u8"),  # packets that arrived at a full buffer of a wire that pauses
        ("pauses", "<u8"),
        ("marks", "<u8"),
        ("held_max", "<u8"),  # most bytes one VC's receive buffer ever held, on a wire that pauses
    ]
)
"""Counters of one wire, cumulative since time 0, as defined in the timing contract."""

RECORD: np.dtype[Any] = np.dtype(
    [
        ("time_ps", "<i8"),
        ("gate_ps", "<i8"),  # when its gate was open
        ("instance", "<u4"),
        ("seq", "<u4"),
        ("wire", "<u4"),  # over which its data came or went last, or 2^32 - 1
        ("cause", "<u4"),  # Cause
    ]
)
"""Completion of slice number `seq` of an instance, and why it was not earlier (contract, section 7)."""

INSTANCE_STATE: np.dtype[Any] = np.dtype(
    [("state", "<u4"), ("prim", "<u4"), ("conn", "<u4"), ("seq", "<u4"), ("loop", "<u8")]
)
"""Where an instance stands: `prim` is an index into the image's prims, `conn` into its conns or NONE."""

Array = NDArray[Any]


class Engine(Protocol):
    """A simulation in progress; `clusim.engine.Simulation` and `clusim.reference.Simulation` are the two."""

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
        """Where every instance stands (`INSTANCE_STATE`)."""
        ...

    def mem_bytes_256(self) -> Array:
        """Memory traffic of communication per endpoint, in 1/256 byte (uint64)."""
        ...

    def fingerprint(self) -> int:
        """The run's fingerprint; meaningful once `run` returned DONE."""
        ...

    def check_conservation(self) -> None:
        """After DONE: let what is still under way drain, then raise `InternalError` unless all balances.

        Also if a law of physics was broken. What is read afterwards is still as it was at the end of the run.
        """
        ...
