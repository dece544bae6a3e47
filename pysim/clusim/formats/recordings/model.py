"""Recorded jobs: events of ranks on streams, independent of the tool that wrote them.

Readers convert a file to a `Recording`, and `clusim.jobs` converts that to a schedule for a topology.
The model is independent of topologies: sizes, dependencies and recorded times only. `RecordingKind` describes a
format: its name, the start of its files, and its reader.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from operator import attrgetter
from typing import Literal

from clusim.base.errors import InputError
from clusim.base.limits import MOST_RANKS
from clusim.engine.ranges import DURATION_END_PS

MOST_EVENTS = 2_000_000
"""Maximum number of events copied from recorded ranks to their peers, and of operations of a GOAL schedule."""

MOST_REPEATED = 200_000
"""Largest step of equal ranks that is simulated with every rank, in operations of the job."""

LAST = 8
"""Place of patterns that are tried after all others except logs."""


@dataclass(frozen=True, slots=True)
class RecordingKind:
    """Recording format.

    Attributes
    ----------
    name : str
        Value of ``--kind``.
    what : str
        Description, as in ``--kind`` and on pages.
    begins : tuple of (int, bytes)
        Patterns of the start of its files, each with its place among all kinds. Lower places are tried first; patterns
        that may match other formats have a late place, up to `LAST`.
    looks_so : callable or None
        Test of name and first bytes, used if no pattern of any kind matches; True for a file of this kind.
    read_by : str
        Module with ``read(paths) -> Recording``; empty: the module that describes the kind.
    separate : bool
        True if the reader is an extension of the distribution ``clusim-formats``.
    """

    name: str
    what: str
    begins: tuple[tuple[int, bytes], ...] = ()
    looks_so: Callable[[str, bytes], bool] | None = None
    read_by: str = ""
    separate: bool = False


ABSENT = -1
"""Value of an absent number."""

PS_PER_NS, PS_PER_US = 1000, 1_000_000
MOST_BYTES = 1 << 44
"""Largest call or message [bytes]."""

EventKind = Literal["compute", "collective", "send", "recv", "delay"]


@dataclass(frozen=True, slots=True)
class Group:
    """Communicator: the job's ranks in its order."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorShape:
    """Sizes, element type and element size [bytes] of a tensor."""

    sizes: tuple[int, ...]
    dtype: str
    element_bytes: int

    @property
    def bytes(self) -> int:
        """Size [bytes]."""
        return prod(self.sizes) * self.element_bytes


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """Call of an operator of PyTorch, without values.

    Attributes
    ----------
    name : str
        Name in ATen without name space and overload, for example ``addmm``.
    inputs, outputs : tuple of TensorShape
        Tensors in the order of the arguments and results; those written in place are in both.
    flags : tuple of str
        ``causal``: mask of attention; ``tf32``: 32-bit products may round their operands to TF32.
    work : tuple of int
        Floating-point operations and memory traffic [bytes] of an operator without a rule; empty for others.
    """

    name: str
    inputs: tuple[TensorShape, ...]
    outputs: tuple[TensorShape, ...]
    flags: tuple[str, ...] = ()
    work: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """Event of a rank.

    Events of a rank on one stream run in the order of the recording; `deps` adds further dependencies.

    Attributes
    ----------
    deps : tuple of int
        Indices of events of the same rank (in `Recording.events`) that must be complete first.
    start_ps, duration_ps : int
        As recorded [ps]; `ABSENT` if unknown. For a compute event the duration is its run time.
    flops, mem_bytes : int
        Of a compute event without recorded duration: floating-point operations and memory traffic [bytes].
    sms : int
        SMs used by a compute event with a recorded duration, 0 for all; 1 if the duration already includes the effect
        of concurrent kernels, so that it is not extended again.
    group : int
        Index of the communicator of a collective, send or recv.
    sequence : int
        Number of the call in its group: all ranks of a group take part in a collective with the same number. For a
        send and its recv: number of the message of this pair and `tag`.
    operation : str
        Collective, with the names of this project: ``allreduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``,
        ``reduce``, ``alltoall``, ``gather``, ``scatter``, ``barrier``.
    bytes : int
        Size as in `clusim.schedule.CollectiveCall.bytes`, or of the message [bytes].
    root, peer : int
        Positions in the group, not ranks of the job.
    bunch : int
        Sends and receives of one launch (``ncclGroupStart``/``End``) have the same number; `ABSENT` is a separate
        launch.
    eager : bool
        Of a send and its recv: the message is transferred when it is sent, and its recv waits for the arrival.
        Otherwise, as in NCCL, it is transferred when both ends are ready.
    algorithm, protocol : str
        As recorded, in lower case; empty if unknown, ``put`` for one-sided messages. `channels` is 0 if unknown.
    where : str
        ``FILE:LINE`` or similar, for messages.
    operator : OperatorCall or None
        Of a compute event: a replay uses the operator's time on its GPU in place of `duration_ps`.
    """

    kind: EventKind
    rank: int
    stream: str = "0"
    name: str = ""
    deps: tuple[int, ...] = ()
    start_ps: int = ABSENT
    duration_ps: int = ABSENT
    flops: int = 0
    mem_bytes: int = 0
    group: int = ABSENT
    sequence: int = 0
    operation: str = ""
    bytes: int = 0
    dtype: str = "float32"
    redop: str = "sum"
    root: int = ABSENT
    peer: int = ABSENT
    tag: int = 0
    bunch: int = ABSENT
    eager: bool = False
    algorithm: str = ""
    protocol: str = ""
    channels: int = 0
    where: str = ""
    sms: int = 0
    operator: OperatorCall | None = None

    def __reduce__(self) -> tuple[type[Event], tuple[object, ...]]:
        """Return constructor and values; records of a step have 100,000 events."""
        return Event, _values_of(self)


_values_of = attrgetter(*Event.__dataclass_fields__)
"""Values of an event in the order of its fields."""


@dataclass(slots=True)
class Recording:
    """A recorded job.

    Attributes
    ----------
    kind : str
        Format of the file, as in ``--kind``.
    num_ranks : int
        Ranks of the job.
    events : list of Event
        In the order of each rank and stream.
    assumed : list of str
        Assumptions about information missing from the file, one line each.
    skipped : Counter
        Entries that were not understood -> number of them.
    nccl_version : str
        NCCL version, if recorded.
    hosts : list of str
        Node of each rank; empty if not recorded, and ranks fill nodes in order.
    alike : bool
        True if only events of rank 0 are listed: every rank does the same work in its groups, which are rank 0's
        groups, shifted. Ranks of a group are equally spaced.
    representatives : tuple of int
        Per rank, the recorded rank that does the same work; empty: the first recorded rank.
    unrecorded : frozenset of int
        Ranks with events copied from a recorded rank.
    is_graph : bool
        True if `events` are sorted by dependencies only: those of a stream run one at a time as they become ready
        (`clusim.jobs.ready`).
    """

    kind: str
    name: str
    num_ranks: int = 0
    groups: list[Group] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    nccl_version: str = ""
    hosts: list[str] = field(default_factory=list)
    alike: bool = False
    representatives: tuple[int, ...] = ()
    unrecorded: frozenset[int] = frozenset()
    is_graph: bool = False
    _index: dict[Group, int] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Index the groups given, for example of a changed copy."""
        for at, group in enumerate(self.groups):
            self._index.setdefault(group, at)

    def group(self, name: str, ranks: Iterable[int]) -> int:
        """Return the index of a communicator; equal ranks with the same name are one."""
        group = Group(name, tuple(ranks))
        if group not in self._index:
            self._index[group] = len(self.groups)
            self.groups.append(group)
        return self._index[group]

    def assume(self, text: str) -> None:
        """Add an assumption, once."""
        if text not in self.assumed:
            self.assumed.append(text)

    def finish(self) -> Recording:
        """Complete a recording by unrecorded ranks; raise `InputError` if it contains no event to simulate."""
        if not self.events:
            skipped_text = "; ".join(
                f"{count} x {reason}" for reason, count in self.skipped.items()
            )
            raise InputError(
                f"{self.name}: no event that can be simulated{': ' + skipped_text if skipped_text else ''}"
            )
        self._check()
        if not self.alike:
            self._clone_peers()
        return self

    def _positions_of(self, rank: int) -> array[int]:
        """Return the positions of a rank's events."""
        events = enumerate(self.events)
        return array("q", (at for at, event in events if event.rank == rank))

    def _clone_peers(self) -> None:
        """Copy the events of recorded ranks to the unrecorded ranks that they represent, moved into their groups."""
        recorded = sorted({event.rank for event in self.events})
        missing = sorted(set(range(self.num_ranks)) - set(recorded))
        if not missing:
            return
        of = self.representatives or (recorded[0],) * self.num_ranks
        sources = sorted({of[rank] for rank in missing})
        copied = {source: self._positions_of(source) for source in sources}
        used = {
            source: [
                g
                for g in dict.fromkeys(self.events[at].group for at in ats)
                if g >= 0
            ]
            for source, ats in copied.items()
        }
        missing_words = f"{len(missing)} of {self.num_ranks} ranks did not record"
        # Without representatives, a rank that exchanges messages may do other work than the first.
        messages = not self.representatives and any(
            self.events[at].kind in ("send", "recv") for at in copied[of[missing[0]]]
        )
        if messages or sum(len(copied[of[rank]]) for rank in missing) > MOST_EVENTS:
            self.assumed.append(
                f"{missing_words}; assumed ready as soon as a recorded rank is"
            )
            return
        tiles = {
            (g, rank): tile(self.groups[g].ranks, rank)
            for rank in missing
            for g in used[of[rank]]
        }
        if any(t is None or max(t) >= self.num_ranks for t in tiles.values()):
            self.assumed.append(
                f"{missing_words}, and groups are not a regular grid; assumed ready as soon as a recorded rank is"
            )
            return
        self.unrecorded = frozenset(missing)
        for rank in missing:
            source = of[rank]
            moved = {ABSENT: ABSENT}
            for group in used[source]:
                ranks = tiles[group, rank]
                assert ranks is not None
                moved[group] = self.group(self.groups[group].name, ranks)
            first = len(self.events)
            for at in copied[source]:
                event = self.events[at]
                deps = tuple(
                    first + bisect_left(copied[source], d) for d in event.deps
                )
                self.events.append(
                    replace(event, rank=rank, group=moved[event.group], deps=deps)
                )
        same = f"rank{'s' * (len(copied) > 1)} {', '.join(map(str, copied))}"
        self.assumed.append(
            f"{missing_words}; assumed to do the same work as {same} (symmetric peers)"
        )

    def _check(self) -> None:
        """Raise `InputError` for numbers above the limits of any job."""
        if self.num_ranks > MOST_RANKS:
            raise InputError(
                f"{self.name}: {self.num_ranks} ranks; at most {MOST_RANKS}"
            )
        starts = [
            event.start_ps for event in self.events if event.start_ps != ABSENT
        ]
        if starts and max(starts) - min(starts) >= DURATION_END_PS:
            raise InputError(
                f"{self.name}: events more than {DURATION_END_PS // 10**12} s apart"
            )
        for event in self.events:
            for name in ("duration_ps", "flops", "mem_bytes", "bytes"):
                value = getattr(event, name)
                if not ABSENT <= value < DURATION_END_PS:
                    raise InputError(
                        f"{event.where or self.name}: {name} of {value}; must be below 2^61"
                    )


UNEVEN_TAG = 1
"""Tag of the messages of uneven all-to-alls."""


def messages_of(
    call: Event, position: int, splits: Sequence[Sequence[int]]
) -> list[Event]:
    """Return the messages of a rank in an uneven all-to-all, except its message to itself.

    Parameters
    ----------
    call : Event
        The call, with the number of its launch (`bunch`).
    position : int
        Of the rank in the group.
    splits : sequence
        Bytes sent to, and received from, each position.
    """
    kinds: tuple[EventKind, ...] = ("send", "recv")
    return [
        replace(
            call,
            kind=kind,
            bytes=sizes[peer],
            peer=peer,
            tag=UNEVEN_TAG,
            operation="",
        )
        for peer in range(len(splits[0]))
        for kind, sizes in zip(kinds, splits, strict=True)
        if sizes[peer] > 0 and peer != position
    ]


def tile(ranks: Sequence[int], rank: int) -> tuple[int, ...] | None:
    """Return the group of `rank` in a job divided like `ranks`; None if not a regular grid."""
    size = len(ranks)
    stride = ranks[1] - ranks[0] if size > 1 else 1
    if stride < 1 or any(ranks[i] != ranks[0] + i * stride for i in range(size)):
        return None
    return (
        tuple(group_of(stride, size, rank))
        if ranks[0] % (stride * size) < stride
        else None
    )


def group_of(stride: int, size: int, rank: int) -> Sequence[int]:
    """Return the group of a rank: `size` ranks at distances of `stride`."""
    first = rank // (stride * size) * (stride * size) + rank % stride
    return range(first, first + stride * size, stride)
