"""Intermediate form of an MSCCL++ plan: thread blocks as items with dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Union

from clusim.formats.algorithms.mscclpp_json import MscclppOp
from clusim.schedule.ir import Buffer

Key = tuple[int, int]
"""A GPU and a thread block of it; helper programs are numbered from `HELPER`."""

Place = tuple[Buffer, int]
"""A buffer and the index of a grain."""


@dataclass(slots=True, eq=False)
class MscclppLink:
    """A connection of GPUs, or a flag inside a GPU; `group` are the members of a multicast."""

    src: int
    dst: int
    kind: str = "data"
    protocol: str = "simple"
    moved: str = ""
    group: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Stores:
    """Grains that a thread block stores at another GPU, and the links to their readers.

    Attributes
    ----------
    at : int
        Operation of the writer, counted from 1.
    runs : list
        First grain (relative to these stores), number of grains, link.
    """

    writer: Key
    at: int
    gpu: int
    place: Place
    count: int
    runs: list[tuple[int, int, MscclppLink]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class MscclppPacket:
    """A grain of packets in a scratch buffer, from another GPU or operation `at` of `block`."""

    stores: Stores | None
    first: int = 0
    block: Key = (0, 0)
    at: int = 0


@dataclass(slots=True, eq=False)
class Item:
    """A primitive that moves `count` grains from `src` to `dst`.

    `recv` is a link; `send` is a link, or stores from grain `first` on.
    """

    op: str
    count: int = 0
    src: Place | None = None
    dst: Place | None = None
    recv: MscclppLink | None = None
    send: MscclppLink | Stores | None = None
    first: int = 0


Items = list[Union[Item, "Items"]]


@dataclass(slots=True, eq=False)
class MscclppTask:
    """An operation to execute; in a pipeline, iteration `turn`, for `grains` of its chunks."""

    op: MscclppOp
    turn: int = 0
    grains: int = 0


@dataclass(slots=True, eq=False)
class MscclppBlock:
    """A thread block in execution, or a helper.

    Attributes
    ----------
    known : dict
        Of every thread block, the last operation that is visible to this one.
    spots : list
        Per operation, a list in `items` after it, for flags that are added later.
    paid, packets : int
        Operations on data, each with one fixed cost, and grains in packets, each with one fixed cost.
    """

    key: Key
    tasks: list[MscclppTask]
    at: int = 0
    items: Items = field(default_factory=list)
    spots: list[Items] = field(default_factory=list)
    known: dict[Key, int] = field(default_factory=dict)
    paid: int = 0
    packets: int = 0

    def close(self) -> None:
        """End an operation."""
        spot: Items = []
        self.items.append(spot)
        self.spots.append(spot)
        self.at += 1
        self.known[self.key] = self.at

    def flat(self) -> Iterator[Item]:
        """Return all items in order."""
        yield from _flat(self.items)


def _flat(items: Items) -> Iterator[Item]:
    for item in items:
        if isinstance(item, Item):
            yield item
        else:
            yield from _flat(item)


def moved(place: Place, grains: int) -> Place:
    """Return the place shifted by some grains."""
    return place[0], place[1] + grains


def common(
    count: int, cuts: list[list[tuple[int, int, MscclppLink | None]]]
) -> Iterable[tuple[int, int, list[MscclppLink | None]]]:
    """Yield ranges with one source per operand: first grain, number, and the operands' links."""
    if not cuts:
        yield 0, count, []
        return
    bounds = sorted({first for runs in cuts for first, _, _ in runs} | {count})
    for low, high in pairwise(bounds):
        links = [
            next(link for first, size, link in runs if first <= low < first + size) for runs in cuts
        ]
        yield low, high - low, links
