"""Requests: a collective, a given schedule, or synthetic traffic, on some nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from clusim.base.terms.algorithms import find_protocol, own_algorithm
from clusim.base.terms.dtypes import find_dtype, find_redop
from clusim.base.terms.operations import find_operation
from clusim.nccl.calls.choice import NcclOverrides
from clusim.results.replicated import FoldedBlocks
from clusim.schedule import Schedule
from clusim.simulation.session import EngineName
from clusim.simulation.setup import Setup
from clusim.simulation.traffic import Traffic


def _operation(word: str) -> str:
    found = find_operation(word)
    return found.name if found else word


def _protocol(word: str) -> str:
    found = find_protocol(word)
    return found.own if found else word


def _dtype(word: str) -> str:
    found = find_dtype(word)
    return found.name if found else word


def _lower(word: str) -> str:
    return word.strip().lower()


_OWN: dict[str, Callable[[str], str]] = {
    "operation": _operation,
    "algorithm": own_algorithm,
    "protocol": _protocol,
    "dtype": _dtype,
    "redop": lambda word: find_redop(word) or word,
    "granularity": _lower,
    "engine": _lower,
    "fold": _lower,
    "gap": _lower,
    "kind": _lower,
}
"""Spelling of the words of a request."""


def own_words(request: Any) -> None:
    """Spell the words of a frozen request as clusim does, so that equal requests are equal; leave what is none."""
    for name, own in _OWN.items():
        word = getattr(request, name, None)
        if isinstance(word, str):
            object.__setattr__(request, name, own(word))


@dataclass(frozen=True)
class Request:
    """One collective; can be compared, hashed and sent to other processes.

    Attributes
    ----------
    operation : str
        Name in `clusim.collectives.ALGORITHMS`, in any spelling.
    size_bytes : int
        Size as nccl-tests has it: the larger of what a rank sends and receives [bytes].
    algorithm : str
        A name in `clusim.collectives.ALGORITHMS`; ``nccl`` is what NCCL would run; the name of a file is a plan of
        MSCCL (``.xml``) or MSCCL++ (``.json``); empty is ``nccl`` where NCCL runs, else the operation's first.
    wanted : NcclOverrides or None
        What NCCL is made to use.
    protocol : str
        ``simple``, ``ll`` or ``ll128``; empty is the algorithm's own. NCCL is told by ``NCCL_PROTO``.
    channels : int or None
        None is the fabric's. NCCL is told by ``NCCL_MIN_NCHANNELS`` and ``NCCL_MAX_NCHANNELS``.
    dtype, redop : str
        Type of the elements and reduction.
    root : int or None
        Rank of the fabric, for operations that have a root; None is the first one.
    granularity : str or int
        ``auto``, ``packet`` or a size of bursts [bytes]; see `clusim.lowering.grain`.
    seed : int
        Seed of whatever is random in the run.
    verify : bool
        Carry real numbers and compare the outcome with the definition.
    engine : str
        ``c`` or ``reference``.
    """

    setup: Setup
    operation: str
    size_bytes: int
    algorithm: str = ""
    wanted: NcclOverrides | None = None
    protocol: str = ""
    channels: int | None = None
    dtype: str = "float32"
    redop: str = "sum"
    root: int | None = None
    granularity: str | int = "auto"
    seed: int = 0
    verify: bool = False
    engine: EngineName = "c"

    def __post_init__(self) -> None:
        """Spell words as clusim does."""
        own_words(self)

    def of(self, schedule: Schedule) -> ScheduleRequest:
        """Return a request for a schedule that is run as this one would be, without verifying it."""
        return ScheduleRequest(
            self.setup,
            schedule,
            granularity=self.granularity,
            seed=self.seed,
            engine=self.engine,
        )


@dataclass(frozen=True)
class ScheduleRequest:
    """A schedule that is written already, on the fabric of a setup, whose faults break it; as frozen as `Request`.

    To plan a schedule around what is broken at time 0, write it on `Setup.known`.

    Attributes
    ----------
    notes : tuple of str
        What must be said of the plan wherever the result is shown, such as that it is another one without the faults.
    granularity, seed, verify, engine
        As of `Request`.
    folded : FoldedBlocks or None
        What pauses of the schedule stand for.
    """

    setup: Setup
    schedule: Schedule
    notes: tuple[str, ...] = ()
    granularity: str | int = "auto"
    seed: int = 0
    verify: bool = False
    engine: EngineName = "c"
    folded: FoldedBlocks | None = None

    def __post_init__(self) -> None:
        """Spell words as clusim does."""
        own_words(self)

    def verified(self) -> ScheduleRequest:
        """Return the same with real numbers carried along."""
        return replace(self, verify=True)


@dataclass(frozen=True)
class TrafficRequest:
    """Synthetic traffic on the fabric of a setup; as frozen as `Request`, and of its words. It has its own seed."""

    setup: Setup
    traffic: Traffic
    granularity: str | int = "packet"
    engine: EngineName = "c"

    def __post_init__(self) -> None:
        """Spell words as clusim does."""
        own_words(self)


AnyRequest = Request | ScheduleRequest | TrafficRequest
