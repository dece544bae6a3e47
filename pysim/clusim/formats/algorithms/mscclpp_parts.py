"""Intermediate form of an MSCCL++ plan: thread blocks as items that depend on each other.

Order of flags and stores in an MSCCL++ plan.

A thread block that is told of something (by a signal, a barrier or a semaphore) knows what the teller knew. Stores of
other GPUs that it then knows of arrive with it, if nobody of its GPU has noted them yet; if somebody has, it waits for
a flag from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Union

from clusim.formats.algorithms.mscclpp_json import MscclppOp
from clusim.schedule.ir import Buffer

Key = tuple[int, int]
"""A GPU and a thread block of it; programs that only bring data to or from others have numbers from `HELPER` on."""

Place = tuple[Buffer, int]
"""A buffer and a grain of it."""


@dataclass(slots=True, eq=False)
class MscclppLink:
    """A connection: between GPUs, or a flag between thread blocks of one; `group` are the members of a multicast."""

    src: int
    dst: int
    kind: str = "data"
    protocol: str = "simple"
    moved: str = ""
    group: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Stores:
    """Grains that a thread block stores at another GPU, and the links on which parts of them come to who reads them.

    Attributes
    ----------
    at : int
        Operation of the writer, counted from 1.
    runs : list
        First grain (counted in these), number of grains, link.
    """

    writer: Key
    at: int
    gpu: int
    place: Place
    count: int
    runs: list[tuple[int, int, MscclppLink]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class MscclppPacket:
    """A grain of packets in a scratch buffer: stored by another GPU, or here by operation `at` of `block`."""

    stores: Stores | None
    first: int = 0
    block: Key = (0, 0)
    at: int = 0


@dataclass(slots=True, eq=False)
class Item:
    """A primitive: `count` grains from `src` to `dst`; `recv` is a link, `send` one or stores from grain `first` on."""

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
    """An operation to be done: in a pipeline, iteration `turn`, which works on `grains` of its chunks."""

    op: MscclppOp
    turn: int = 0
    grains: int = 0


@dataclass(slots=True, eq=False)
class MscclppBlock:
    """A thread block under way, or a helper.

    Attributes
    ----------
    known : dict
        Of every thread block, the last operation that is known to be done.
    spots : list
        Per operation, a list in `items` behind it, for flags that are needed later.
    paid, packets : int
        Operations on data, each of which has one fixed cost, and grains in packets, which have one each.
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
    """Return the place some grains further on."""
    return place[0], place[1] + grains


def common(
    count: int, cuts: list[list[tuple[int, int, MscclppLink | None]]]
) -> Iterable[tuple[int, int, list[MscclppLink | None]]]:
    """Return ranges in which each operand comes from one place: first grain, number, and the operands' links."""
    if not cuts:
        yield 0, count, []
        return
    bounds = sorted({first for runs in cuts for first, _, _ in runs} | {count})
    for low, high in pairwise(bounds):
        links = [
            next(link for first, size, link in runs if first <= low < first + size) for runs in cuts
        ]
        yield low, high - low, links


Snapshot = tuple[Key, int, dict[Key, int]]
"""A thread block, how many operations it had done, and what it knew."""


class Knowledge:
    """Thread blocks, what they know, and stores under way; a link takes at most `batch` grains."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.blocks: dict[Key, MscclppBlock] = {}
        self.pending: dict[int, dict[Key, deque[Stores]]] = {}
        self.landed: dict[tuple[int, Key], list[tuple[int, Key, int]]] = {}
        self.flags: dict[tuple[Key, Key, object], tuple[int, MscclppLink]] = {}

    def shot(self, block: MscclppBlock) -> Snapshot:
        """Return what a thread block knows when its present operation is done."""
        return block.key, block.at + 1, dict(block.known) | {block.key: block.at + 1}

    def link(self, giver: Key, taker: Key, about: object) -> MscclppLink:
        """Return the link of the next flag about something, of which there are many in order; 32 share a link."""
        count, link = self.flags.get((giver, taker, about), (0, None))
        if link is None or count % 32 == 0:
            link = MscclppLink(giver[0], taker[0], "flag")
        self.flags[giver, taker, about] = count + 1, link
        return link

    def flag(self, giver: Key, at: int, taker: MscclppBlock, about: object = None) -> None:
        """Let `taker` wait here until `giver` has done its operation `at` (from 1)."""
        alone = MscclppLink(giver[0], taker.key[0], "flag")
        link = alone if about is None else self.link(giver, taker.key, about)
        self.blocks[giver].spots[at - 1].append(Item("signal", send=link))
        taker.items.append(Item("waitSignal", recv=link))

    def learn(self, block: MscclppBlock, told: dict[Key, int]) -> None:
        """Let a thread block know what another one knew: note what has arrived, or wait for who has noted it."""
        news = {key: at for key, at in told.items() if at > block.known.get(key, 0)}
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
        """Note the arrival of what a thread block had stored here up to its operation `at`."""
        queue = self.pending.get(block.key[0], {}).get(writer)
        while queue and queue[0].at <= at:
            stores = queue.popleft()
            for first, count, link in self.cut(stores, 0, stores.count, "simple"):
                block.items.append(
                    Item("waitSignal", count, dst=moved(stores.place, first), recv=link)
                )
            noted = (stores.at, block.key, block.at + 1)
            self.landed.setdefault((block.key[0], writer), []).append(noted)

    def cut(
        self, stores: Stores, first: int, count: int, protocol: str
    ) -> list[tuple[int, int, MscclppLink]]:
        """Give grains of stores links of their own to who reads them now."""
        runs = []
        for low in range(first, first + count, self.batch):
            link = MscclppLink(stores.writer[0], stores.gpu, "data", protocol, "push")
            runs.append((low, min(self.batch, first + count - low), link))
        stores.runs += runs
        return runs
