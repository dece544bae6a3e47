"""Request for a replay."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusim.simulation.request import own_words
from clusim.simulation.setup import Setup
from clusim.topology import Fabric

GAPS = ("", "none", "logged")
"""Keywords for the time between calls."""


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
    replan: bool = False
    whole: bool = False
    asked: tuple[tuple[str, int], ...] = ()
    calls: int | None = None
    granularity: str | int = "auto"
    strict: bool = False

    def __post_init__(self) -> None:
        """Normalise the spelling of options."""
        own_words(self)

    def setup(
        self, topology: str | Path | Fabric, version: str, env: tuple[tuple[str, str], ...]
    ) -> Setup:
        """Return the nodes and NCCL of the replay, from the request and the recording."""
        return Setup(topology, self.nodes, version=version, env=env, faults=self.faults)
