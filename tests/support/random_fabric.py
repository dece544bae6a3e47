"""Random fabrics for comparing the engines: all shapes, all parameters, small."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from support.images import ImageBuilder, Place

__all__ = ["Bounds", "RandomFabric"]

RATES = [(33, 1280), (1, 40), (9, 200), (1, 20), (7, 313), (50, 1003), (3, 64), (12345, 654321)]
PACKETS = [(16, 1), (64, 1), (64, 3), (128, 1), (128, 2), (200, 4), (256, 1)]


@dataclass(frozen=True)
class Bounds:
    """How big and how wild an image may be; smaller numbers shrink towards a plain case."""

    ranks: int = 5
    parallel: int = 3
    programs: int = 3
    sources: int = 2
    kernels: int = 4
    faults: int = 5
    packets: int = 12
    wild: bool = True
    far_multicast: bool = True  # members behind a second switch


@dataclass
class RandomFabric:
    """A random fabric in a builder, and what schedules need to know about it.

    Attributes
    ----------
    gpus, switches : list of Place
        The nodes.
    attached : dict
        Per switch node: the endpoints with a duplex link to it.
    packets : list of (packet_bytes, burst)
        Sizes that every buffer can hold.
    """

    rng: random.Random
    bounds: Bounds
    builder: ImageBuilder = field(init=False)
    gpus: list[Place] = field(default_factory=list)
    switches: list[Place] = field(default_factory=list)
    attached: dict[int, list[Place]] = field(default_factory=dict)
    packets: list[tuple[int, int]] = field(init=False)
    shape: str = ""

    def __post_init__(self) -> None:
        rng = self.rng
        self.builder = ImageBuilder(nvc=rng.choice([1, 1, 2, 3, 3]), seed=rng.getrandbits(64))
        self.packets = rng.sample(PACKETS, rng.randint(1, 2))
        for _ in range(rng.randint(1, 2)):
            self._add_format()
        self._rates = rng.sample(RATES, rng.randint(1, 3))
        self._tight = rng.random() < 0.5
        self._dims = self.builder.nvc > 1 and rng.random() < 0.6
        self._memory_cost16 = rng.choice([1, 700, 33333, 65536, 300000])
        shapes = [self._direct, self._ring, self._star, self._planes, self._tree, self._switch_ring]
        make = rng.choice(shapes)
        self.shape = make.__name__.strip("_")
        make(rng.randint(2, max(2, self.bounds.ranks)))

    def _add_format(self) -> None:
        rng = self.rng
        flit = rng.choice([1, 1, 8, 16, 32])
        header = [rng.choice([1, 8, 16, 16, 20, 32]) for _ in range(8)]
        control = [rng.choice([0, 0, 100, 2048, 4096]) for _ in range(8)]
        service = [rng.choice([1024, 1024, 1024, 900, 1100, 2048]) for _ in range(8)]
        if not self.bounds.wild:
            header, control, service = [16] * 8, [0] * 8, [1024] * 8
        self.builder.format(flit, header, control, service)

    def _endpoint(self, relay: bool = False) -> Place:
        rng = self.rng
        place = self.builder.endpoint(
            latency_ps=rng.choice([1, 77, 500]),
            relay=relay,
            write_latency_ps=rng.choice([1, 50, 700]),
            read_latency_ps=rng.choice([1, 90, 1500]),
            response_latency_ps=rng.choice([1, 60, 400]),
            mem_quantum_ps=rng.choice([1777, 5000, 20011]),
            sms=rng.choice([1, 4, 16]),
            cta_slots=rng.choice([2, 8, 16, 64]),
            slow_1024=rng.choice([1024, 1024, 1500, 700]),
            mem_cost16=self._memory_cost16,
            deliver_256=rng.choice([0, 128, 256]),
            read_256=rng.choice([0, 256, 300]),
            inject_256=rng.choice([0, 64, 256]),
        )
        self.gpus.append(place)
        return place

    def _switch(self) -> Place:
        rng = self.rng
        unit = None
        if rng.random() < 0.7:
            largest = max(p * k for p, k in self.packets)
            unit = {
                "latency_ps": rng.choice([1, 300]),
                "capacity_bytes": rng.choice([1, largest, 3 * largest, 1 << 20]),
                "cost16": rng.choice([0, 65536, 500000]),
            }
        place = self.builder.switch(
            latency_ps=rng.choice([1, 100, 333]), store_and_forward=rng.random() < 0.2, unit=unit
        )
        self.switches.append(place)
        return place

    def _largest_packet(self) -> int:
        """Return the most wire bytes any packet can have on any wire."""
        flits = [
            row["flit_bytes"] + max(row["header_bytes"]) for row in self.builder.rows["formats"]
        ]
        most: int = max(flits)
        return max(k * (p + most) for p, k in self.packets)

    def link(self, a: Place, b: Place, count: int, dim: int = 0) -> int:
        """Add parallel links with one set of parameters; return the first wire."""
        rng = self.rng
        rate, fields = rng.choice(self._rates), self._wire_fields()
        fields["dim"] = dim if self._dims else 0
        first = len(self.builder.rows.get("wires", []))
        for _ in range(count):
            if self.bounds.wild and rng.random() < 0.15:
                rate = rng.choice(self._rates)
            there = self.builder.link(a, b, rate, **fields)
            if self.bounds.wild and rng.random() < 0.1:
                other = rng.randrange(len(self.builder.rows["formats"]))
                self.builder.rows["wires"][there + 1]["format"] = other
        if a.endpoint is not None and b.endpoint is None:
            self.attached.setdefault(b.node, []).append(a)
        return first

    def _wire_fields(self) -> dict[str, int]:
        rng, largest = self.rng, self._largest_packet()
        fields = {
            "format": rng.randrange(len(self.builder.rows["formats"])),
            "latency_ps": rng.choice([1, 400, 1000, 5003]),
            "buffer_bytes": largest + rng.choice([0, 1, largest] if self._tight else [9 * largest]),
        }
        if self.bounds.wild and rng.random() < 0.25:
            fields["error_threshold"] = rng.choice([1 << 28, 1 << 30, 3 << 30])
            fields["replay_ps"] = rng.choice([1, 2500])
        return fields

    def _datelines(self, first: int, always: bool = False) -> None:
        """Make datelines of the wires from `first` on, by direction."""
        for direction in range(2):
            if self._dims and (always or self.rng.random() < 0.3):
                for wire in self.builder.rows["wires"][first + direction :: 2]:
                    wire["dateline"] = 1

    def _count(self) -> int:
        return self.rng.randint(1, max(1, self.bounds.parallel))

    def _direct(self, n: int) -> None:
        """Every pair has links, with different counts."""
        gpus = [self._endpoint() for _ in range(min(n, 4))]
        for i, a in enumerate(gpus):
            for b in gpus[i + 1 :]:
                self._datelines(self.link(a, b, self._count(), dim=self.rng.randrange(2)))

    def _ring(self, n: int) -> None:
        """A ring of relaying endpoints, or a cube-mesh-like graph with chords."""
        gpus = [self._endpoint(relay=True) for _ in range(max(3, n))]
        count = self._count()
        for i, a in enumerate(gpus):
            first = self.link(a, gpus[(i + 1) % len(gpus)], count)
            self._datelines(first, always=i == len(gpus) - 1)
        if len(gpus) > 3 and self.rng.random() < 0.4:
            self.link(gpus[0], gpus[2], 1, dim=1)

    def _star(self, n: int) -> None:
        """One switch."""
        switch = self._switch()
        for _ in range(n):
            self.link(self._endpoint(), switch, self._count())

    def _planes(self, n: int) -> None:
        """Every endpoint has links to each of several switches."""
        gpus = [self._endpoint() for _ in range(n)]
        for _ in range(self.rng.randint(2, 3)):
            switch = self._switch()
            for gpu in gpus:
                self.link(gpu, switch, self._count() if self.rng.random() < 0.3 else 1)

    def _tree(self, n: int) -> None:
        """Leaves and spines; sometimes a link between two endpoints of one leaf."""
        leaves = [self._switch() for _ in range(self.rng.randint(2, 3))]
        spines = [self._switch() for _ in range(self.rng.randint(1, 2))]
        for i in range(n):
            self.link(self._endpoint(), leaves[i % len(leaves)], self._count(), dim=2)
        for leaf in leaves:
            for spine in spines:
                self._datelines(self.link(leaf, spine, self._count(), dim=1))

    def _switch_ring(self, n: int) -> None:
        """Switches in a ring, an endpoint on each."""
        switches = [self._switch() for _ in range(max(3, n))]
        for switch in switches[:n]:
            self.link(self._endpoint(), switch, self._count(), dim=1)
        for i, switch in enumerate(switches):
            first = self.link(switch, switches[(i + 1) % len(switches)], self._count())
            self._datelines(first, always=i == len(switches) - 1)

    def units(self) -> list[tuple[Place, list[Place]]]:
        """Return the switches with a reduction unit and at least two endpoints on them."""
        found = []
        for switch in self.switches:
            row = self.builder.rows["nodes"][switch.node]
            members = self.attached.get(switch.node, [])
            if row["unit"] != 0xFFFFFFFF and len(members) > 1:
                found.append((switch, members))
        return found

    def random_path(self, src: Place, dst: Place) -> list[int]:
        """Return the wires of a random shortest path."""
        node, wires = src.node, []
        while node != dst.node:
            wire = self.rng.choice(self.builder.shortest(node, dst.ep))
            wires.append(wire)
            node = self.builder.rows["wires"][wire]["dst"]
        return wires
