"""Request for a replay."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusim.simulation.request import own_words
from clusim.simulation.setup import Setup
from clusim.topology import Fabric

GAPS = ("", "none", "logged")
"""Words for the time between calls."""


@dataclass(frozen=True)
class ReplayRequest:
    """Request for a replay; can be compared, hashed and sent to other processes.

    It is asked before the recording is read, which may be what tells the machine, the release and the environment: the
    `Setup` is made of both, by `setup`.

    Attributes
    ----------
    files : tuple of str
        The recording; several logs are one job.
    topology, nodes
        As of `Setup`; None is concluded from the recording.
    other : str or Path or Fabric or None
        A second machine to compare with.
    kind : str
        Format of the recording; empty is found out.
    gap : str or int
        Between calls: ``none``, ``logged``, or a time [ps]; empty is what suits the recording.
    env : tuple of (str, str)
        Variables of NCCL, which replace those of the job.
    version : str
        Release of NCCL; empty is the job's.
    faults : tuple
        What breaks besides the topology's own faults, on the machine and on the other one.
    replan : bool
        Choose rings, trees and algorithms anew.
    whole : bool
        Simulate a log as one run, in which communicators share the wires, instead of call by call.
    asked : tuple of (str, int)
        Operations and sizes [bytes] to run on every communicator of a log that has no calls.
    calls : int or None
        Most calls that are replayed.
    granularity : str or int
        As of `clusim.simulation.request.Request`.
    strict : bool
        Raise `InputError` where the result may be of no use (`Replay.doubts`).
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
        """Spell words as clusim does."""
        own_words(self)

    def setup(
        self, topology: str | Path | Fabric, version: str, env: tuple[tuple[str, str], ...]
    ) -> Setup:
        """Return the machines and NCCL of the replay, with what the recording told."""
        return Setup(topology, self.nodes, version=version, env=env, faults=self.faults)
