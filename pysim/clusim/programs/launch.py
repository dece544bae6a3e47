"""Run of an unmodified PyTorch program as ranks of a simulated job."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError
from clusim.formats.recordings import chakra_writer
from clusim.programs.device import library
from clusim.programs.job import ProgramJob
from clusim.programs.kept import KeptSymmetry
from clusim.programs.processes import RankProcesses
from clusim.programs.report import ProgramRun, RecordedFile, run_of
from clusim.programs.starter import Starter
from clusim.programs.step import RankResult, recording_of
from clusim.programs.times import ProgramTimes
from clusim.replays.placing import ReplayRequest, machines_of
from clusim.simulation.setup import Setup
from clusim.topology.arrays import arrays_of


@dataclass(frozen=True, slots=True)
class TorchProgram:
    """A program and its arguments; `module` is True for the name of a module (``python -m``)."""

    name: str
    arguments: tuple[str, ...] = ()
    module: bool = False


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """Step to be written as a Chakra trace.

    Attributes
    ----------
    path : Path
        The file; the files of several ranks have their numbers in the names.
    only : int
        Number of this step, from 1; the program ends after it, and collectives are not simulated. 0: the last step of
        a program that is simulated.
    """

    path: Path
    only: int = 0


@dataclass(frozen=True, slots=True)
class ProgramRanks:
    """Ranks of a job, with the running ranks.

    Attributes
    ----------
    per_node : int or None
        Ranks per node; None is one per GPU.
    real : bool
        Compute all values; every rank runs.
    running : tuple of int or None
        Ranks that run, empty for all; None is rank 0, and the ranks of its group when it exchanges a message.
    compared : tuple of int or None
        Ranks to be compared with their representatives in the first steps; None is the second rank, the last of the
        first node, the first of the second node, and the last.
    """

    per_node: int | None = None
    running: tuple[int, ...] | None = None
    real: bool = False
    compared: tuple[int, ...] | None = None

    def checked(self, nodes: int, gpus: int, name: str) -> ProgramRanks:
        """Return the ranks on nodes with a number of GPUs; raise `InputError` if they do not exist."""
        local = gpus if self.per_node is None else self.per_node
        if not 0 < local <= gpus:
            raise InputError(
                f"{local} ranks per node; {name} has {gpus} GPUs per node"
            )
        every = self.real or self.running == ()
        ranks = range(nodes * local) if every else self.running or (0,)
        count = nodes * local
        compared = (
            {1, local - 1, local, count - 1}
            if self.compared is None
            else self.compared
        )
        wrong = [
            rank
            for rank in (*ranks, *(self.compared or ()))
            if not 0 <= rank < count
        ]
        if wrong:
            raise InputError(f"rank {wrong[0]}: {name} has ranks 0 to {count - 1}")
        running = tuple(sorted(set(ranks)))
        compared_ranks = tuple(
            sorted(r for r in set(compared) - set(running) if r < count)
        )
        return ProgramRanks(local, running, self.real, compared_ranks)


@dataclass(frozen=True, slots=True)
class RankTask:
    """Task of a running rank.

    Attributes
    ----------
    system : tuple
        Topology and nodes.
    record : bool
        Operations after the last step are part of the result.
    only : int
        The step after which the program ends, as in `RecordedStep`.
    real : bool
        Values of all tensors are computed.
    compared : bool
        The operations of the first steps are reported.
    """

    program: TorchProgram
    system: tuple[Any, int | None]
    record: bool = False
    only: int = 0
    real: bool = False
    compared: bool = False


def _write_record(
    record: RecordedStep, results: Mapping[int, RankResult], of: Sequence[int]
) -> RecordedFile:
    """Write the last step, or the program without optimizer steps."""
    count = max(len(result.steps) for result in results.values())
    if record.only > max(1, count):
        raise InputError(
            f"step {record.only}: the program ended after {count} steps"
        )
    records = {rank: r.record for rank, r in results.items() if r.record is not None}
    recording = recording_of(records, of)
    first = min(results)
    kinds = Counter(event.kind for event in recording.events if event.rank == first)
    chakra_writer.write(recording, record.path)
    calls = kinds["collective"] + kinds["send"] + kinds["recv"]
    if record.only:
        for result in results.values():
            result.steps.clear()
    return RecordedFile(
        str(record.path), count, kinds["compute"], calls, bool(record.only)
    )


def run_program(
    program: TorchProgram,
    request: ReplayRequest,
    ranks: ProgramRanks = ProgramRanks(),
    record: RecordedStep | None = None,
) -> ProgramRun:
    """Run a program as ranks of a job on a system.

    Parameters
    ----------
    request : ReplayRequest
        System, NCCL release and environment.
    record : RecordedStep, optional
        Step to be written.

    Returns
    -------
    ProgramRun
        Virtual times.

    Raises
    ------
    InputError
        No PyTorch, an unknown system, an operation that is not simulated, or ranks that wait for each other.
    SystemExit
        Of the program.
    """
    assert request.topology is not None
    setup = Setup(request.topology, request.nodes)
    fabric = setup.fabric
    nodes = machines_of(fabric)
    placed = ranks.checked(len(nodes), len(nodes[0]), setup.name)
    assert placed.per_node is not None
    assert placed.running is not None
    assert placed.compared is not None
    count = placed.per_node * len(nodes)
    if not program.module and not Path(program.name).is_file():
        raise InputError(f"{program.name}: no such file")
    if record is not None:
        chakra_writer.check(record.path)
    library()
    with Starter(placed.per_node) as starter:
        only = record.only if record is not None else 0
        times = ProgramTimes(request, count, placed.per_node, untimed=only > 0)
        job = ProgramJob(times, count, placed.running, grows=ranks.running is None)
        first, port = placed.running[0], _free_port()

        def environment(rank: int) -> dict[str, str]:
            return _environment(rank, count, placed.per_node or 1) | {
                "MASTER_PORT": str(port),
                "CLUSIM_FIRST_RANK": str(first),
            }

        system = request.topology, request.nodes
        compared = bool(placed.compared)
        task = RankTask(
            program, system, record is not None, only, ranks.real, compared
        )
        symmetry = KeptSymmetry(
            program.name, (program, times.identity, placed, only)
        )
        processes = RankProcesses(
            starter, job, environment, task, symmetry.ranks(placed.compared)
        )
        results = processes.run()
    if not any(r.totals.kernels or r.totals.calls for r in results.values()):
        raise InputError(
            f"{program.name} ended without a kernel or a collective on a GPU; it may have found too few GPUs"
        )
    file = None if record is None else _write_record(record, results, job.of)
    result = run_of(fabric.name, job.of, results)
    result.overlaps, result.recorded = job.notes(), file
    gpu = fabric.nodes[arrays_of(fabric).node_of(0)].endpoint
    assert gpu is not None, "ranks are endpoints"
    result.memory_bytes = gpu.mem_bytes
    result.symmetry = proof = processes.comparison.result()
    symmetry.keep(proof, processes.digest, results[first].files)
    return result


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environment(rank: int, ranks: int, local: int) -> dict[str, str]:
    """Return the variables of torchrun."""
    node = rank // local
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % local),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(node),
        "NODE_RANK": str(node),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RUN_ID": "clusim",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }
