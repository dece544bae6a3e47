"""Operations and calls that a rank issues, and the job that times them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from clusim.formats.recordings.model import Group


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a stream: earlier operations, and the host's time of the issue [ps].

    Attributes
    ----------
    captured : int
        Place in a captured graph; -1 outside.
    call : int
        Number of the rank's call with values of other ranks; -1 without.
    """

    operations: frozenset[int] = frozenset()
    issued_ps: int = 0
    captured: int = -1
    call: int = -1


@dataclass(frozen=True, slots=True)
class IssuedCall:
    """A collective or a message as issued; `bytes` as in `clusim.schedule.CollectiveCall.bytes`.

    Attributes
    ----------
    ranks : tuple of int
        Process group.
    root : int
        Position of the root in the group; of the sender of a message.
    peer : int
        Position of the receiver of a message; -1 for collectives.
    timed : bool
        False for groups of another back end than NCCL: values of the host are exchanged in zero time.
    where : str
        Line of the program.
    splits : tuple
        Bytes sent to and received from each rank of an uneven all-to-all; empty for other calls.
    number : int
        Number of the process group among groups of equal ranks, in the order of their creation.
    shared : bool
        A message in the communicator of the process group. PyTorch creates a communicator per pair of ranks for the
        others: messages outside batches, if the group is not bound to a device.
    """

    operation: str
    bytes: int
    ranks: tuple[int, ...]
    dtype: str = "uint8"
    redop: str = "sum"
    root: int = -1
    peer: int = -1
    tag: int = 0
    timed: bool = True
    where: str = field(default="", compare=False)
    splits: tuple[tuple[int, ...], ...] = ()
    number: int = 0
    shared: bool = False

    @property
    def ends(self) -> tuple[int, int]:
        """Ranks of the sender and the receiver of a message."""
        return self.ranks[self.root], self.ranks[self.peer]

    @property
    def group(self) -> Group:
        """Communicator of the call."""
        name = f"group of {len(self.ranks)}"
        name = f"{name}, number {self.number}" if self.number else name
        if self.peer < 0 or self.shared:
            return Group(name, self.ranks)
        return Group(f"pair in {name}", tuple(sorted(self.ends)))

    @property
    def meeting(self) -> tuple[object, ...]:
        """Identity of the call among ranks, in addition to its number: calls of a group, or of a pair, are in order."""
        ends = (
            (self.shared, self.root, self.peer, self.tag) if self.peer >= 0 else ()
        )
        return (self.timed, self.ranks, self.number, *ends)

    @property
    def size(self) -> tuple[str, int]:
        """Operation and number of ranks of the process group."""
        return self.operation, len(self.ranks)


class IssuedOperation(NamedTuple):
    """Operation of a rank for the clock of its job.

    Attributes
    ----------
    number : int
        Its place among the operations of the rank.
    issued_ps : int
        The host's time of the issue [ps].
    deps : tuple of int
        Operations that must be complete first.
    time_ps : int
        Time of a kernel in isolation [ps]; 0 for other operations.
    call : IssuedCall or None
        A call, with the values that the rank sends.
    """

    number: int
    issued_ps: int
    deps: tuple[int, ...] = ()
    time_ps: int = 0
    call: IssuedCall | None = None
    sent: Any = None


class Peers(Protocol):
    """Clock of the job, and its other ranks.

    Attributes
    ----------
    alone : bool
        This rank represents all others, values included.
    """

    alone: bool

    def issue(self, operation: IssuedOperation) -> None:
        """Issue an operation."""

    def announce(self, call: IssuedCall, sent: Any) -> None:
        """Report the next call before its operation, for the comparison of ranks."""

    def end(
        self, operations: Iterable[int], until_ps: int | None = None
    ) -> int | None:
        """Wait for operations; return the last end [ps], or None if it is later than `until_ps`."""

    def values(self, number: int) -> tuple[int, dict[int, Any]]:
        """Wait until all ranks have issued a call; return the time [ps], and the values of all ranks."""
