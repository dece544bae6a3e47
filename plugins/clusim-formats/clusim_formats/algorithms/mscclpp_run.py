"""Traversal of an MSCCL++ plan in an order that hardware may use, which writes primitives.

Stores to another GPU use a connection with the thread block that reads them (packets), or to which they
become visible first (`signal` and `wait`, through barriers and semaphores), as receiver, which only
notes their arrival. Other thread blocks that depend on them receive a flag. Loads from another GPU are
pulled by the reader; a helper without SM at that GPU signals that the data are ready, after all
operations visible to the reader are complete.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from clusim.base.errors import DeadlockError
from clusim.formats.algorithms.layout import Key, Place
from clusim_formats.algorithms.mscclpp_json import OPS, MscclppOp, MscclppPlan, Ref
from clusim_formats.algorithms.mscclpp_operands import MscclppOperands
from clusim_formats.algorithms.mscclpp_parts import (
    Item,
    MscclppBlock,
    MscclppLink,
    MscclppPacket,
    MscclppTask,
    Snapshot,
    Stores,
    common,
    shift_place,
)

HELPER = 100_000
"""First number of programs that are not thread blocks."""

_COLLECTOR = 200_000


class _Operands(NamedTuple):
    """Operands of a reduction: a span, its place, and local operands and links."""

    span: tuple[int, int]
    place: Place
    here: list[Place]
    links: list[MscclppLink]


class MscclppRun(MscclppOperands):
    """Traversal of a plan; a chunk has `grain` grains, and a link at most `batch`."""

    def __init__(
        self,
        plan: MscclppPlan,
        grain: int,
        batch: int,
        turns: dict[tuple[int, int], int],
    ) -> None:
        super().__init__(plan, grain, batch, turns)
        self.packets: dict[tuple[int, int], deque[MscclppPacket]] = {}
        self.signals: dict[tuple[str, int, int, int], deque[Snapshot]] = {}
        self.tokens: dict[tuple[int, int], deque[Snapshot | None]] = {
            (gpu, number): deque([None] * min(first, 65_536))
            for gpu, content in enumerate(plan.gpus)
            for number, first in enumerate(content.semaphores)
        }
        self.barriers: dict[tuple[int, int], list[Key]] = {}
        self.passed: set[Key] = set()
        self.groups: dict[tuple[Key, tuple[int, ...]], MscclppLink] = {}
        self.often = self._read_often()

    def run(self) -> MscclppRun:
        """Traverse all operations; raise `DeadlockError` with the first that never completes."""
        going = True
        while going:
            going = False
            for block in list(self.blocks.values()):
                while block.at < len(block.tasks) and self._ready(block):
                    self._do(block, block.tasks[block.at])
                    block.close()
                    going = True
        for key, block in self.blocks.items():
            if block.at < len(block.tasks):
                op = block.tasks[block.at].op
                raise DeadlockError(
                    f"{self.plan.where}:{op.line}: the plan deadlocks: gpu {key[0]} thread block {key[1]} waits"
                    f" for ever in {op.name} for {self._missing(block, op)}"
                )
        self._collect()
        return self

    def _missing(self, block: MscclppBlock, op: MscclppOp) -> str:
        if op.name in ("wait", "rlxwait"):
            for kind, peer, number in op.channels:
                if not self.signals.get((kind, peer, block.key[0], number)):
                    return f"a signal from gpu {peer} ({kind} channel {number} between the two)"
        if op.name == "sem_acquire":
            return f"semaphore {op.semaphores[0]}"
        if op.name == "barrier":
            return f"thread blocks at barrier {op.barrier[0]}"
        return "packets that no GPU stores"

    def _ready(self, block: MscclppBlock) -> bool:
        """Return True if the next operation of a thread block can be executed."""
        task, gpu = block.tasks[block.at], block.key[0]
        op = task.op
        if op.name in ("wait", "rlxwait"):
            requested = Counter(
                (kind, peer, gpu, number) for kind, peer, number in op.channels
            )
            return all(
                len(self.signals.get(key, ())) >= count
                for key, count in requested.items()
            )
        if op.name == "sem_acquire":
            asked_of = Counter((gpu, number) for number in op.semaphores)
            return all(
                len(self.tokens[key]) >= count for key, count in asked_of.items()
            )
        if op.name == "barrier":
            return self._meet(block, op)
        for ref in op.sources:
            if ref.kind == "p":
                low, count = self._span(task, ref)
                if any(not self.packets.get((gpu, low + at)) for at in range(count)):
                    return False
        return True

    def _meet(self, block: MscclppBlock, op: MscclppOp) -> bool:
        """Arrive at a barrier; return True if the thread block may pass.

        The last arrival synchronises all members, and each may then pass once.
        """
        if block.key in self.passed:
            self.passed.remove(block.key)
            return True
        waiting = self.barriers.setdefault((block.key[0], op.barrier[0]), [])
        if block.key not in waiting:
            waiting.append(block.key)
        if len(waiting) < op.barrier[1]:
            return False
        members = [self.blocks[key] for key in waiting]
        self._tie(members, op)
        waiting.clear()
        self.passed.update(member.key for member in members if member is not block)
        return True

    def _tie(self, members: list[MscclppBlock], op: MscclppOp) -> None:
        """Synchronise the thread blocks at a barrier: each signals all others, then waits for all."""
        shots = [self.shot(member) for member in members]
        waits: list[list[Item]] = []
        for taker in members:
            peers = [member for member in members if member is not taker]
            about = ("barrier", op.barrier[0])
            links = [self.link(giver.key, taker.key, about) for giver in peers]
            for giver, link in zip(peers, links, strict=True):
                giver.items.append(Item("signal", send=link))
            waits.append([Item("waitSignal", recv=link) for link in links])
        for taker, items in zip(members, waits, strict=True):
            taker.items += items
        for taker in members:
            for shot in shots:
                if shot[0] != taker.key:
                    self.learn(taker, shot[2])

    # Operations

    def _do(self, block: MscclppBlock, task: MscclppTask) -> None:
        op = task.op
        shape = OPS[op.name].shape
        if shape == "sync":
            self._sync(block, op)
            return
        if any(ref.kind in "pP" for ref in (*op.sources, *op.targets)):
            block.packets += self._span(task, op.sources[0])[1]
        else:
            block.paid += 1
        if shape == "put":
            self._put(block, task)
        elif shape == "get":
            self._get(block, task)
        elif shape == "switch":
            self._switch(block, task)
        elif shape == "forward":
            self._forward(block, task)
        else:
            self._combine(block, task)

    def _sync(self, block: MscclppBlock, op: MscclppOp) -> None:
        gpu = block.key[0]
        if op.name in ("signal", "rlxsignal"):
            self._signal(block, op)
        elif op.name in ("wait", "rlxwait"):
            for kind, peer, number in op.channels:
                key = (kind, peer, gpu, number)
                self._take(block, self.signals[key].popleft(), key)
        elif op.name == "sem_release":
            for number in op.semaphores:
                self.tokens[gpu, number].append(self.shot(block))
        elif op.name == "sem_acquire":
            for number in op.semaphores:
                token = self.tokens[gpu, number].popleft()
                if token is not None:
                    self._take(block, token, ("semaphore", number))

    def _signal(self, block: MscclppBlock, op: MscclppOp) -> None:
        for kind, peer, number in op.channels:
            key = (kind, block.key[0], peer, number)
            self.signals.setdefault(key, deque()).append(self.shot(block))

    def _take(self, block: MscclppBlock, shot: Snapshot, about: object) -> None:
        giver, at, signals = shot
        if giver != block.key:
            self.flag(giver, at, block, about)
        self.learn(block, signals)

    def _store(self, block: MscclppBlock, task: MscclppTask, ref: Ref) -> Stores:
        """Return new stores to a remote operand."""
        place, count = self._target(task, ref)
        stores = Stores(block.key, block.at + 1, ref.gpu, place, count)
        if ref.kind == "P":
            for at in range(count):
                packet = MscclppPacket(stores, at)
                self.packets.setdefault((ref.gpu, place[1] + at), deque()).append(
                    packet
                )
        else:
            queue = self.pending.setdefault(ref.gpu, {}).setdefault(
                block.key, deque()
            )
            queue.append(stores)
        return stores

    def _put(self, block: MscclppBlock, task: MscclppTask) -> None:
        for at, ref in enumerate(task.op.targets):
            source = task.op.sources[min(at, len(task.op.sources) - 1)]
            first, count = self._span(task, source)
            if count:
                stores = self._store(block, task, ref)
                src = self._place(source, first)
                block.items.append(Item("send", count, src=src, send=stores))
        if task.op.channels:
            self._signal(block, task.op)

    def _add_puller(
        self, block: MscclppBlock, task: MscclppTask, ref: Ref
    ) -> list[tuple[int, int, MscclppLink]]:
        """Add a helper at another GPU that waits for ready data; return the links to pull them."""
        first, count = self._span(task, ref)
        place = self._place(ref, first)
        key = (ref.gpu, HELPER + 1000 * block.key[0] + block.key[1])
        helper = self.blocks.setdefault(key, MscclppBlock(key, []))
        for giver, at in list(block.known.items()):
            if (
                giver[0] == ref.gpu
                and giver[1] < HELPER
                and at > helper.known.get(giver, 0)
            ):
                self.flag(giver, at, helper)
        self.learn(helper, block.known)
        runs = []
        for low in range(0, count, self.batch):
            link = MscclppLink(ref.gpu, block.key[0], "data", "simple", "pull")
            size = min(self.batch, count - low)
            helper.items.append(
                Item("send", size, src=shift_place(place, low), send=link)
            )
            runs.append((low, size, link))
        helper.close()
        return runs

    def _get(self, block: MscclppBlock, task: MscclppTask) -> None:
        for at, ref in enumerate(task.op.targets):
            source = task.op.sources[min(at, len(task.op.sources) - 1)]
            place, _ = self._target(task, ref)
            for first, count, link in self._add_puller(block, task, source):
                block.items.append(
                    Item("recv", count, dst=shift_place(place, first), recv=link)
                )

    def _switch(self, block: MscclppBlock, task: MscclppTask) -> None:
        source, target = task.op.sources[0], task.op.targets[0]
        place, count = self._target(task, target)
        link = self.groups.setdefault(
            (block.key, target.group),
            MscclppLink(block.key[0], block.key[0], "multimem", group=target.group),
        )
        if count:
            src = self._place(source, self._span(task, source)[0])
            op = "reduceLoadStore" if source.kind == "m" else "multicastStore"
            block.items.append(Item(op, count, src=src, dst=place, send=link))

    def _split_packets(
        self, block: MscclppBlock, task: MscclppTask, ref: Ref
    ) -> list[tuple[int, int, MscclppLink | None]]:
        """Return the packets of an operand, split by source.

        Each has first grain, number of grains, and a link if another GPU stored them.
        """
        gpu = block.key[0]
        low, count = self._span(task, ref)
        runs: list[tuple[int, int, MscclppLink | None]] = []
        at = 0
        while at < count:
            packet = self.packets[gpu, low + at][0]
            size = self._alike(gpu, low + at, count - at, packet)
            if packet.stores is None:
                self._see(block, packet)
                runs.append((at, size, None))
            else:
                part = [
                    (at + first - packet.first, number, link)
                    for first, number, link in self.cut(
                        packet.stores, packet.first, size, "ll"
                    )
                ]
                often = (gpu, low + at) in self.often
                runs += self._keep(block, low, part) if often else part
            if (gpu, low + at) not in self.often:
                for grain in range(low + at, low + at + size):
                    self.packets[gpu, grain].popleft()
            at += size
        return runs

    def _see(self, block: MscclppBlock, packet: MscclppPacket) -> None:
        """Wait for packets of another thread block of the GPU, unless they are visible already."""
        if (
            packet.block != block.key
            and block.known.get(packet.block, 0) < packet.at
        ):
            self.flag(packet.block, packet.at, block)

    def _keep(
        self, block: MscclppBlock, low: int, part: list[tuple[int, int, MscclppLink]]
    ) -> list[tuple[int, int, MscclppLink | None]]:
        """Copy packets with further readers into the scratch buffer; they are local afterwards."""
        for first, count, link in part:
            place: Place = ("scratch", low + first)
            block.items.append(Item("recv", count, dst=place, recv=link))
            for grain in range(low + first, low + first + count):
                packet = MscclppPacket(None, 0, block.key, block.at + 1)
                self.packets[block.key[0], grain][0] = packet
        return [(first, count, None) for first, count, _ in part]

    def _alike(self, gpu: int, low: int, limit: int, packet: MscclppPacket) -> int:
        """Return the number of consecutive grains from `low` on that one operation has stored."""
        count = 1
        often = (gpu, low) in self.often
        while count < limit:
            other = self.packets[gpu, low + count][0]
            same = other.stores is packet.stores and (other.block, other.at) == (
                packet.block,
                packet.at,
            )
            step = packet.stores is None or other.first == packet.first + count
            if not same or not step or ((gpu, low + count) in self.often) != often:
                break
            count += 1
        return count

    def _forward(self, block: MscclppBlock, task: MscclppTask) -> None:
        """Read packets and store them at other GPUs."""
        source = task.op.sources[0]
        low, _ = self._span(task, source)
        stores = [self._store(block, task, ref) for ref in task.op.targets]
        for first, count, link in self._split_packets(block, task, source):
            place: Place = ("scratch", low + first)
            remaining = list(stores)
            if link is not None:
                out = remaining.pop(0)
                block.items.append(
                    Item("recvCopySend", count, None, place, link, out, first)
                )
            for out in remaining:
                block.items.append(Item("send", count, place, send=out, first=first))

    def _combine(self, block: MscclppBlock, task: MscclppTask) -> None:
        """Reduce all sources into the first target, and store the result at the other targets."""
        op = task.op
        place, count = self._target(task, op.targets[0])
        if not count:
            return
        local: list[Place] = []
        cuts: list[list[tuple[int, int, MscclppLink | None]]] = []
        packets: list[int] = []
        for ref in op.sources:
            if ref.kind == "l":
                local.append(self._place(ref, self._span(task, ref)[0]))
                continue
            packets.append(self._span(task, ref)[0])
            pulled = ref.kind == "r"
            cuts.append(
                list(self._add_puller(block, task, ref))
                if pulled
                else self._split_packets(block, task, ref)
            )
        copies = [ref for ref in op.targets[1:] if ref.kind == "p"]
        stores = [
            self._store(block, task, ref)
            for ref in op.targets[1:]
            if ref.kind in "rP"
        ]
        for first, size, wires in common(count, cuts):
            places = [shift_place(one, first) for one in local]
            places += [
                ("scratch", base + first)
                for base, wire in zip(packets, wires, strict=True)
                if wire is None
            ]
            links = [wire for wire in wires if wire is not None]
            operands = _Operands(
                (first, size), shift_place(place, first), places, links
            )
            self._join(block, operands, stores)
        first_target = op.targets[0]
        if first_target.kind == "p":
            self._write_packets(block, place[1], count)
        for ref in copies:
            low, _ = self._span(task, ref)
            block.items.append(Item("copy", count, place, ("scratch", low)))
            self._write_packets(block, low, count)

    def _write_packets(self, block: MscclppBlock, low: int, count: int) -> None:
        for grain in range(low, low + count):
            packet = MscclppPacket(None, 0, block.key, block.at + 1)
            self.packets.setdefault((block.key[0], grain), deque()).append(packet)

    def _join(
        self, block: MscclppBlock, operands: _Operands, stores: list[Stores]
    ) -> None:
        """Write primitives that reduce local and arriving operands and store the result."""
        (first, size), place, local, links = operands
        todo, outs = list(local), list(stores)
        steps: list[Item] = []
        if place in todo:
            todo.remove(place)
        elif todo and links:
            steps.append(
                Item("recvReduceCopy", size, todo.pop(0), place, links.pop(0))
            )
        elif todo:
            steps.append(Item("copy", size, todo.pop(0), place))
        elif links:
            steps.append(Item("recv", size, None, place, links.pop(0)))
        steps += [Item("reduce", size, one, place) for one in todo]
        steps += [Item("recvReduceCopy", size, place, place, link) for link in links]
        if outs and steps and steps[-1].op in _SENDING:
            steps[-1].op = _SENDING[steps[-1].op]
            steps[-1].send, steps[-1].first = outs.pop(0), first
        block.items += steps
        for out in outs:
            block.items.append(Item("send", size, place, send=out, first=first))

    def _collect(self) -> None:
        """Add a helper that receives all stores without a reader, so that they complete."""
        todo = [
            (stores, first, "simple")
            for by_writer in self.pending.values()
            for queue in by_writer.values()
            for stores in queue
            for first in range(stores.count)
        ]
        for packets in self.packets.values():
            todo += [
                (one.stores, one.first, "ll")
                for one in packets
                if one.stores is not None
            ]
        for stores, first, protocol in todo:
            key = (stores.gpu, _COLLECTOR)
            helper = self.blocks.setdefault(key, MscclppBlock(key, []))
            for low, size, link in self.cut(stores, first, 1, protocol):
                helper.items.append(
                    Item(
                        "waitSignal",
                        size,
                        dst=shift_place(stores.place, low),
                        recv=link,
                    )
                )


_SENDING = {
    "recvReduceCopy": "recvReduceCopySend",
    "recv": "recvCopySend",
    "copy": "copySend",
}
"""Primitives, and the primitives that also send the stored data."""
