"""Requests: a collective, a given schedule, or synthetic traffic, on some nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.base.terms.operations import WORDS
from clusim.nccl.choice import Wanted
from clusim.nccl.env import windows
from clusim.schedule import Schedule
from clusim.simulation.setup import Setup
from clusim.topology import Fabric

if TYPE_CHECKING:
    from clusim.lowering import Lowered
    from clusim.results.replicated import BlockRows
    from clusim.simulation.session import EngineName
    from clusim.simulation.traffic import Traffic, TrafficPlan


def _lower(word: str) -> str:
    return word.strip().lower()


_READERS = WORDS | dict.fromkeys(
    ("granularity", "engine", "fold", "gap", "kind"), _lower
)


def own_words(request: Any) -> None:
    """Normalise the words of a frozen request, so that equal requests compare equal; unknown words are kept."""
    for name, read in _READERS.items():
        word = getattr(request, name, None)
        if isinstance(word, str) and word:
            with suppress(InputError):
                object.__setattr__(request, name, read(word))


@dataclass(frozen=True)
class Request:
    """One collective; can be compared, hashed and sent to other processes.

    Attributes
    ----------
    operation : str
        Name in `clusim.collectives.ALGORITHMS`, in any spelling.
    size_bytes : int
        Size as in nccl-tests: the larger of a rank's send and receive sizes [bytes].
    algorithm : str
        A name in `clusim.collectives.ALGORITHMS`; ``nccl`` is NCCL's choice; the name of a file is a plan of
        MSCCL (``.xml``) or MSCCL++ (``.json``); empty is ``nccl`` where NCCL runs, otherwise the operation's first.
    wanted : NcclOverrides or CallConfig or None
        Overrides of NCCL's choices, or NCCL's configuration of the call.
    protocol : str
        ``simple``, ``ll`` or ``ll128``; empty is the algorithm's default. Sets ``NCCL_PROTO`` for NCCL.
    channels : int or None
        None is the fabric's. Sets ``NCCL_MIN_NCHANNELS`` and ``NCCL_MAX_NCHANNELS`` for NCCL.
    dtype, redop : str
        Type of the elements and reduction.
    root : int or None
        Rank of the fabric, for operations with a root; None is the first one.
    granularity : str or int
        ``auto``, ``packet`` or a size of bursts [bytes]; see `clusim.lowering.grain`.
    seed : int
        Seed of all random events of the run.
    verify : bool
        Carry real numbers and compare the outcome with the definition.
    engine : str
        ``c`` or ``reference``.
    """

    setup: Setup
    operation: str
    size_bytes: int
    algorithm: str = ""
    wanted: Wanted | None = None
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
        """Normalise the spelling of words."""
        own_words(self)

    def of(self, schedule: Schedule) -> ScheduleRequest:
        """Return a request for a schedule with the settings of this one, without verification."""
        return ScheduleRequest(
            self.setup,
            schedule,
            granularity=self.granularity,
            seed=self.seed,
            engine=self.engine,
        )


@dataclass(frozen=True, eq=False)
class FlowMessages:
    """Messages in the run of a schedule, such as storage traffic: packets and paths, sizes and starts."""

    traffic: Traffic
    plan: TrafficPlan


@dataclass(frozen=True, eq=False)
class PartOfRun:
    """A run of which this one is a part: its image, and the number in it of each connection of this schedule."""

    full: Lowered
    connections: Sequence[int]


@dataclass(frozen=True)
class ScheduleRequest:
    """A given schedule on the fabric of a setup, with the setup's faults; frozen as `Request`.

    To plan a schedule around faults that are active at time 0, write it on `Setup.known`.

    Attributes
    ----------
    notes : tuple of str
        Notes on the plan to show with the result, such as that it differs from the plan without the faults.
    granularity, seed, verify, engine
        As for `Request`.
    blocks : BlockRows or None
        Tasks of replicated blocks, represented by pauses of the schedule, for the trace.
    messages : FlowMessages or None
        Messages on the same fabric.
    part : PartOfRun or None
        Bursts of another run, in place of a granularity.
    """

    setup: Setup
    schedule: Schedule
    notes: tuple[str, ...] = ()
    granularity: str | int = "auto"
    seed: int = 0
    verify: bool = False
    engine: EngineName = "c"
    blocks: BlockRows | None = None
    messages: FlowMessages | None = None
    part: PartOfRun | None = None

    def __post_init__(self) -> None:
        """Normalise the spelling of words."""
        own_words(self)

    def verified(self) -> ScheduleRequest:
        """Return the request with verification of data."""
        return replace(self, verify=True)


@dataclass(frozen=True)
class TrafficRequest:
    """Synthetic traffic on the fabric of a setup, with its seed; frozen as `Request`."""

    setup: Setup
    traffic: Traffic
    granularity: str | int = "packet"
    engine: EngineName = "c"

    def __post_init__(self) -> None:
        """Normalise the spelling of words."""
        own_words(self)


AnyRequest = Request | ScheduleRequest | TrafficRequest


def taken(
    options: dict[str, Any], *kinds: type[Any], known: Iterable[str] | None = None
) -> dict[str, Any]:
    """Remove the options that are fields of some dataclasses, and return them; others than `known` stay."""
    names = {field.name for kind in kinds for field in fields(kind)} & options.keys()
    return {
        name: options.pop(name) for name in names if known is None or name in known
    }


def requested(
    topology: str | Path | Fabric, *, symmetric: bool = False, **options: Any
) -> Request:
    """Return the request of options, the fields of `Setup` and `Request`.

    Parameters
    ----------
    symmetric : bool
        Register buffers as symmetric windows.
    """
    env = (*options.pop("env", ()), *windows(symmetric))
    setup = Setup(topology, env=env, **taken(options, Setup))
    return Request(setup, **options)
