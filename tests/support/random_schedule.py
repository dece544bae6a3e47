"""Random programs on a random fabric: collectives of every style, with matching sends and receives."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from clusim.engine.abi import NONE
from support.images import Place, prim
from support.random_fabric import RandomFabric
from support.random_trees import RandomTree

__all__ = ["Program", "Programs"]

SYNC = {"flags": 1}
Row = dict[str, Any]


@dataclass
class _Part:
    """One instance of a program: where, what, with which connections."""

    place: Place
    template: int
    conns: tuple[int, ...]
    rotation: int = 0


@dataclass
class Program:
    """What the instances of one program share, so that sends and receives match."""

    parts: list[_Part] = field(default_factory=list)
    sizes: Row = field(default_factory=dict)
    even: bool = False  # every instance must cut alike


class Programs:
    """Makes random programs; `make` returns one, `start` adds a task that runs it."""

    def __init__(self, fabric: RandomFabric) -> None:
        self.fabric = fabric
        self.rng: random.Random = fabric.rng
        self.builder = fabric.builder
        rng = self.rng
        scale = rng.choice([0, 65536 * 3, 65536 * 40])
        self._costs = [
            self.builder.cost(
                fixed_ps=rng.choice([0, 1, 500, 3000]),
                after_ps=rng.choice([0, 0, 1, 700]),
                default=scale and rng.randrange(scale),
                send=rng.randrange(65536 * 40),
                recvReduceSend=rng.randrange(65536 * 60),
            )
            for _ in range(2)
        ]

    def make(self) -> Program:
        """Return a random program."""
        styles: list[Callable[[Program, list[Place], int], None]] = [
            self._ring,
            self._ring,
            self._chain,
            self._all_pairs,
            self._pair,
            self._signals,
        ]
        if self.fabric.unit_switches():
            styles += [self._aggregation, self._aggregation]
        if self.fabric.units():
            styles += [self._multimem, self._multimem, self._multicast]
        program = Program()
        ranks = self._ranks()
        self._choose_sizes(program, len(ranks))
        style = self.rng.choice(styles)
        for channel in range(self.rng.choice([1, 1, 2, 3])):
            style(program, ranks, channel)
        return program

    def start(self, program: Program, after: tuple[int, ...]) -> int:
        """Add a task that runs a program."""
        task = self.builder.task("program", after)
        cost = self.rng.choice(self._costs)
        sm = self.rng.choice([0, 1, 2])
        hosts = [NONE] if self.rng.random() < 0.6 else [NONE, *(g.ep for g in self.fabric.gpus[:2])]
        for part in program.parts:
            sizes = program.sizes | {"thread": self.rng.choice(hosts)}
            if (
                not program.even and self.rng.random() < 0.2
            ):  # moves whole pieces where its peers move slices
                sizes |= {
                    "slices": 1,
                    "slots_per_slice": sizes["slices"] * sizes["slots_per_slice"],
                }
            self.builder.instance(
                task,
                part.place,
                part.template,
                part.conns,
                rotation=part.rotation,
                cost=cost,
                sm=sm,
                **sizes,
            )
        return task

    def _ranks(self) -> list[Place]:
        gpus = list(self.fabric.gpus)
        self.rng.shuffle(gpus)
        return gpus[: self.rng.randint(2, len(gpus))]

    def _choose_sizes(self, program: Program, n: int) -> None:
        """Choose the range and its cutting; the same for every instance."""
        rng = self.rng
        sizes = sorted(packet * burst for packet, burst in self.fabric.packets)
        most = min(sizes[0] * 4, sizes[-1]) * self.fabric.bounds.packets
        lengths = [most // 2, most, rng.randint(1, most), rng.randint(1, 40), 0]
        length = rng.choices(lengths, weights=[10, 10, 10, 2, 1])[0]
        slices = rng.choice([1, 1, 2, 3])
        program.sizes = {
            "length": length,
            "chunk_bytes": max(1, rng.choice([length // n, length // (3 * n), length, 64])),
            "offset": rng.choice([0, 16, 100]),
            "stride": rng.choice([length, length // 2, length + 7]),
            "limit": rng.choice([1 << 40, length * n - length // 3]),
            "align": rng.choice([1, 4, 16]),
            "slices": slices,
            "slice_min": rng.choice([1, 16, 64]),
            "slots_per_slice": rng.choice([1, 1, 2]),
            "start_ps": rng.choice([0, 0, 1, 777, 20_000]),
        }
        if length > 12 * program.sizes["chunk_bytes"]:
            program.sizes["chunk_bytes"] = -(-length // 12)

    def _packet(self) -> Row:
        packet, burst = self.rng.choice(self.fabric.packets)
        return {"packet_bytes": packet, "burst": burst}

    def _conn(self, src: Place, dst: Place, kind: str) -> int:
        rng, nvc = self.rng, self.builder.nvc
        packet = self._packet()
        fields: Row = {
            "policy": rng.choice(["stripe", "stripe", "pinned", "adaptive"]),
            "key": rng.choice([rng.randrange(16), rng.getrandbits(32), 2**32 - rng.randint(1, 5)]),
            "vc": rng.randrange(nvc),
            "vc_response": rng.randrange(nvc),
            "slots": rng.choice([8, 8, 8, 6]),
            "tail_ps": rng.choice([0, 1, 2000]),
            "head_ps": rng.choice([0, 1, 1500]),
            "expand_120": rng.choice([120, 120, 128, 240]),
            "window_bytes": rng.choice([0, 1, 2000]) if rng.random() < 0.4 else 0,
            **packet,
        }
        if kind == "write":
            fields |= self._ways(src, dst, fields)
            if fields["policy"] == "pinned" and "path" not in fields and rng.random() < 0.5:
                keys = [rng.getrandbits(rng.choice([3, 32])) for _ in range(rng.randint(1, 5))]
                fields |= self.builder.queues(*keys) | {"split": rng.randrange(2)}
        elif kind == "read":
            fields |= self._paths_of_read(src, dst)
        if kind != "flag" and not {"path", "stage"} & set(fields) and rng.random() < 0.2:
            via = fields.get("via_first", NONE)
            via = fields.get("via_last", NONE) if via is NONE else via
            ends = (dst, src) if kind == "read" else (src, dst if via is NONE else via)
            group = self.builder.shortest(ends[0].node, ends[1].node)
            chosen = rng.sample(group, rng.randint(1, len(group)))
            fields["first_group"] = self.builder.group(*chosen)
        return self.builder.conn(src, dst, kind, **fields)

    def _ways(self, src: Place, dst: Place, fields: Row) -> Row:
        """Return how writes travel: over NICs, into a memory in between, on a path, with which rate."""
        rng, fabric, found = self.rng, self.fabric, Row()
        stage = fabric.stage(src, dst) if rng.random() < 0.2 else None
        end = dst if stage is None else stage
        vias = fabric.vias(src, end)
        if stage is None and rng.random() < 0.2:
            stops = (src, *(via for via in vias if via is not None), end)
            found["path"] = self.builder.path(*fabric.random_path(*stops))
        if stage is not None:
            found["stage"] = stage.ep
        names = ("via_first", "via_last")
        found |= {name: via for name, via in zip(names, vias, strict=True) if via is not None}
        if fabric.controls and rng.random() < 0.6:
            found["control"] = rng.choice(fabric.controls)
        return found

    def _paths_of_read(self, src: Place, dst: Place) -> Row:
        """Return the paths of a read connection: none, one or both; both if the ends are apart."""
        rng, apart = self.rng, self.fabric.apart(src, dst)
        if not apart and rng.random() < 0.8:
            return {}
        found = {"path": self.builder.path(*self.fabric.random_path(dst, src))}
        if apart or rng.random() < 0.5:
            found["path_back"] = self.builder.path(*self.fabric.random_path(src, dst))
        return found

    def _data_conn(self, src: Place, dst: Place) -> int:
        reads = 0.1 if self.fabric.apart(src, dst) else 0.33
        return self._conn(src, dst, "read" if self.rng.random() < reads else "write")

    def _cut(self, n: int) -> Row:
        return {"nchunks": n, "mode": self.rng.choice([0, 0, 1])}

    def _ring(self, program: Program, ranks: list[Place], channel: int) -> None:
        """All-reduce round a ring: reduce-scatter, then all-gather."""
        n = len(ranks)
        hops = [self._data_conn(ranks[i], ranks[(i + 1) % n]) for i in range(n)]
        turn = {"recv": 0, "send": 1, "coef": 1}
        prims = [
            prim("send", send=1, coef=1),
            prim("recvReduceSend", base=-1, step=-1, repeat=n - 2, **turn),
            prim("recvReduceCopySend", base=1, **turn),
            prim("recvCopySend", base=0, step=-1, repeat=n - 2, **turn),
            prim("recvReduceCopy", recv=0, base=2, coef=1),
        ]
        template = self.builder.template(*prims, **self._cut(n))
        for i, place in enumerate(ranks):
            program.parts.append(_Part(place, template, (hops[i - 1], hops[i]), i))

    def _chain(self, program: Program, ranks: list[Place], channel: int) -> None:
        """A pipelined broadcast along a chain."""
        hops = [self._data_conn(a, b) for a, b in pairwise(ranks)]
        n = self.rng.choice([1, 2, 5])
        cut = self._cut(n)
        walk = {"step": 1, "repeat": n}
        first = self.rng.choice(["send", "copySend"])
        root = self.builder.template(prim(first, send=0, **walk), **cut)
        middle = self.builder.template(prim("recvCopySend", recv=0, send=1, **walk), **cut)
        last = self.builder.template(
            prim("recv", recv=0, **walk), prim("copy"), prim("reduce", base=1), **cut
        )
        program.parts.append(_Part(ranks[0], root, (hops[0],)))
        for place, pair in zip(ranks[1:-1], pairwise(hops), strict=True):
            program.parts.append(_Part(place, middle, pair))
        program.parts.append(_Part(ranks[-1], last, (hops[-1],)))

    def _all_pairs(self, program: Program, ranks: list[Place], channel: int) -> None:
        """Everybody sends a chunk to everybody, one after the other or side by side."""
        n, cut = len(ranks), self._cut(len(ranks))
        conns = {
            (i, d): self._data_conn(ranks[i], ranks[(i + d) % n])
            for i in range(n)
            for d in range(1, n)
        }
        rows = []
        for d in range(1, n):
            rows.append(
                [
                    prim("send", send=2 * d - 2, base=d, coef=1),
                    prim("recvReduce", recv=2 * d - 1, base=0, coef=1),
                ]
            )
        apart = self.rng.random() < 0.5
        templates = (
            [self.builder.template(*pair, **cut) for pair in rows]
            if apart
            else [self.builder.template(*(row for pair in rows for row in pair), **cut)]
        )
        for i, place in enumerate(ranks):
            mine = [c for d in range(1, n) for c in (conns[i, d], conns[(i - d) % n, d])]
            for template in templates:
                program.parts.append(_Part(place, template, tuple(mine), i))

    def _pair(self, program: Program, ranks: list[Place], channel: int) -> None:
        """One sender, one receiver, in several loops."""
        src, dst = ranks[:2]
        conn = self._data_conn(src, dst)
        cut = self._cut(self.rng.choice([1, 3]))
        walk = {"step": 1, "repeat": cut["nchunks"]}
        there = self.builder.template(prim("copySend", send=0, **walk), **cut)
        here = self.builder.template(prim("recvCopy", recv=0, **walk), **cut)
        program.parts.append(_Part(src, there, (conn,)))
        program.parts.append(_Part(dst, here, (conn,)))

    def _signals(self, program: Program, ranks: list[Place], channel: int) -> None:
        """A barrier round a ring by flags, sync or with bytes' worth of work."""
        n = len(ranks)
        hops = [self._conn(ranks[i], ranks[(i + 1) % n], "flag") for i in range(n)]
        flags = SYNC if self.rng.random() < 0.7 else {}
        prims = [
            prim("signal", send=1, **flags),
            prim("waitSignal", recv=0, **flags),
            prim("copy"),
        ]
        template = self.builder.template(*prims, **self._cut(self.rng.choice([1, 2])))
        for i, place in enumerate(ranks):
            program.parts.append(_Part(place, template, (hops[i - 1], hops[i]), i))

    def _multimem(self, program: Program, ranks: list[Place], channel: int) -> None:
        """All-reduce in the switch, between two barriers of flags."""
        switch, members = self.rng.choice(self.fabric.units())
        members = self.rng.sample(members, self.rng.randint(2, len(members)))
        n = len(members)
        mgroup = self.builder.mgroup(*members)
        flags = [self._conn(members[i], members[(i + 1) % n], "flag") for i in range(n)]
        steps = self.rng.choice([["reduceLoadStore"], ["reduceLoad", "multicastStore"]])
        barrier = [prim("signal", send=1, **SYNC), prim("waitSignal", recv=0, **SYNC)]
        work = [prim(name, send=2, coef=1) for name in steps]
        template = self.builder.template(*barrier, *work, *barrier, **self._cut(n))
        for i, place in enumerate(members):
            multimem = self._multimem_conn(place, [switch], mgroup)
            conns = (flags[i - 1], flags[i], multimem)
            program.parts.append(_Part(place, template, conns, i))

    def _multicast(self, program: Program, ranks: list[Place], channel: int) -> None:
        """Everybody stores to everybody, over every switch with a unit that all are attached to."""
        common, switches = ranks, list(self.fabric.switches)
        common = [place for place in ranks if not self.fabric.apart(place, ranks[0])]
        if not self.fabric.bounds.far_multicast:
            common = self.rng.choice(self.fabric.units())[1]
            shared = [units for units in self.fabric.units() if set(common) <= set(units[1])]
            switches = [switch for switch, _ in shared]
        mgroup = self.builder.mgroup(*common)
        template = self.builder.template(
            prim("multicastStore", send=0, coef=1), prim("copy"), **self._cut(len(common))
        )
        for i, place in enumerate(common):
            first = [s for s in switches if place in self.fabric.attached.get(s.node, [])]
            multimem = self._multimem_conn(place, first, mgroup)
            program.parts.append(_Part(place, template, (multimem,), i))

    def _aggregation(self, program: Program, ranks: list[Place], channel: int) -> None:
        """All-reduce over a tree of reduction units, perhaps behind a barrier of flags."""
        program.even = True
        rng, n = self.rng, len(ranks)
        open_packets = rng.choice([1, 2, 5])
        windowed = rng.random() < 0.6
        slots = open_packets + rng.choice([0, 0, 1, 7])
        tree = RandomTree(self.fabric, ranks, slots)
        packet = self._packet()
        size = packet["packet_bytes"] * packet["burst"]
        fields: Row = {
            "vc": rng.randrange(self.builder.nvc),
            "vc_response": rng.randrange(self.builder.nvc),
            "expand_120": rng.choice([120, 128]),
            **packet,
        }
        flags = [self._conn(ranks[i], ranks[(i + 1) % n], "flag") for i in range(n)]
        barrier = [prim("signal", send=1, **SYNC), prim("waitSignal", recv=0, **SYNC)]
        pieces = rng.choice([1, 2, 4])
        work = [prim("aggregate", send=2, step=1, repeat=pieces)]
        before = barrier if rng.random() < 0.8 else []
        template = self.builder.template(*before, *work, prim("copy"), **self._cut(pieces))
        for i, place in enumerate(ranks):
            window = open_packets * size + rng.choice([0, size - 1]) if windowed else 0
            policy = rng.choice(["stripe", "pinned", "adaptive"])
            vertex = tree.members[place]
            conn = self.builder.conn(
                place,
                place,
                "aggregation",
                vertex=vertex,
                policy=policy,
                window_bytes=window,
                key=rng.randrange(8),
                **fields,
            )
            program.parts.append(_Part(place, template, (flags[i - 1], flags[i], conn), i))

    def _multimem_conn(self, place: Place, switches: list[Place], mgroup: int) -> int:
        rng, rows = self.rng, self.builder.rows
        nodes = [switch.node for switch in switches]
        up = [
            i
            for i, wire in enumerate(rows["wires"])
            if wire["src"] == place.node and wire["dst"] in nodes
        ]
        return self.builder.conn(
            place,
            self.fabric.gpus[0],
            "multimem",
            policy=rng.choice(["stripe", "pinned", "adaptive"]),
            key=rng.randrange(16),
            vc=rng.randrange(self.builder.nvc),
            vc_response=rng.randrange(self.builder.nvc),
            mgroup=mgroup,
            first_group=self.builder.group(*up),
            path=NONE,
            expand_120=rng.choice([120, 128]),
            window_bytes=rng.choice([0, 0, 1, 700]),
            **self._packet(),
        )
