"""Entries of the algorithm registry, and the decorator that creates one from a writer function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict, TypeVar, Unpack

from clusim.base.errors import InputError
from clusim.base.terms.operations import OPERATIONS
from clusim.schedule.builder import CollectiveWriter
from clusim.schedule.ir import CollectiveCall
from clusim.schedule.shapes import Shape, shape_of, whole_shape
from clusim.topology.model import Fabric

Writer = Callable[[CollectiveWriter, Fabric | None], None]
Shaper = Callable[[CollectiveCall, Fabric | None], Shape]
W = TypeVar("W", bound=Callable[..., None])

RANKS: dict[str, Callable[[int], bool]] = {
    "any number": lambda count: count > 0,
    "a power of two": lambda count: count & (count - 1) == 0,
}
"""Requirements of an algorithm on the number of its ranks."""


@dataclass(frozen=True, slots=True)
class AlgorithmEntry:
    """An algorithm of an operation.

    Attributes
    ----------
    operation, name : str
        As in ``clusim run --collective OPERATION --algorithm NAME``.
    write : callable
        Writes the programs of a `CollectiveWriter`.
    shape : callable
        Chooses chunk, slice and slot sizes for a call.
    ranks : str
        Required number of ranks, a key of `RANKS`.
    default : bool
        True if it runs where no algorithm is named; one for each operation.
    channels : str
        Key of the default channel count in `Fabric.channels`, if not the algorithm's name.
    drop_channels : bool
        True if small sizes use fewer channels.
    paired : bool
        True if each half of the channels completes the other's work: their default number is even, or one for sizes
        that are not worth two.
    many_peers : bool
        True if a rank exchanges with many others at once, each channel with one at a time: on a direct mesh there is a
        channel for every neighbour.
    protocols : tuple of str
        Supported protocols; empty for all.
    blocks : callable or None
        Returns the default channels for a size [bytes] and a number of ranks, on every fabric.
    prelude_ps : int or None
        Time of an inference engine's kernel before its first data [ps]; None for other kernels.
    """

    operation: str
    name: str
    write: Writer
    shape: Shaper
    ranks: str = "any number"
    default: bool = False
    channels: str = ""
    drop_channels: bool = True
    paired: bool = False
    many_peers: bool = False
    protocols: tuple[str, ...] = ()
    blocks: Callable[[int, int], int] | None = None
    prelude_ps: int | None = None

    @property
    def rooted(self) -> bool:
        """True if its operation has a root."""
        return OPERATIONS[self.operation].rooted

    def fits(self, num_ranks: int) -> bool:
        """Return True if the algorithm is defined for a number of ranks."""
        return RANKS[self.ranks](num_ranks)

    def check_ranks(self, num_ranks: int) -> None:
        """Raise `InputError` unless the algorithm is defined for a number of ranks."""
        if not self.fits(num_ranks):
            others = [
                entry.name
                for entry in sorted(ENTRIES.values(), key=lambda entry: not entry.default)
                if entry.operation == self.operation and entry.fits(num_ranks)
            ]
            raise InputError(
                f"{self.operation} by {self.name}: {num_ranks} ranks; it needs {self.ranks}"
                + (f", use {' or '.join(others[:2])}" if others else "")
            )


class EntryOptions(TypedDict, total=False):
    """Fields of an `AlgorithmEntry` that a decorator may give."""

    ranks: str
    default: bool
    channels: str
    drop_channels: bool
    paired: bool
    many_peers: bool
    protocols: tuple[str, ...]
    blocks: Callable[[int, int], int] | None
    prelude_ps: int | None


ENTRIES: dict[tuple[str, str], AlgorithmEntry] = {}
"""Decorated functions by operation and name, in the order in which their files were imported."""


def step_shape(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    """Return chunks of one slot, as for algorithms whose steps depend on each other."""
    return shape_of(call.protocol, fabric=fabric)


def ring_shape(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    """Return the chunks of NCCL's rings."""
    return shape_of(call.protocol, ring=True, fabric=fabric)


def message_shape(call: CollectiveCall, fabric: Fabric | None) -> Shape:
    """Return one chunk for the complete message."""
    return whole_shape(call.bytes)


def algorithm(
    operation: str, name: str, shape: Shaper = step_shape, **options: Unpack[EntryOptions]
) -> Callable[[W], W]:
    """Register the decorated function as an algorithm of an operation; see `AlgorithmEntry`."""

    def register(write: W) -> W:
        assert (operation, name) not in ENTRIES, f"{operation} has two algorithms {name}"
        assert options.get("ranks", "any number") in RANKS, f"ranks: one of {', '.join(RANKS)}"
        ENTRIES[operation, name] = AlgorithmEntry(operation, name, write, shape, **options)
        return write

    return register
