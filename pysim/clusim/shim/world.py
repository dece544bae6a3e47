"""The simulated system as programs see it: nodes, devices, processes and communicators."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from clusim.base.errors import InputError
from clusim.base.terms.times import ticks_ps
from clusim.hardware import GPUS
from clusim.jobs.joint import JointTimes
from clusim.jobs.live import LiveClock
from clusim.jobs.times import Times
from clusim.lowering import QUICK
from clusim.nccl.launch import Launch, graph_ps, host_of, start_and_end_ps, wake_ps
from clusim.nccltests.options import PerfOptions
from clusim.nccltests.sweep import devices, library_code, place
from clusim.shim.communicators import CommMember, ProgramComm
from clusim.shim.memory import SharedMemory
from clusim.shim.queues import Queues
from clusim.simulation.setup import Setup
from clusim.topology.node import Endpoint

NO_COLOUR = -1
"""Colour of a rank that gets no communicator, ``NCCL_SPLIT_NOCOLOR``."""


@dataclass
class ProgramProcess:
    """A process: its node and NCCL's variables in its environment."""

    node: int = 0
    env: list[tuple[str, str]] = field(default_factory=list)


@dataclass(eq=False)
class Joining:
    """Ranks of communicators in creation.

    Attributes
    ----------
    size : int
        Number of expected ranks.
    asked : dict
        Rank -> its GPU, its colour, and the key that orders the ranks of a colour.
    made : dict or None
        Rank -> its new communicator and rank; None while ranks are missing.
    """

    size: int
    asked: dict[int, tuple[CommMember, int, int]] = field(default_factory=dict)
    made: dict[int, tuple[ProgramComm, int]] | None = None


class World:
    """A system with its programs' processes, memory, streams and communicators."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.memory = SharedMemory()
        self.processes: dict[int, ProgramProcess] = {}
        self.comms: dict[int, ProgramComm] = {}
        self._joining: dict[object, Joining] = {}
        self.start_ps = time.monotonic_ns() * 1000
        self.offset_ps = time.time_ns() * 1000 - self.start_ps
        self.host = host_of(setup.comm)
        self.first_start_ps, self._notice_ps = start_and_end_ps(self.host)
        self._numbers = 0

    @cached_property
    def queues(self) -> Queues:
        """Streams on one clock; calls overlap by the NCCL variables of the first process."""
        first = next(iter(self.processes.values()), ProgramProcess())
        setup = replace(self.setup, env=(*self.setup.env, *first.env))
        return Queues(LiveClock(JointTimes(setup, Times(QUICK)), 0))

    def number(self) -> int:
        """Return a new number for an identifier or a communicator."""
        self._numbers += 1
        return self._numbers

    @cached_property
    def _gpus(self) -> list[list[int]]:
        comm = self.setup.comm
        return [
            [comm.ranks[rank] for rank in machine.ranks] for machine in comm.machines
        ]

    @cached_property
    def _endpoint(self) -> Endpoint:
        fabric = self.setup.fabric
        end = fabric.nodes[fabric.node_index[fabric.ranks[0]]].endpoint
        if end is None or not end.compute_capability or not end.mem_bytes:
            raise InputError(
                f"{self.setup.name}: programs run on GPUs of a known kind"
            )
        return end

    @property
    def chip(self) -> str:
        """Return the chip of the GPUs."""
        return self._endpoint.chip

    def describe(
        self, process: int, rank: int, size: int
    ) -> tuple[list[int], list[str]]:
        """Place a process on its node and return the numbers and names of its system.

        Processes of MPI are distributed over the nodes in order; others are on the first node.
        """
        program = self.processes.setdefault(process, ProgramProcess())
        nodes = len(self._gpus)
        program.node = rank * nodes // size if 0 <= rank < size else 0
        listed = devices(place(self.setup, PerfOptions()), PerfOptions())
        first = listed[sum(len(gpus) for gpus in self._gpus[: program.node])]
        end, gpu = self._endpoint, GPUS.get(self._endpoint.chip)
        numbers = [
            self.start_ps,
            self.offset_ps,
            wake_ps(self.host),
            end.mem_bytes,
            len(self._gpus[program.node]),
            library_code(self.setup),
            gpu.sms if gpu else 0,
            *divmod(end.compute_capability, 10),
            program.node,
        ]
        return numbers, [first.hostname, first.device_info]

    def noticed_ps(self, end_ps: int) -> int:
        """Return the tick of the host's clock at which a thread notices the end of work [ps]."""
        return ticks_ps(end_ps + self._notice_ps)

    def graph_ps(self) -> int:
        """Return the time of a thread for launching a graph [ps]."""
        return graph_ps(self.host, Launch(graph=True))

    # ---- communicators
    def join(
        self, key: object, size: int, rank: int, request: tuple[CommMember, int, int]
    ) -> Joining:
        """Add a rank, with its colour and key, to communicators that are being created; -1: without colour."""
        joining = self._joining.setdefault(key, Joining(size))
        if joining.size != size or rank in joining.asked:
            raise InputError(
                f"rank {rank} of {size}: joins a communicator twice, or of another size"
            )
        joining.asked[rank] = request
        if len(joining.asked) == size:
            del self._joining[key]
            self._create_all(joining)
        return joining

    def _create_all(self, joining: Joining) -> None:
        created: dict[int, tuple[ProgramComm, int]] = {}
        for colour in sorted(
            {colour for _, colour, _ in joining.asked.values()} - {NO_COLOUR}
        ):
            ranks = [
                rank for rank, item in joining.asked.items() if item[1] == colour
            ]
            ranks.sort(key=lambda rank: (joining.asked[rank][2], rank))
            comm = self._create([joining.asked[rank][0] for rank in ranks])
            created |= {
                rank: (comm, position) for position, rank in enumerate(ranks)
            }
        joining.made = created

    def gpu(self, process: int, device: int) -> int:
        """Return the topology's rank of a device of a process."""
        gpus = self._gpus[self.processes[process].node]
        if not 0 <= device < len(gpus):
            raise InputError(f"device {device}: the node has {len(gpus)} GPUs")
        return gpus[device]

    def _create(self, members: Sequence[CommMember]) -> ProgramComm:
        env = self.processes[members[0].process].env
        gpus = [member.gpu for member in members]
        if len(set(gpus)) < len(gpus):
            raise InputError(
                "a GPU is in the communicator twice; processes need different devices"
            )
        base = replace(self.setup, env=(*self.setup.env, *env))
        setup = self._of(base, tuple(gpus)) if len(gpus) > 1 else base
        comm = ProgramComm(
            self.number(), tuple(members), setup, self.memory, self.queues, self.chip
        )
        comm.left = len(members)
        self.comms[comm.number] = comm
        return comm

    def _of(self, base: Setup, gpus: tuple[int, ...]) -> Setup:
        """Return the setup of some GPUs, as `clusim nccl-tests` has it where they are the first of every node."""
        for count in range(1, len(self._gpus[0]) + 1):
            first = tuple(gpu for node in self._gpus for gpu in node[:count])
            if first == gpus:
                return (
                    base
                    if len(gpus) == self.setup.num_ranks
                    else replace(base, per_node=count)
                )
        return replace(base, ranks=gpus)

    def quit(self, number: int) -> None:
        """Forget a communicator when its last rank has left it."""
        comm = self.comms.get(number)
        if comm is not None:
            comm.left -= 1
            if comm.left == 0:
                del self.comms[number]
