"""What a replay is asked to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Request"]


@dataclass(frozen=True)
class Request:
    """What a replay is asked to do.

    Attributes
    ----------
    files : tuple of str
        The recording; several logs are one job.
    topology, nodes
        As of `clusim.fabric.load`; None is concluded from the recording.
    other : str or None
        A second machine to compare with.
    gap : str or int
        Between calls: ``none``, ``logged``, or a time [ps]; empty is what suits the recording.
    env : tuple of (str, str)
        Variables of NCCL, which replace those of the job.
    replan : bool
        Choose rings, trees and algorithms anew.
    whole : bool
        Simulate a log as one run, in which communicators share the wires, instead of call by call.
    asked : tuple of (str, int)
        Operations and sizes [bytes] to run on every communicator of a log that has no calls.
    calls : int or None
        Most calls that are replayed.
    """

    files: tuple[str, ...]
    topology: str | Path | None = None
    nodes: int | None = None
    other: str | None = None
    gap: str | int = ""
    env: tuple[tuple[str, str], ...] = ()
    replan: bool = False
    whole: bool = False
    asked: tuple[tuple[str, int], ...] = ()
    calls: int | None = None
    granularity: str | int = "auto"
    version: str = ""
    trace_out: Path | None = None
    command: str = ""
    progress: Callable[[int, int], None] | None = field(default=None, compare=False)
