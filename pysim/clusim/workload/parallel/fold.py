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
from dataclasses import dataclass, field, replace
from typing import Any

from clusim.fabric.model import Fabric
from clusim.schedule.ir import Schedule
from clusim.workload.parallel.alike import EqualPlaces
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
    """A block by rank: when each rank is done, computes and is exposed to communication, from the common start [ps].

    It is the `same` where it was simulated; elsewhere it may be only alike.
    """

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
    same: bool = True


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
        It is messages or collectives that are beside kernels.
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
    reductions : bool
        So are the collectives of data parallelism, and layers of the passes that they are beside.
    """

    fabric: Fabric
    measure: Measure
    blocks: list[FoldedBlock] = field(default_factory=list)
    measured: int = 0
    written: frozenset[int] = frozenset()
    last: int = -1
    joint: bool = True
    messages: bool = False
    reductions: bool = False
    _found: dict[Any, tuple[tuple[int, ...], Folded]] = field(default_factory=dict)
    _alias: dict[Any, Folded] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find which machines are alike."""
        self.places = EqualPlaces(self.fabric)
        self.zone = self.places.zone

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
        place = self.places.of(ranks)
        if (key, place.key) not in self._found:
            self._found[key, place.key] = (ranks, self._simulate(ranks, alone()))
        origin, found = self._found[key, place.key]
        if origin != ranks:
            found = replace(self._moved(found, origin, ranks), same=place.proved)
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
