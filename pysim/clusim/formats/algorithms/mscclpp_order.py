"""Order of flags and stores in an MSCCL++ plan.

A thread block that is told of something (by a signal, a barrier or a semaphore) knows what the teller knew. Stores of
other GPUs that it then knows of arrive with it, if nobody of its GPU has noted them yet; if somebody has, it waits for
a flag from there.
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
