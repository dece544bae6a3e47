"""Request for a replay, and the placement of the job's ranks on the nodes of a topology."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError
from clusim.base.terms.operations import OF_NCCL
from clusim.simulation.plan import idle_notes
from clusim.simulation.request import Request, own_words
from clusim.simulation.setup import Setup
from clusim.topology import Fabric

GAPS = ("", "none", "logged")
"""Keywords for the time between calls."""

MOST_REPLANNED = 16
"""Upper limit on the distinct calls that are planned again without a variable."""


@dataclass(frozen=True)
class ReplayRequest:
    """Request for a replay; can be compared, hashed and sent to other processes.

    It is created before the recording is read, which may determine the topology, NCCL version and environment. `setup`
    combines both.

    Attributes
    ----------
    files : tuple of str
        The recording; several logs are one job.
    topology, nodes
        As in `Setup`; None is detected from the recording.
    other : str or Path or Fabric or None
        A second system to compare with.
    kind : str
        Format of the recording; empty is detected.
    gap : str or int
        Time between calls: ``none``, ``logged``, or a time [ps]; empty is the default of the format.
    env : tuple of (str, str)
        NCCL variables, which replace the job's.
    version : str
        NCCL version; empty is the job's.
    faults : tuple
        Faults in addition to the topology's, on the system and on the other one.
    policy : str
        Sender policy of all NICs, on the system and on the other one (`clusim.simulation.setup.Setup`).
    replan : bool
        Re-plan rings, trees and algorithms.
    whole : bool
        Simulate a log as one run, in which communicators share the wires, instead of call by call.
    asked : tuple of (str, int)
        Operations and sizes [bytes] to run on every communicator of a log without calls.
    calls : int or None
        Maximum number of calls to replay.
    granularity : str or int
        As in `clusim.simulation.request.Request`.
    strict : bool
        Raise `InputError` if the result may be unusable (`Replay.doubts`).
    faster : str
        Component that is faster with the same plans, in the words of ``clusim what-if``: ``nvlink x2``, ``step x2``;
        ``host x2`` shortens the time between the kernels of a log.
    """

    files: tuple[str, ...]
    topology: str | Path | Fabric | None = None
    nodes: int | None = None
    other: str | Path | Fabric | None = None
    kind: str = ""
    gap: str | int = ""
    env: tuple[tuple[str, str], ...] = ()
    version: str = ""
    faults: tuple[Any, ...] = ()
    policy: str = ""
    replan: bool = False
    whole: bool = False
    asked: tuple[tuple[str, int], ...] = ()
    calls: int | None = None
    granularity: str | int = "auto"
    strict: bool = False
    faster: str = ""

    def __post_init__(self) -> None:
        """Normalise the spelling of options."""
        own_words(self)

    def setup(
        self,
        topology: str | Path | Fabric,
        version: str,
        env: tuple[tuple[str, str], ...],
    ) -> Setup:
        """Return the nodes and NCCL of the replay, from the request and the recording."""
        return Setup(
            topology,
            self.nodes,
            version=version,
            env=env,
            faults=self.faults,
            policy=self.policy,
        )


@dataclass(frozen=True)
class Placed:
    """Placement of the ranks of a job on a system.

    Attributes
    ----------
    setup : Setup
        With the number of nodes that the job needs.
    rank : tuple of int
        Per rank of the job, its rank on the system.
    notes : list of str
        Deviations from the recorded placement.
    """

    setup: Setup
    rank: tuple[int, ...]
    notes: list[str] = field(default_factory=list)

    @property
    def fabric(self) -> Fabric:
        """Return the topology of all nodes."""
        return self.setup.fabric

    def idle_notes(
        self,
        variables: Iterable[str],
        calls: Iterable[tuple[Sequence[int], str, int, str]],
    ) -> tuple[str, ...]:
        """Return the note on variables that change no plan of the first calls; empty without any.

        Parameters
        ----------
        calls : iterable of (sequence of int, str, int, str)
            Ranks of the job, operation, bytes and type of every distinct call.
        """
        planned = [
            Request(
                replace(self.setup, ranks=self.system_ranks(ranks)),
                operation,
                size,
                dtype=dtype,
            )
            for ranks, operation, size, dtype in calls
            if operation in OF_NCCL
        ]
        where = "this job"
        if len(planned) > MOST_REPLANNED:
            where = f"the first {MOST_REPLANNED} distinct calls of this job"
        return idle_notes(planned[:MOST_REPLANNED], tuple(variables), where)

    def system_ranks(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Return the system's ranks of some ranks of the job."""
        return tuple(self.rank[rank] for rank in ranks)

    @property
    def family(self) -> str:
        """Return the architecture of the oldest GPU; empty if unknown."""
        ends = [
            node.endpoint for node in self.fabric.nodes if node.endpoint is not None
        ]
        gpus = [end for end in ends if end.architecture]
        oldest = min(gpus, key=lambda end: end.compute_capability, default=None)
        return "" if oldest is None else oldest.architecture


def machines_of(fabric: Fabric) -> list[list[int]]:
    """Return the GPUs of every node as ranks of the system."""
    zone = {node.name: node.zone for node in fabric.nodes}
    kinds = {node.name: node.kind for node in fabric.nodes}
    result: dict[int, list[int]] = {}
    for rank, name in enumerate(fabric.ranks):
        if kinds[name] == "gpu":
            result.setdefault(zone[name], []).append(rank)
    return [ranks for _, ranks in sorted(result.items())]


def place(setup: Setup, hosts: list[str], devices: list[int]) -> Placed:
    """Return a setup with as many nodes as the job needs, and a GPU for every rank.

    Parameters
    ----------
    hosts, devices : list
        Per rank of the job, its node and the index of its GPU in the node. If nodes have fewer GPUs than the
        job's, ranks fill nodes in order.

    Raises
    ------
    InputError
        The topology has no GPU, or fewer nodes than the job needs.
    """
    names = list(dict.fromkeys(hosts))
    fabric = setup.fabric
    machines = machines_of(fabric)
    if not machines:
        raise InputError(f"{fabric.name}: no GPU; a replay needs one for every rank")
    size = min(len(machine) for machine in machines)
    fits = max(devices, default=0) < size
    needed = len(names) if fits else -(-len(hosts) // size)
    if needed > len(machines) and setup.nodes is None:
        setup = replace(setup, nodes=needed)
        fabric = setup.fabric
        machines = machines_of(fabric)
    if needed > len(machines):
        raise InputError(
            f"{fabric.name}: {len(machines)} nodes with {size} GPUs; the job has {len(hosts)} ranks on {len(names)}"
            f" nodes; give --nodes {needed}"
        )
    if fits:
        number = {host: i for i, host in enumerate(names)}
        ranks = [
            machines[number[host]][device]
            for host, device in zip(hosts, devices, strict=True)
        ]
        return Placed(setup, tuple(ranks))
    flat = [rank for machine in machines for rank in machine[:size]]
    note = (
        f"{fabric.name} has {size} GPUs per machine, the job up to {max(devices) + 1}:"
        f" its {len(hosts)} ranks fill {needed} node{'s' * (needed > 1)} one after the other"
    )
    return Placed(setup, tuple(flat[: len(hosts)]), [note])
