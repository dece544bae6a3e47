"""Recorded jobs: events of ranks on streams, independent of the tool that wrote them.

Readers make a `Recording` of a file, `clusim.workload.recorded` a schedule of that for a fabric. Nothing here knows a
fabric: sizes, dependencies and recorded times only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

ABSENT = -1
"""Marks an absent number."""

EventKind = Literal["compute", "collective", "send", "recv", "delay"]


@dataclass(frozen=True, slots=True)
class Group:
    """A communicator: its ranks in their order, as the recording numbers ranks of the job."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing a rank did.

    Events of a rank on one stream follow each other in the order of the recording; `deps` adds more.

    Attributes
    ----------
    deps : tuple of int
        Indices of events of the same rank (in `Recording.events`) that must be done first.
    start_ps, duration_ps : int
        As recorded [ps]; `ABSENT` if unknown. For a compute event the duration is how long it takes.
    flops, mem_bytes : int
        Of a compute event without recorded duration: floating-point operations and memory traffic [bytes].
    sms : int
        SMs a compute event of recorded duration takes, 0 for all; 1 if the duration has in it already that others ran
        beside it, so that it does not become longer again.
    group : int
        Index of the communicator of a collective, send or recv.
    sequence : int
        Which call of its group it is: all ranks of a group take part in a collective with the same number. For a
        send and its recv: which message of this pair and `tag`.
    operation : str
        Of a collective, in this project's names: ``allreduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``,
        ``reduce``, ``alltoall``, ``gather``, ``scatter``, ``barrier``.
    bytes : int
        Size as `clusim.schedule.CollectiveCall.bytes` has it, or of the message [bytes].
    root, peer : int
        Positions in the group, not ranks of the job.
    bunch : int
        Sends and receives of one launch (``ncclGroupStart``/``End``) have the same number; `ABSENT` is alone.
    eager : bool
        Of a send and its recv: the message goes when it is sent, and its recv waits for it to come; otherwise, as with
        NCCL, it goes when both ends are ready.
    algorithm, protocol : str
        As recorded, in lower case; empty if unknown. `channels` is 0 if unknown.
    where : str
        ``FILE:LINE`` or the like, for messages.
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


@dataclass(slots=True)
class Recording:
    """A recorded job.

    Attributes
    ----------
    kind : str
        Format it was read from, as ``--kind`` names it.
    num_ranks : int
        Ranks of the job.
    events : list of Event
        In the order of each rank and stream.
    assumed : list of str
        What the file does not say and was filled in, one line each.
    skipped : dict
        What was not understood -> how often.
    nccl_version : str
        Release, if the recording says so.
    hosts : list of str
        Per rank, its machine; empty if the recording does not tell, and ranks fill machines in order.
    alike : bool
        The events are those of rank 0 only: every rank does the same in groups of its own, which are those of rank 0
        moved along. Ranks of a group are equally far apart.
    unrecorded : frozenset of int
        Ranks whose events are those of another, which recorded.
    """

    kind: str
    name: str
    num_ranks: int
    groups: list[Group] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    nccl_version: str = ""
    hosts: list[str] = field(default_factory=list)
    alike: bool = False
    unrecorded: frozenset[int] = frozenset()
