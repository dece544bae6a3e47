"""A job: its communicators, and the operations of its ranks on streams.

A job is independent of its source and of the system. Operations are rows of columns, numbered in the order in which
they are appended; equal work is stored once. The operations of a rank on one stream run in sequence. Times are in ps
from the start of the job.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from clusim.base.errors import InputError
from clusim.formats.recordings.model import ABSENT, Group, OperatorCall


@dataclass(frozen=True, slots=True)
class KernelWork:
    """Kernel of a known time [ps], of an operator, or of floating-point operations and memory traffic [bytes].

    Attributes
    ----------
    sms : int
        SMs that it uses; 0 for all.
    """

    kind: ClassVar = "compute"
    time_ps: int = 0
    operator: OperatorCall | None = None
    flops: int = 0
    dtype: str = ""
    mem_bytes: int = 0
    sms: int = 0


@dataclass(frozen=True, slots=True)
class CallWork:
    """Collective; `bytes` as in `clusim.schedule.CollectiveCall.bytes`.

    Attributes
    ----------
    root : int
        Position in the communicator; `ABSENT` if unknown.
    algorithm, protocol, channels
        As recorded; empty and 0 if unknown.
    """

    kind: ClassVar = "collective"
    operation: str
    bytes: int
    dtype: str = "float32"
    redop: str = "sum"
    root: int = ABSENT
    algorithm: str = ""
    protocol: str = ""
    channels: int = 0


@dataclass(frozen=True, slots=True)
class MessageWork:
    """One end of a message.

    Attributes
    ----------
    eager : bool
        The message is transferred when it is sent, and its receive waits for the arrival.
    put : bool
        One-sided message.
    """

    kind: str
    bytes: int
    eager: bool = False
    put: bool = False


@dataclass(frozen=True, slots=True)
class LaunchWork:
    """Messages that several ranks launch together.

    Attributes
    ----------
    messages : tuple
        Source and target, as positions in the communicator, and size of each [bytes].
    """

    kind: ClassVar = "launch"
    messages: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class DelayWork:
    """Time of a host thread, or another delay [ps]."""

    kind: ClassVar = "delay"
    time_ps: int = 0


Work = KernelWork | CallWork | MessageWork | DelayWork


class RankOperation(NamedTuple):
    """Operation of a rank.

    Attributes
    ----------
    deps : sequence of int
        Numbers of operations of the same rank that must be complete first.
    group : int
        Number of the communicator of a call or message; `ABSENT` for all ranks.
    peer : int
        Position of the other end of a message in the communicator.
    number : int
        Number of a call in its communicator, or of a message among the messages of its pair and `tag`.
    launch : int
        Messages of a rank and stream with the same number are launched together; `ABSENT` is a separate launch.
    label, where : str
        Name of the operation, and its place in the source.
    start_ps, duration_ps : int
        As recorded; `ABSENT` if unknown.
    """

    rank: int
    stream: str
    work: Work
    deps: Sequence[int] = ()
    group: int = ABSENT
    peer: int = ABSENT
    tag: int = 0
    number: int = 0
    launch: int = ABSENT
    label: str = ""
    where: str = ""
    start_ps: int = ABSENT
    duration_ps: int = ABSENT


def _numbers() -> array[int]:
    return array("q")


@dataclass
class JobGraph:
    """A job.

    The columns after `groups` are the fields of `RankOperation`; a source without labels and messages may leave the
    columns after `group` empty.

    Attributes
    ----------
    groups : list of Group
        Communicators. Their identity is their number: two communicators may have equal ranks.
    """

    name: str
    num_ranks: int
    groups: list[Group] = field(default_factory=list)
    rank: array[int] = field(default_factory=_numbers)
    stream: list[str] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    deps: list[Sequence[int]] = field(default_factory=list)
    group: array[int] = field(default_factory=_numbers)
    peer: array[int] = field(default_factory=_numbers)
    tag: array[int] = field(default_factory=_numbers)
    number: array[int] = field(default_factory=_numbers)
    launch: array[int] = field(default_factory=_numbers)
    label: list[str] = field(default_factory=list)
    where: list[str] = field(default_factory=list)
    start_ps: array[int] = field(default_factory=_numbers)
    duration_ps: array[int] = field(default_factory=_numbers)
    _works: dict[Work, Work] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __len__(self) -> int:
        """Return the number of operations."""
        return len(self.rank)

    def append(self, operation: RankOperation) -> None:
        """Append an operation."""
        work = self._works.setdefault(operation.work, operation.work)
        for name, value in zip(
            RankOperation._fields, operation._replace(work=work), strict=True
        ):
            getattr(self, name).append(value)

    def members(self, at: int) -> Group:
        """Return the communicator of an operation; raise `InputError` if it does not exist."""
        number = self.group[at]
        if number == ABSENT:
            return Group("all ranks", tuple(range(self.num_ranks)))
        if not 0 <= number < len(self.groups):
            raise self.failure(at, f"group {number} does not exist")
        return self.groups[number]

    def failure(self, at: int, text: str) -> InputError:
        """Return an error of an operation, with its place."""
        return InputError(f"{self.where[at] or self.name}: {text}")
