"""Folding: a block that is done alone and over and over is simulated once, on the machine it runs on.

Two blocks are the same if they have the same steps and their ranks are at the same places of machines that are wired
alike. Then the engine, which is deterministic and knows no absolute time, gives the same times for both as long as the
ranks start together and nothing else uses their wires and memory. A block of kernels only takes the sum of their times.
Whether that was so is looked up after the run, for every block: `clusim.training` says how many were proved identical,
and can write the others in full and run again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from clusim.fabric.arrays import arrays_of
from clusim.fabric.model import Fabric
from clusim.schedule.ir import Schedule
from clusim.workload.parallel.volumes import Volume

__all__ = ["Alone", "Folded", "FoldedBlock", "Folder", "Measure", "Measured"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run of a block alone gives: times of its tasks [ps], compute, exposed and all communication by rank
    [ps], busy time and bytes by name of wire, `clusim.training.sharing.Sharing` as numbers, and what it cost to
    simulate: hops of bursts, and programs.
    """

    start_ps: Any
    end_ps: Any
    compute_ps: dict[int, int]
    exposed_ps: dict[int, int]
    communication_ps: dict[int, int]
    wires: dict[str, tuple[int, int]]
    sharing: tuple[int, int, int, int] = (0, 0, 0, 0)
    hops: int = 0
    instances: int = 0


@dataclass(frozen=True, slots=True)
class Alone:
    """A block written by itself: its schedule, each rank's last tasks, what it moves and computes."""

    schedule: Schedule
    tail: dict[int, tuple[int, ...]]
    traffic: dict[str, Volume]
    flops: int


Measure = Callable[[Schedule], Measured]
"""Runs the schedule of a block."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A block by rank: when each rank is done, computes and is exposed to communication, from the common start [ps]."""

    end_ps: dict[int, int]
    compute_ps: dict[int, int]
    exposed_ps: dict[int, int]
    communication_ps: dict[int, int]
    traffic: dict[str, Volume]
    flops: int
    wires: dict[str, tuple[int, int]]
    sharing: tuple[int, int, int, int] = (0, 0, 0, 0)
    hops: int = 0
    instances: int = 0


@dataclass(frozen=True, slots=True)
class FoldedBlock:
    """A block in a schedule: its task by rank, what each rank waited for, and what the block does.

    Attributes
    ----------
    number : int
        Number of the block in the schedule, counting those that were not folded.
    coupled : bool
        Its ranks communicate, so that it matters whether they are ready at the same time.
    message : bool
        It is messages between two stages, which are beside kernels.
    """

    tasks: dict[int, int]
    waits: dict[int, tuple[int, ...]]
    found: Folded
    number: int = 0
    coupled: bool = True
    message: bool = False


@dataclass
class Folder:
    """Simulates blocks once.

    Attributes
    ----------
    blocks : list of FoldedBlock
        What stands for a simulated block, in the order of the schedule.
    measured : int
        Blocks that were simulated.
    written : frozenset of int
        Numbers of blocks that are written in full, because they were found to differ when they were folded.
    last : int
        Number of the block asked for last.
    joint : bool
        One pause stands for all ranks of a block that are done at the same time; else every rank has its own, as traces
        show them.
    messages : bool
        Messages between stages are blocks, too.
    """

    fabric: Fabric
    measure: Measure
    blocks: list[FoldedBlock] = field(default_factory=list)
    measured: int = 0
    written: frozenset[int] = frozenset()
    last: int = -1
    joint: bool = True
    messages: bool = False
    _found: dict[Any, tuple[tuple[int, ...], Folded]] = field(default_factory=dict)
    _alias: dict[Any, Folded] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find which machines are alike."""
        arrays = arrays_of(self.fabric)
        many = self.fabric.num_zones > 1
        self.zone = [arrays.zone_of(r) if many else 0 for r in range(self.fabric.num_ranks)]
        self.local: list[int] = []
        seen: dict[int, int] = {}
        for zone in self.zone:
            self.local.append(seen.get(zone, 0))
            seen[zone] = self.local[-1] + 1
        self.kind = machine_kinds(self.fabric)
        self.twins = switched_machines(self.fabric)
        self.ports = network_ports(self.fabric)

    def restart(self, written: frozenset[int]) -> None:
        """Begin another schedule in which these blocks are written in full; keep what was simulated."""
        self.blocks, self.last = [], -1
        self.written = written

    def wanted(self) -> bool:
        """Count a block, and return whether it is to be folded."""
        self.last += 1
        return self.last not in self.written

    def find(self, key: Any, ranks: tuple[int, ...], alone: Callable[[], Alone]) -> Folded:
        """Return what a block takes on these ranks; simulate what `alone` writes if no equal one was."""
        exact = (key, ranks)
        if exact in self._alias:
            return self._alias[exact]
        place = self._place(ranks)
        if (key, place) not in self._found:
            self._found[key, place] = (ranks, self._simulate(ranks, alone()))
        origin, found = self._found[key, place]
        if origin != ranks:
            found = self._moved(found, origin, ranks)
        self._alias[exact] = found
        return found

    def _place(self, ranks: tuple[int, ...]) -> Any:
        """Return where ranks are: equal for ranks at equal places, and the ranks themselves where that is not known."""
        zones = tuple(dict.fromkeys(self.zone[rank] for rank in ranks))
        within = tuple(self.local[rank] for rank in ranks)
        kinds = tuple(self.kind.get(zone, -1) for zone in zones)
        if len(zones) == 1:
            if zones[0] in self.twins:
                # Any GPUs will do, in the same order of their numbers.
                order = sorted(within)
                within = tuple(order.index(local) for local in within)
            return kinds[0], within
        ports = {self.ports.get(zone) for zone in zones}
        if len(ports) > 1 or None in ports:
            return ranks
        # All machines are at the same switches, alike: there any of them will do.
        return (
            kinds,
            within,
            tuple(zones.index(self.zone[rank]) for rank in ranks),
            next(iter(ports)),
        )

    def _simulate(self, ranks: tuple[int, ...], block: Alone) -> Folded:
        result = self.measure(block.schedule)
        self.measured += 1
        end = {rank: max(int(result.end_ps[task]) for task in block.tail[rank]) for rank in ranks}
        return Folded(
            end,
            result.compute_ps,
            result.exposed_ps,
            result.communication_ps,
            block.traffic,
            block.flops,
            result.wires,
            result.sharing,
            result.hops,
            result.instances,
        )

    def _moved(self, found: Folded, origin: tuple[int, ...], ranks: tuple[int, ...]) -> Folded:
        """Return a block as it is at other ranks, on machines that are alike."""
        there = dict(zip(origin, ranks, strict=True))
        names = {
            f"n{self.zone[old]}/": f"n{self.zone[new]}/"
            for old, new in there.items()
            if self.zone[old] != self.zone[new]
        }
        machine = re.compile(r"\bn\d+/")

        def renamed(wire: str) -> str:
            return machine.sub(lambda found: names.get(found[0], found[0]), wire)

        def move(times: dict[int, int]) -> dict[int, int]:
            return {there[rank]: value for rank, value in times.items() if rank in there}

        return Folded(
            move(found.end_ps),
            move(found.compute_ps),
            move(found.exposed_ps),
            move(found.communication_ps),
            found.traffic,
            found.flops,
            {renamed(name): value for name, value in found.wires.items()} if names else found.wires,
            found.sharing,
            found.hops,
            found.instances,
        )


def machine_kinds(fabric: Fabric) -> dict[int, int]:
    """Return a number for every machine; machines with equal nodes and links in equal order have the same one."""
    if fabric.num_zones < 2:
        return {0: 0}
    zone_of = {node.name: node.zone for node in fabric.nodes}
    shapes: dict[int, list[Any]] = {}
    for node in fabric.nodes:
        if node.zone >= 0:
            rest = (
                node.name.partition("/")[2],
                node.kind,
                node.latency_ps,
                node.endpoint is None,
                node.model,
            )
            shapes.setdefault(node.zone, []).append((*rest, repr(node.endpoint)))
    for link in fabric.links:
        zone = zone_of[link.a]
        if zone >= 0 and zone == zone_of[link.b]:
            ends = (link.a.partition("/")[2], link.b.partition("/")[2])
            shapes[zone].append(
                (*ends, link.count, str(link.rate), link.latency_ps, link.format, link.buffer_bytes)
            )
    known: dict[Any, int] = {}
    return {zone: known.setdefault(tuple(shape), len(known)) for zone, shape in shapes.items()}


def network_ports(fabric: Fabric) -> dict[int, Any]:
    """Return how every machine is linked to the network, if each of its links leads to a switch that all machines
    with an equal entry are linked to in the same way: what two of them say to each other crosses those switches only.
    """
    zone_of = {node.name: node.zone for node in fabric.nodes}
    found: dict[int, list[Any]] = {}
    for link in fabric.links:
        for own, other in ((link.a, link.b), (link.b, link.a)):
            zone = zone_of[own]
            if zone >= 0 and zone_of[other] < 0:
                inside = own.partition("/")[2]
                row = (link.count, str(link.rate), link.latency_ps, link.format, link.buffer_bytes)
                found.setdefault(zone, []).append((inside, other, *row))
    return {zone: tuple(sorted(map(repr, rows))) for zone, rows in found.items()}


def switched_machines(fabric: Fabric) -> frozenset[int]:
    """Return the machines whose GPUs hang on the same NVLink switches by equal links: there any of them are alike.

    Only what crosses those switches is: blocks communicate over them where they are the fastest way, which NVLink is.
    """
    arrays = arrays_of(fabric)
    crossbars = {n.name for n in fabric.nodes if n.tier == "switch" and n.zone >= 0}
    gpus = [fabric.nodes[arrays.node_of(rank)] for rank in range(fabric.num_ranks)]
    links: dict[str, list[Any]] = {gpu.name: [] for gpu in gpus}
    for link in fabric.links:
        for own, other in ((link.a, link.b), (link.b, link.a)):
            if other in crossbars and own in links:
                shape = (other, link.count, str(link.rate), link.latency_ps, link.format)
                links[own].append(shape)
    found: dict[int, set[Any]] = {}
    for gpu in gpus:
        own_links = tuple(sorted(map(repr, links[gpu.name])))
        found.setdefault(gpu.zone, set()).add((own_links, repr(gpu.endpoint)))
    return frozenset(
        zone for zone, shapes in found.items() if len(shapes) == 1 and next(iter(shapes))[0]
    )
