"""Random fabrics for comparing the engines: all shapes, all parameters, small."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from clusim.engine.abi import KINDS, NONE
from support.images import NETWORK, ImageBuilder, Place

__all__ = ["Bounds", "RandomFabric"]

RATES = [(33, 1280), (1, 40), (9, 200), (1, 20), (7, 313), (50, 1003), (3, 64), (12345, 654321)]
PACKETS = [(16, 1), (64, 1), (64, 3), (128, 1), (128, 2), (200, 4), (256, 1), (512, 1)]
PACKETS += [(4096, 1)]
LIMITS = [NONE, NONE, NONE, 32, 128, 128, 512, 4096]


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
    gpus, memories, switches, nics : list of Place
        The nodes; a NIC is not among the switches, unless it is one in the middle of the fabric.
    attached : dict
        Per switch node: the endpoints with a duplex link to it.
    packets : list of (packet_bytes, burst)
        Sizes that every buffer can hold.
    controls : list of int
        Rate controls.
    """

    rng: random.Random
    bounds: Bounds
    builder: ImageBuilder = field(init=False)
    gpus: list[Place] = field(default_factory=list)
    memories: list[Place] = field(default_factory=list)
    switches: list[Place] = field(default_factory=list)
    nics: list[Place] = field(default_factory=list)
    controls: list[int] = field(default_factory=list)
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
        self._pauses = self.bounds.wild and rng.random() < 0.35
        self._marks = self.bounds.wild and rng.random() < 0.4
        self._memory_cost16 = rng.choice([1, 700, 33333, 65536, 300000])
        shapes = [self._direct, self._ring, self._star, self._planes, self._tree, self._switch_ring]
        shapes += [self._machines] * 4
        make = rng.choice(shapes)
        self.shape = make.__name__.strip("_")
        make(rng.randint(2, max(2, self.bounds.ranks)))
        for _ in range(rng.randint(1, 2) if self._marks else 0):
            self._add_control()

    def _add_format(self) -> None:
        rng = self.rng
        flit = rng.choice([1, 1, 8, 16, 32])
        header = [rng.choice([1, 8, 16, 16, 20, 32]) for _ in range(KINDS)]
        control = [rng.choice([0, 0, 100, 2048, 4096]) for _ in range(KINDS)]
        service = [rng.choice([1024, 1024, 1024, 900, 1100, 2048]) for _ in range(KINDS)]
        limit = [rng.choice(LIMITS) for _ in range(KINDS)]
        if not self.bounds.wild:
            header, control, service, limit = 16, 0, 1024, NONE
        self.builder.format(flit, header, control, service, limit)

    def _add_control(self) -> None:
        """Add a rate control that acts within the time of a run."""
        rng = self.rng
        num, den = rng.choice(self._rates)
        line = (num << 30) // den
        control = self.builder.control(
            alpha_timer_ps=rng.choice([300, 4001, 50000]),
            increase_timer_ps=rng.choice([500, 4001, 30011]),
            cnp_interval_ps=rng.choice([1, 1000, 20000]),
            cnp_delay_ps=rng.choice([1, 300, 3000]),
            byte_counter=rng.choice([64, 1000, 20000]),
            line_rate=rng.choice([line, line, 2 * line, line // 2]),
            min_rate=rng.choice([line // 50, line // 8]),
            additive=line // rng.choice([50, 10, 3]),
            hyper=line // rng.choice([20, 5, 2]),
            g_65536=rng.choice([256, 5000, 40000]),
            fast_recovery=rng.choice([0, 1, 5]),
            kept_65536=rng.choice([0, 30000, 60000]),
            clamp=rng.randrange(2),
        )
        self.controls.append(control)

    def _endpoint(self, relay: bool = False, zone: int = 0, memory: bool = False) -> Place:
        rng = self.rng
        place = self.builder.endpoint(
            latency_ps=rng.choice([1, 77, 500]),
            relay=relay,
            zone=zone,
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
        (self.memories if memory else self.gpus).append(place)
        return place

    def _switch(self, zone: int = 0, nic: float = 0.15) -> Place:
        rng = self.rng
        unit = None
        if rng.random() < 0.7:
            largest = max(p * k for p, k in self.packets)
            unit = {
                "latency_ps": rng.choice([1, 300]),
                "capacity_bytes": rng.choice([1, largest, 3 * largest, 1 << 20]),
                "cost16": rng.choice([0, 65536, 500000]),
            }
        fields: dict[str, Any] = {
            "latency_ps": rng.choice([1, 100, 333]),
            "store_and_forward": rng.random() < 0.2,
            "unit": unit,
            "zone": zone,
        }
        place = self._nic(**fields) if rng.random() < nic else self.builder.switch(**fields)
        self.switches.append(place)
        return place

    def _nic(self, **fields: Any) -> Place:
        place = self.builder.nic(wide_stride=self.rng.randrange(2), **fields)
        self.nics.append(place)
        return place

    def _largest_packet(self) -> int:
        """Return the most wire bytes any packet can have on any wire."""
        sizes = []
        for row in self.builder.rows["formats"]:
            more = row["flit_bytes"] + max(row["header_bytes"])
            least = min(row["limit_bytes"])
            for p, k in self.packets:
                limit = min(p, least)
                sizes.append(k * -(-p // limit) * (limit + more))
        return max(sizes)

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
        if self._pauses and rng.random() < 0.6:
            buffer = 2 + rng.choice([largest // 16, largest // 4, largest, 3 * largest])
            xoff = rng.choice([rng.randint(1, buffer - 1), buffer // 2, buffer - 1])
            fields["buffer_bytes"], fields["xoff_bytes"] = buffer, xoff
            fields["xon_bytes"] = rng.choice([0, xoff // 2, xoff, rng.randint(0, xoff)])
        if self._marks and rng.random() < 0.7:
            least = rng.choice([0, largest // 8, largest // 2, largest])
            fields["ecn_min_bytes"] = least
            fields["ecn_max_bytes"] = least + rng.choice([1, largest, 3 * largest])
            fields["ecn_threshold"] = rng.choice([2**32 - 1, 1 << 31, 1 << 28])
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

    def _machines(self, n: int) -> None:
        """Machines of GPUs, perhaps with a memory, and NICs on a network of switches."""
        rng = self.rng
        zoned = rng.random() < 0.7
        nets = [
            self._switch(NETWORK if zoned else 0, nic=0) for _ in range(rng.choice([1, 1, 2, 3]))
        ]
        for a, b in pairwise(nets):
            self.link(a, b, self._count(), dim=1)
        if len(nets) > 2 and rng.random() < 0.5:
            self._datelines(self.link(nets[-1], nets[0], 1, dim=1), always=True)
        machines = rng.choice([2, 2, 3])
        for machine in range(machines):
            self._machine(machine if zoned else 0, max(1, n // machines), nets)

    def _machine(self, zone: int, n: int, nets: list[Place]) -> None:
        """One machine: everything on one switch, some GPUs also linked directly."""
        rng, switch = self.rng, self._switch(zone, nic=0)
        gpus = [self._endpoint(zone=zone) for _ in range(rng.randint(1, n))]
        for gpu in gpus:
            self.link(gpu, switch, self._count() if rng.random() < 0.3 else 1)
        if len(gpus) > 1 and rng.random() < 0.3:
            self.link(gpus[0], gpus[1], 1)
        if rng.random() < 0.5:
            self.link(switch, self._endpoint(zone=zone, memory=True), 1)
        for _ in range(rng.choice([1, 1, 2])):
            nic = self._nic(
                latency_ps=rng.choice([1, 200]), store_and_forward=rng.random() < 0.2, zone=zone
            )
            self.link(switch, nic, 1)
            for net in rng.sample(nets, rng.choice([1, min(2, len(nets))])):
                self.link(nic, net, rng.choice([1, 1, 2]), dim=2)

    def apart(self, src: Place, dst: Place) -> bool:
        """Say whether packets without a path need NICs to get from one place to another."""
        return src.zone != dst.zone

    def vias(self, src: Place, dst: Place) -> tuple[Place | None, Place | None]:
        """Return NICs to steer packets over: the machines' own if they are apart, else seldom any."""
        rng = self.rng
        if self.apart(src, dst):
            ends = [[nic for nic in self.nics if nic.zone == end.zone] for end in (src, dst)]
            return rng.choice(ends[0]), rng.choice(ends[1])
        nics = [nic for nic in self.nics if nic.zone == src.zone]
        if not nics or rng.random() < 0.6:
            return None, None
        one, other = rng.choice(nics), rng.choice(nics)
        first, last = rng.choice([(one, None), (None, one), (one, other), (one, one)])
        stops = [src, *(via for via in (first, last) if via is not None), dst]
        legs = [(a, b) for a, b in pairwise(stops) if a != b]
        if all(self.builder.shortest(a.node, b.node) for a, b in legs):
            return first, last
        return None, None

    def stage(self, src: Place, dst: Place) -> Place | None:
        """Return an endpoint near the receiver that can hold data in between."""
        places = [*self.gpus, *self.memories, *self.memories]
        near = [p for p in places if p not in (src, dst) and not self.apart(p, dst)]
        return self.rng.choice(near) if near else None

    def unit_switches(self) -> list[Place]:
        """Return the switches with a reduction unit."""
        nodes = self.builder.rows["nodes"]
        return [switch for switch in self.switches if nodes[switch.node]["unit"] != NONE]

    def units(self) -> list[tuple[Place, list[Place]]]:
        """Return the switches with a reduction unit and at least two endpoints on them."""
        found = []
        for switch in self.switches:
            row = self.builder.rows["nodes"][switch.node]
            members = self.attached.get(switch.node, [])
            if row["unit"] != NONE and len(members) > 1:
                found.append((switch, members))
        return found

    def random_path(self, *stops: Place) -> list[int]:
        """Return the wires of a random shortest path over the given places."""
        return [wire for a, b in pairwise(stops) for wire in self._random_leg(a, b)]

    def _random_leg(self, src: Place, dst: Place) -> list[int]:
        node, wires = src.node, []
        while node != dst.node:
            wire = self.rng.choice(self.builder.shortest(node, dst.node, anywhere=True))
            wires.append(wire)
            node = self.builder.rows["wires"][wire]["dst"]
        return wires
