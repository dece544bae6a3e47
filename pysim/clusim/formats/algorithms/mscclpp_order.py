"""Order of flags and stores in an MSCCL++ plan.

After synchronisation (a signal, a barrier or a semaphore) the completed operations of one thread block are
visible to another. Stores of other GPUs that become visible arrive with it if no thread block of its GPU
has noted them yet. Otherwise it waits for a flag of the noting thread block.
"""

from __future__ import annotations

from collections import deque

from clusim.formats.algorithms.mscclpp_parts import (
    Item,
    Key,
    MscclppBlock,
    MscclppLink,
    Stores,
    moved,
)

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

    def flag(self, giver: Key, at: int, taker: MscclppBlock, about: object = None) -> None:
        """Let `taker` wait here for completion of operation `at` (from 1) of `giver`."""
        alone = MscclppLink(giver[0], taker.key[0], "flag")
        link = alone if about is None else self.link(giver, taker.key, about)
        self.blocks[giver].spots[at - 1].append(Item("signal", send=link))
        taker.items.append(Item("waitSignal", recv=link))

    def learn(self, block: MscclppBlock, told: dict[Key, int]) -> None:
        """Make operations visible to a thread block: note arrivals, or wait for their flag."""
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
        """Note the arrival of a thread block's stores up to its operation `at`."""
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
        """Create links for grains of stores to their current reader."""
        runs = []
        for low in range(first, first + count, self.batch):
            link = MscclppLink(stores.writer[0], stores.gpu, "data", protocol, "push")
            runs.append((low, min(self.batch, first + count - low), link))
        stores.runs += runs
        return runs
