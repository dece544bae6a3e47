"""Intermediate form of an MSCCL++ plan: thread blocks as items, order of flags and stores.

After synchronisation (a signal, a barrier or a semaphore) the completed operations of one thread block are
visible to another. Stores of other GPUs that become visible arrive with it if no thread block of its GPU
has noted them yet. Otherwise it waits for a flag of the noting thread block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Union

from clusim.formats.algorithms.layout import Key, Place
from clusim_formats.algorithms.mscclpp_json import MscclppOp


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


def shift_place(place: Place, grains: int) -> Place:
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
            next(link for first, size, link in runs if first <= low < first + size)
            for runs in cuts
        ]
        yield low, high - low, links


Snapshot = tuple[Key, int, dict[Key, int]]
"""A thread block, its number of completed operations, and the operations visible to it."""


class Knowledge:
    """Thread blocks with the operations visible to each, and pending stores.

    A link carries at most `batch` grains.
    """

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.blocks: dict[Key, MscclppBlock] = {}
        self.pending: dict[int, dict[Key, deque[Stores]]] = {}
        self.landed: dict[tuple[int, Key], list[tuple[int, Key, int]]] = {}
        self.flags: dict[tuple[Key, Key, object], tuple[int, MscclppLink]] = {}

    def shot(self, block: MscclppBlock) -> Snapshot:
        """Return the operations visible to a thread block after its current operation."""
        return block.key, block.at + 1, dict(block.known) | {block.key: block.at + 1}

    def link(self, giver: Key, taker: Key, about: object) -> MscclppLink:
        """Return the link of the next flag in a sequence about one object; 32 flags share a link."""
        count, link = self.flags.get((giver, taker, about), (0, None))
        if link is None or count % 32 == 0:
            link = MscclppLink(giver[0], taker[0], "flag")
        self.flags[giver, taker, about] = count + 1, link
        return link

    def flag(
        self, giver: Key, at: int, taker: MscclppBlock, about: object = None
    ) -> None:
        """Let `taker` wait here for completion of operation `at` (from 1) of `giver`."""
        alone = MscclppLink(giver[0], taker.key[0], "flag")
        link = alone if about is None else self.link(giver, taker.key, about)
        self.blocks[giver].spots[at - 1].append(Item("signal", send=link))
        taker.items.append(Item("waitSignal", recv=link))

    def learn(self, block: MscclppBlock, signals: dict[Key, int]) -> None:
        """Make operations visible to a thread block: note arrivals, or wait for their flag."""
        news = {
            key: at for key, at in signals.items() if at > block.known.get(key, 0)
        }
        gpu = block.key[0]
        before = dict(block.known)
        block.known |= news
        for key, at in news.items():
            for stored, who, noted in self.landed.get((gpu, key), ()):
                new = before.get(key, 0) < stored <= at
                if new and who != block.key and block.known.get(who, 0) < noted:
                    self.flag(who, noted, block)
                    block.known[who] = noted
            self._land(block, key, at)

    def _land(self, block: MscclppBlock, writer: Key, at: int) -> None:
        """Note the arrival of a thread block's stores up to its operation `at`."""
        queue = self.pending.get(block.key[0], {}).get(writer)
        while queue and queue[0].at <= at:
            stores = queue.popleft()
            for first, count, link in self.cut(stores, 0, stores.count, "simple"):
                block.items.append(
                    Item(
                        "waitSignal",
                        count,
                        dst=shift_place(stores.place, first),
                        recv=link,
                    )
                )
            noted = (stores.at, block.key, block.at + 1)
            self.landed.setdefault((block.key[0], writer), []).append(noted)

    def cut(
        self, stores: Stores, first: int, count: int, protocol: str
    ) -> list[tuple[int, int, MscclppLink]]:
        """Create links for grains of stores to their current reader."""
        runs = []
        for low in range(first, first + count, self.batch):
            link = MscclppLink(
                stores.writer[0], stores.gpu, "data", protocol, "push"
            )
            runs.append((low, min(self.batch, first + count - low), link))
        stores.runs += runs
        return runs
