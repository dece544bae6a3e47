"""Folding: a block that is done alone and over and over is simulated once, on the machine it runs on.

Two blocks are the same if they have the same steps and their ranks are at the same places of machines that are wired
alike. Then the engine, which is deterministic and knows no absolute time, gives the same times for both as long as the
ranks start together and nothing else uses their wires and memory. A block of kernels only takes the sum of their times.
Whether that was so is looked up after the run, for every block: `clusim.training` says how many were proved identical,
and can write the others in full and run again.
"""

from __future__ import annotations

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
    """

    tasks: dict[int, int]
    waits: dict[int, tuple[int, ...]]
    found: Folded
    number: int = 0
    coupled: bool = True


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
    """

    fabric: Fabric
    measure: Measure
    blocks: list[FoldedBlock] = field(default_factory=list)
    measured: int = 0
    written: frozenset[int] = frozenset()
    last: int = -1
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
        zones = {self.zone[rank] for rank in ranks}
        place: Any = ranks
        if len(zones) == 1:
            zone = next(iter(zones))
            within = tuple(self.local[rank] for rank in ranks)
            if zone in self.twins:
                # Any GPUs will do, in the same order of their numbers.
                order = sorted(within)
                within = tuple(order.index(local) for local in within)
            place = (self.kind.get(zone, -1), within)
        exact = (key, ranks)
        if exact in self._alias:
            return self._alias[exact]
        if (key, place) not in self._found:
            self._found[key, place] = (ranks, self._simulate(ranks, alone()))
        origin, found = self._found[key, place]
        if origin != ranks:
            found = self._moved(found, origin, ranks)
        self._alias[exact] = found
        return found

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
        """Return a block as it is at other ranks, on a machine that is alike."""
        there = dict(zip(origin, ranks, strict=True))
        old, new = f"n{self.zone[origin[0]]}/", f"n{self.zone[ranks[0]]}/"

        def move(times: dict[int, int]) -> dict[int, int]:
            return {there[rank]: value for rank, value in times.items() if rank in there}

        return Folded(
            move(found.end_ps),
            move(found.compute_ps),
            move(found.exposed_ps),
            move(found.communication_ps),
            found.traffic,
            found.flops,
            {name.replace(old, new): value for name, value in found.wires.items()},
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
