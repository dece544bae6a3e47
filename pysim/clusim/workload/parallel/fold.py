"""Replicated blocks: a block that repeats in isolation is simulated once, on its nodes.

Two blocks are equal if they have the same steps and their ranks are at the same positions of equally
wired nodes. The engine, which is deterministic and independent of absolute time, then computes the same
times for both as long as the ranks start together and no other work uses their wires and memory. A block
of kernels only lasts the sum of their times. Both conditions are verified after the run for every block:
`clusim.training` reports the number of blocks proven identical, and can write the others in full and run
again.
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
    """Result of a block's run in isolation.

    Tasks by slot, end times by number in the schedule [ps], names of the wires in use,
    `clusim.training.switches.Sharing` as numbers, and the simulation's cost: burst-hops, and programs.
    """

    done: BlockTasks
    end_ps: Any
    wires: tuple[str, ...] = ()
    sharing: tuple[int, int, int, int] = (0, 0, 0, 0)
    hops: int = 0
    instances: int = 0


@dataclass(frozen=True, slots=True)
class Alone:
    """Block written in isolation: schedule, each rank's last tasks, traffic, operations."""

    schedule: Schedule
    tail: dict[int, tuple[int, ...]]
    traffic: dict[str, Volume]
    flops: int


Measure = Callable[[Schedule, tuple[int, ...]], Measured]
"""Function that simulates the schedule of a block on these ranks."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Block at some ranks: end times from the common start [ps] and work, by place in `ranks`.

    It is the `same` block where it was simulated; at other ranks it may only be equivalent.
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
    """Block in a schedule: its task by rank, the dependencies of each rank, and its result.

    Attributes
    ----------
    number : int
        Number of the block in the schedule, unreplicated blocks included.
    coupled : bool
        True if its ranks communicate, so that it matters that they are ready at the same time.
    message : bool
        True for messages, and for collectives parallel to kernels.
    """

    tasks: dict[int, int]
    waits: dict[int, tuple[int, ...]]
    found: Folded
    number: int = 0
    coupled: bool = True
    message: bool = False


@dataclass
class Folder:
    """Simulator that runs each distinct block once.

    Attributes
    ----------
    blocks : list of FoldedBlock
        Replicated blocks, in the order of the schedule.
    measured : int
        Blocks that were simulated.
    written : frozenset of int
        Numbers of blocks written in full, because they differed when they were replicated.
    last : int
        Number of the last requested block.
    messages : bool
        True if messages between stages are blocks.
    reductions : bool
        True if collectives of data parallelism are blocks, with the layers of the passes parallel to them.
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
        """Find the equal nodes."""
        self.places = EqualPlaces(self.fabric)
        self.zone = self.places.zone
        self._wires = frozenset(arrays_of(self.fabric).wire_names)

    def restart(self, written: frozenset[int]) -> None:
        """Begin another schedule with these blocks written in full; keep the simulated blocks."""
        self.blocks, self.last = [], -1
        self.written = written

    def wanted(self) -> bool:
        """Count a block; True if it is to be replicated."""
        self.last += 1
        return self.last not in self.written

    def find(self, key: Any, ranks: tuple[int, ...], alone: Callable[[], Alone]) -> Folded:
        """Return the block on these ranks; simulate the schedule of `alone` if no equal one was."""
        exact = (key, ranks)
        if exact in self._alias:
            return self._alias[exact]
        place = self.places.of(ranks)
        if (key, place.key) not in self._found:
            self._found[key, place.key] = (ranks, self._simulate(ranks, alone()))
        origin, result = self._found[key, place.key]
        if origin != ranks:
            result = replace(self._moved(result, origin, ranks), same=place.proved)
        self._alias[exact] = result
        return result

    def kernels(self, ranks: tuple[int, ...], each: tuple[int, int, int]) -> Folded:
        """Return a block of kernels, the same on each rank.

        `each` is time [ps], memory traffic [bytes] and operations of a rank.
        """
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

    def _moved(self, block: Folded, origin: tuple[int, ...], ranks: tuple[int, ...]) -> Folded:
        """Return a block moved to other ranks, on equal nodes."""
        there = dict(zip(origin, ranks, strict=True))
        names = self.places.renamed({self.zone[old]: self.zone[new] for old, new in there.items()})

        def renamed(wire: str) -> str:
            source, _, rest = wire.partition("->")
            target, _, number = rest.rpartition(".")
            block = f"{names(source)}->{names(target)}.{number}"
            # The choice of packets between several equal paths there is not known.
            return block if block in self._wires else wire

        end = {there[rank]: value for rank, value in block.end_ps.items()}
        return replace(block, ranks=ranks, end_ps=end, wires=tuple(map(renamed, block.wires)))
