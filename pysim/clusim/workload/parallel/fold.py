"""Folding: a block that is done alone and over and over is simulated once, on the machine it runs on.

Two blocks are the same if they have the same steps and their ranks are at the same places of machines that are wired
alike. Then the engine, which is deterministic and knows no absolute time, gives the same times for both as long as the
ranks start together and nothing else uses their wires and memory. A block of kernels only takes the sum of their times.
Whether that was so is looked up after the run, for every block: `clusim.training` says how many were proved identical,
and can write the others in full and run again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from clusim.results.replicated import BlockTasks
from clusim.schedule.ir import Schedule
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric
from clusim.workload.parallel.symmetry import EqualPlaces
from clusim.workload.parallel.volumes import Volume


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of a block's run in isolation: tasks by slot, end times by number in the schedule [ps], names of the wires
    in use, `clusim.training.overlap_cost.Sharing` as numbers, and the simulation's cost: burst-hops, and programs.
    """

    done: BlockTasks
    end_ps: Any
    wires: tuple[str, ...] = ()
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


Measure = Callable[[Schedule, tuple[int, ...]], Measured]
"""Runs the schedule of a block on these ranks."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A block at some ranks: when each is done from the common start [ps], and what they do, by their place in `ranks`.

    It is the `same` where it was simulated; elsewhere it may be only alike.
    """

    ranks: tuple[int, ...]
    end_ps: dict[int, int]
    done: BlockTasks
    traffic: dict[str, Volume]
    flops: int
    wires: tuple[str, ...] = ()
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
    messages: bool = False
    reductions: bool = False
    _found: dict[Any, tuple[tuple[int, ...], Folded]] = field(default_factory=dict)
    _alias: dict[Any, Folded] = field(default_factory=dict)
    _kernels: dict[Any, Folded] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find which machines are alike."""
        self.places = EqualPlaces(self.fabric)
        self.zone = self.places.zone
        self._wires = frozenset(arrays_of(self.fabric).wire_names)

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

    def kernels(self, ranks: tuple[int, ...], each: tuple[int, int, int]) -> Folded:
        """Return kernels only, of which each rank does as many: their time [ps], memory traffic [bytes], operations."""
        key = (ranks, each)
        if key not in self._kernels:
            time_ps, memory_bytes, flops = each
            done = BlockTasks.of_kernels(len(ranks), time_ps, memory_bytes)
            all_ps, ends = time_ps * len(ranks), dict.fromkeys(ranks, time_ps)
            shared = (all_ps, all_ps, 0, 0)
            self._kernels[key] = Folded(ranks, ends, done, {}, flops * len(ranks), sharing=shared)
        return self._kernels[key]

    def _simulate(self, ranks: tuple[int, ...], block: Alone) -> Folded:
        result = self.measure(block.schedule, ranks)
        self.measured += 1
        end = {rank: max(int(result.end_ps[task]) for task in block.tail[rank]) for rank in ranks}
        return Folded(
            *(ranks, end, result.done, block.traffic, block.flops),
            wires=result.wires,
            sharing=result.sharing,
            hops=result.hops,
            instances=result.instances,
        )

    def _moved(self, found: Folded, origin: tuple[int, ...], ranks: tuple[int, ...]) -> Folded:
        """Return a block as it is at other ranks, on machines that are alike."""
        there = dict(zip(origin, ranks, strict=True))
        names = self.places.renamed({self.zone[old]: self.zone[new] for old, new in there.items()})

        def renamed(wire: str) -> str:
            source, _, rest = wire.partition("->")
            target, _, number = rest.rpartition(".")
            found = f"{names(source)}->{names(target)}.{number}"
            # Which of several equal ways packets take there is not known.
            return found if found in self._wires else wire

        end = {there[rank]: value for rank, value in found.end_ps.items()}
        return replace(found, ranks=ranks, end_ps=end, wires=tuple(map(renamed, found.wires)))
