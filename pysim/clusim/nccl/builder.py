"""Channels of a graph search under construction: the depth-first walk over GPUs and NICs.

One `Builder` is one attempt of `clusim.nccl.search`, under the conditions of a `GraphDraft`: bandwidth per channel,
kinds of paths, rule for NICs. It reserves link bandwidth while descending and releases it when backtracking.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from clusim.base.records import dataclass
from clusim.nccl.constants import Path, Pattern, path_types, since
from clusim.nccl.graph import Graph
from clusim.nccl.system import Device, Ledger, Route, System

_TREES = (Pattern.TREE, Pattern.BALANCED_TREE, Pattern.SPLIT_TREE)
HEADS = (Pattern.NVLS, Pattern.COLLNET_DIRECT)
_FIRST_STEPS = 1 << 10


@dataclass(slots=True)
class GraphDraft:
    """Channels under construction, and the conditions they are built under."""

    pattern: Pattern
    intra: float = 0.0
    inter: float = 0.0
    type_intra: Path = Path.LOC
    type_inter: Path = Path.PIX
    same: bool = True
    cross: int = 0
    least: int = 1
    most: int = 1
    collective: bool = False
    latency_us: float = 0.0
    hops: int = 0
    orders: list[list[int]] = field(default_factory=list)
    adapters: list[list[int]] = field(default_factory=list)

    def graph(self) -> Graph:
        """Return the complete channels."""
        return Graph(
            self.pattern,
            len(self.orders),
            self.intra,
            self.inter,
            self.type_intra,
            self.type_inter,
            self.same,
            self.cross,
            self.latency_us,
            tuple(tuple(order) for order in self.orders),
            tuple((first, last) for first, last in self.adapters),
            self.hops,
        )


@dataclass(slots=True)
class Time:
    """Remaining steps of an attempt; negative if no better result is possible."""

    left: int


class Builder:
    """One attempt: fills a draft with as many channels as fit."""

    def __init__(self, system: System, draft: GraphDraft, best: Graph, time: Time) -> None:
        self.system, self.draft, self.best, self.time = system, draft, best, time
        self.ledger = Ledger(system)
        self.used: list[bool] = []
        self.order: list[int] = []
        self.ends: list[int] = []
        self.unbeatable = (0, 0)
        self.to_try: dict[int, list[Device]] = {}
        self.ranked: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self.starts: dict[int, tuple[float, frozenset[int]]] = {}
        count, pattern = len(system.gpus), draft.pattern
        self.to_net = self.to_first = -1
        if system.adapters:
            self.to_net = {Pattern.RING: count - 1, Pattern.SPLIT_TREE: 1}.get(pattern, 0)
        elif pattern is Pattern.RING:
            self.to_first = count - 1
        self.turns = self.to_net, self.to_first

    # ------------------------------------------------------------------ links

    def _limits(self, a: Device, b: Device) -> tuple[float, Path]:
        inside = a.kind in ("gpu", "nvs") and b.kind in ("gpu", "nvs")
        draft = self.draft
        return (draft.intra, draft.type_intra) if inside else (draft.inter, draft.type_inter)

    def _go(self, a: Device, b: Device, share: float = 1.0) -> Route | None:
        """Reserve the bandwidth of a channel on the path from `a` to `b`, if allowed and available."""
        route = self.system.route(a, b)
        if route is None or route.type >= Path.DIS:
            return None
        rate, longest = self._limits(a, b)
        if share <= 1 and route.type > longest:
            return None
        if share <= 1 and self.draft.pattern in _TREES:
            back = self.system.route(b, a)
            if back is None or back.type > longest:
                return None
        if not self.ledger.take(route, a, rate * share):
            return None
        self.draft.hops += route.hops * (1 if share <= 1 else int(share))
        return route

    def _undo(self, a: Device, b: Device, route: Route, share: float = 1.0) -> None:
        rate, _ = self._limits(a, b)
        self.ledger.give(route, a, rate * share)
        self.draft.hops -= route.hops * (1 if share <= 1 else int(share))

    # ------------------------------------------------------------------ channels

    def channel(self) -> None:
        """Start the next channel in every allowed way."""
        saved = self.used, self.order, self.ends
        turned = self.to_net, self.to_first
        self.used, self.order, self.ends = [False] * len(self.system.gpus), [], []
        self.to_net, self.to_first = self.turns
        if self.system.adapters:
            self._from_adapters()
        elif self.draft.pattern is Pattern.NVLS:
            self._enter(None, self.system.gpus[len(self.draft.orders)], 0, None)
        else:
            self._from_gpus()
        self.used, self.order, self.ends = saved
        self.to_net, self.to_first = turned

    def _from_gpus(self) -> None:
        draft, gpus = self.draft, self.system.gpus
        if not draft.orders:
            self._enter(None, gpus[0], 0, self._in_order)
        else:
            self._enter(None, gpus[draft.orders[-1][0]], 0, self._as_before)
        if not draft.same or not draft.orders:
            for gpu in gpus:
                self._enter(None, gpu, 0, None)

    def _from_adapters(self) -> None:
        draft, system = self.draft, self.system
        rate = int(draft.inter)
        nets = self._adapters_to_try(None)
        for attempt in range(len(nets)):
            if draft.pattern in HEADS and attempt and since(system.version, "doubled channels"):
                break
            net = nets[(len(draft.orders) + attempt) % len(nets)]
            if draft.collective and not net.collective:
                continue
            if self.ledger.adapter_left[net.index] < rate:
                continue
            paired = draft.pattern is Pattern.RING and draft.cross == 2
            if paired and len(draft.orders) & 1 and net.index != draft.adapters[-1][1]:
                continue
            self.ends = [net.index, net.index]
            draft.latency_us = net.latency_us
            same_port = [other.index for other in system.adapters if other.port == net.port]
            for index in same_port:
                self.ledger.adapter_left[index] -= rate
            self._from_adapter(net, nets)
            for index in same_port:
                self.ledger.adapter_left[index] += rate

    def _from_adapter(self, net: Device, nets: list[Device]) -> None:
        draft, system = self.draft, self.system
        if draft.pattern in HEADS:
            head = system.local_gpu(net)
            taken = {order[0] for order in draft.orders}
            if len(draft.orders) < len(nets) and head is not None and head.index not in taken:
                self._enter(net, head, 0, None)
            return
        if draft.orders and draft.same:
            self._enter(net, system.gpus[draft.orders[-1][0]], 0, self._as_before)
            return
        if not draft.orders and system.switch is None:
            # The order of the bus first, as a reference that costs no time.
            whole, self.time = self.time, Time(_FIRST_STEPS)
            self._enter(net, system.gpus[0], 0, self._in_order)
            if self.time.left == -1:
                whole.left = -1
            self.time = whole
        widest, starts = self._starts(net)
        if widest < int(draft.inter):
            return
        count = len(system.gpus)
        for shift in range(count):
            index = (len(draft.orders) + shift) % count
            if index in starts:
                self._enter(net, system.gpus[index], 0, None)

    def _starts(self, net: Device) -> tuple[float, frozenset[int]]:
        """Return the widest rate from a NIC to any GPU, and the GPUs with the shortest such path."""
        if net.index not in self.starts:
            ways = [(self.system.route(net, gpu), gpu.index) for gpu in self.system.gpus]
            keys = {i: (way.rate, -way.hops) for way, i in ways if way is not None and way.hops}
            best = max(keys.values(), default=(0.0, 0))
            alike = frozenset(index for index, key in keys.items() if key == best)
            self.starts[net.index] = best[0], alike
        return self.starts[net.index]

    def _adapters_to_try(self, gpu: Device | None) -> list[Device]:
        """Return NICs: first the local NICs of the GPUs, then the others by distance."""
        key = -1 if gpu is None else gpu.index
        if key not in self.to_try:
            self.to_try[key] = self._find_adapters(gpu)
        return self.to_try[key]

    def _find_adapters(self, gpu: Device | None) -> list[Device]:
        system = self.system
        gpus = system.gpus if gpu is None else [gpu]
        chosen: dict[int, Device] = {}
        first: dict[int, Device] = {}
        open_gpus = list(gpus)
        for channel in range(len(system.adapters)):
            for one in list(open_gpus):
                net = system.local_adapter(one, channel)
                if net is None or (channel and first.get(one.index) is net):
                    open_gpus.remove(one)
                    continue
                first.setdefault(one.index, net)
                chosen.setdefault(net.index, net)
            if not open_gpus:
                break
        for kind in path_types(system.version):
            if kind > self.draft.type_inter:
                break
            for one in gpus:
                for net in system.adapters:
                    route = system.route(one, net)
                    if route is not None and route.type == kind:
                        chosen.setdefault(net.index, net)
        most = (system.settings.netdevs_policy or 0) * len(gpus) or None
        return list(chosen.values())[:most]

    # ------------------------------------------------------------------ GPUs

    def _enter(
        self,
        a: Device | None,
        gpu: Device,
        step: int,
        order: Callable[[int], int] | None,
    ) -> None:
        """Extend the walk to a GPU and continue from there."""
        route = None
        if a is not None:
            route = self._go(a, gpu)
            if route is None:
                return
        self.used[gpu.index] = True
        self._at(gpu, step, self.to_net, self.to_first, order)
        self.used[gpu.index] = False
        if a is not None and route is not None:
            self._undo(a, gpu, route)

    def _in_order(self, step: int) -> int:
        return step

    def _as_before(self, step: int) -> int:
        return self.draft.orders[-1][step]

    def _at(
        self,
        gpu: Device,
        step: int,
        to_net: int,
        to_first: int,
        order: Callable[[int], int] | None,
    ) -> None:
        if self.time.left <= 0:
            return
        self.time.left -= 1
        system, pattern = self.system, self.draft.pattern
        count = len(system.gpus)
        if step == count:
            self._complete()
            return
        del self.order[step:]
        self.order.append(gpu.index)
        if step == to_net:
            self._leave(gpu, step, to_first, order)
        elif pattern is Pattern.NVLS:
            self._through_switch(gpu)
        elif pattern is Pattern.COLLNET_DIRECT:
            self._to_all(gpu)
        elif step < count - 1:
            saved = self.to_net, self.to_first
            self.to_net, self.to_first = to_net, to_first
            if order is not None:
                following = [order(step + 1)]
            else:
                following = self._next(gpu, 0 if to_net == -1 else 1 if to_net == step + 1 else -1)
            for index in following:
                if not self.used[index]:
                    self._enter(gpu, system.gpus[index], step + 1, order)
            self.to_net, self.to_first = saved
        elif step == to_first:
            first = system.gpus[self.order[0]]
            route = self._go(gpu, first) if first is not gpu else Route((), 5000.0, Path.LOC)
            if route is not None:
                self._at(first, step + 1, to_net, -1, order)
                if first is not gpu:
                    self._undo(gpu, first, route)
        else:
            self._at(gpu, count, -1, -1, order)

    def _leave(
        self, gpu: Device, step: int, to_first: int, order: Callable[[int], int] | None
    ) -> None:
        """Extend the walk to a NIC and continue with the remaining GPUs."""
        draft, system = self.draft, self.system
        start = system.adapters[self.ends[0]]
        for net in self._adapters_to_try(gpu):
            if draft.pattern is Pattern.TREE and net is not start:
                continue
            if draft.pattern is Pattern.RING and draft.cross == 2:
                if len(draft.orders) & 1 and net.index != draft.adapters[-1][0]:
                    continue
            elif draft.cross == 0 and net.port != start.port:
                continue
            share, following = 1.0, -1
            if draft.pattern is Pattern.BALANCED_TREE:
                # Each of the first two GPUs carries half of the network traffic.
                share = 0.5
                if step == 0:
                    following = 1
                elif net.index != self.ends[1]:
                    continue
            route = self._go(gpu, net, share)
            if route is None:
                continue
            saved = self.ends
            self.ends = [self.ends[0], net.index]
            self._at(gpu, step, following, to_first, order)
            self.ends = saved
            self._undo(gpu, net, route, share)

    def _next(self, gpu: Device, sort_by_net: int) -> list[int]:
        """Return the GPUs to try next, best first."""
        system = self.system
        if system.switch is not None:
            return self._neighbours(gpu)
        net = system.adapters[self.ends[0]] if sort_by_net and self.ends else None
        key = gpu.index, -1 if net is None else net.index
        if key not in self.ranked:
            self.ranked[key] = self._rank(gpu, net)
        free = [item for item in self.ranked[key] if not self.used[item[-1]]]
        following = [index for *_, index in free]
        if sort_by_net == -1 and len({item[:2] for item in free}) <= 1:
            following.reverse()
        return following

    def _rank(self, gpu: Device, net: Device | None) -> list[tuple[int, int, int]]:
        """Return rate and length of the paths to all other GPUs, and their numbers, best first."""
        system, count = self.system, len(self.system.gpus)
        scored = []
        for distance in range(1, count):
            other = system.gpus[(gpu.index + distance) % count]
            route = system.route(gpu, other)
            if route is None or not route.hops:
                continue
            score = [0, 0, 0]
            back = system.route(net, other) if net is not None else None
            if back is not None:
                score = [-int(back.rate), -self._pcie(other), back.hops]
            scored.append((*score, -int(route.rate), route.hops, distance, other.index))
        return [(rate, hops, index) for *_, rate, hops, _, index in sorted(scored)]

    def _neighbours(self, gpu: Device) -> list[int]:
        """Return the GPUs to try next on a switch, where all are equivalent: the previous and the next."""
        count = len(self.system.gpus)
        after, before = (gpu.index + 1) % count, (gpu.index - 1) % count
        if self.draft.pattern is Pattern.RING:
            wanted = [before, after]
        elif self.draft.pattern in (Pattern.SPLIT_TREE, Pattern.BALANCED_TREE):
            wanted = [after, before]
        else:
            wanted = [after]
        return [index for index in dict.fromkeys(wanted) if self._reachable(gpu, index)]

    def _reachable(self, gpu: Device, index: int) -> bool:
        route = self.system.route(gpu, self.system.gpus[index])
        return route is not None and route.hops > 0 and not self.used[index]

    def _pcie(self, gpu: Device) -> int:
        return int(min((link.rate for link in gpu.links if link.kind == "pci"), default=0.0))

    # ------------------------------------------------------------------ heads

    def _through_switch(self, head: Device) -> None:
        """A head's channel: the switch reads from every GPU and writes to every GPU, to the head twice."""
        switch = self.system.switch
        if switch is None:
            return
        taken: list[tuple[Device, Device, Route, float]] = []
        ways = [(switch, gpu) for gpu in self.system.gpus]
        ways += [(gpu, switch) for gpu in self.system.gpus]
        for a, b in ways:
            share = 2.0 if head in (a, b) else 1.0
            route = self._go(a, b, share)
            if route is None:
                break
            taken.append((a, b, route, share))
        else:
            self._at(head, len(self.system.gpus), -1, -1, None)
        for a, b, route, share in reversed(taken):
            self._undo(a, b, route, share)

    def _to_all(self, head: Device) -> None:
        """A head's channel of CollNetDirect: to and from every other GPU."""
        taken: list[tuple[Device, Device, Route]] = []
        others = [gpu for gpu in self.system.gpus if gpu is not head]
        for a, b in [(head, gpu) for gpu in others] + [(gpu, head) for gpu in others]:
            route = self._go(a, b)
            if route is None:
                break
            taken.append((a, b, route))
        else:
            self._at(head, len(self.system.gpus), -1, -1, None)
        for a, b, route in reversed(taken):
            self._undo(a, b, route)

    # ------------------------------------------------------------------ results

    def _complete(self) -> None:
        draft = self.draft
        draft.orders.append(list(self.order))
        draft.adapters.append(list(self.ends)) if self.ends else None
        if self._better():
            self.best = draft.graph()
            if len(draft.orders) == draft.most:
                self.time.left = -1
            elif (len(draft.orders), draft.hops) == self.unbeatable:
                self.time.left = 0
        if len(draft.orders) < draft.most:
            self.channel()
        draft.orders.pop()
        if self.ends:
            draft.adapters.pop()

    def _better(self) -> bool:
        draft, best, version = self.draft, self.best, self.system.version
        count = len(draft.orders)
        if count < draft.least:
            return False
        if draft.pattern is Pattern.NVLS:
            if count > best.num_channels and count <= len(self.system.gpus):
                return True
            compares = since(version, "nvls compares bandwidth")
            return compares and count * draft.inter > best.num_channels * best.inter_GBps
        target = 1.0
        if not since(version, "no penalty for crossing NICs"):
            target = 1.0 - (best.cross_nic - draft.cross) * 0.15
        mine, theirs = count * draft.intra, best.num_channels * best.intra_GBps * target
        if mine != theirs:
            return mine > theirs
        alike = draft.pattern is best.pattern and draft.cross == best.cross_nic
        return alike and draft.hops < best.hops
