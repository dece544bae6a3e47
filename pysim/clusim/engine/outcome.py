"""Output of an engine: layouts and terms shared by the C engine and the reference."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from clusim.base.errors import RangeExceeded
from clusim.engine.abi import Beyond, Stop

NEVER = 2**63 - 1
"""A time no run reaches [ps]."""


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
    """Return the error of a run that an engine refused to continue."""
    return RangeExceeded(what.name.lower(), index, f"{_WHY[what]}; simulate less at once")


Array = NDArray[Any]


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
