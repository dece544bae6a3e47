"""Request for training steps."""

from __future__ import annotations

from dataclasses import dataclass

from clusim.base.errors import InputError
from clusim.lowering.grain import STEP
from clusim.simulation.request import own_words
from clusim.simulation.setup import Setup
from clusim.workload.spec import Workload

WANTED_ERROR = 0.075
"""Error limit of a step up to which ``step`` keeps the result in bursts of ``coarse``, equal to an exposed share of
15%.
"""

SURE = 1.1
"""Multiple of `WANTED_ERROR` above which an estimate has a second pass, as its simulation then surely has.

Exposed shares of estimates and simulations differ by up to 6% (steps of up to 8 GPUs).
"""

FOLDS = ("auto", "all", "proved", "none")
"""Choices of blocks to replicate."""


@dataclass(frozen=True)
class TrainRequest:
    """Training steps on a system; can be compared, hashed and sent to other processes.

    Attributes
    ----------
    setup : Setup
        `clusim.training.api.inputs` returns the setup of the system that the workload names. Plans are of the newest
        NCCL release, without variables; the workload sets the ranks.
    steps : int
        Steps; the last one is reported, earlier steps warm up.
    fold : str or None
        Replaces the choice of the workload. ``none`` simulates every block. ``all`` simulates equal blocks once, and
        the result contains the number proved identical. ``proved`` then writes the other blocks in full and runs
        again until all replicated blocks are proved. ``auto`` is ``proved`` for runs of up to half a minute, otherwise
        ``all``.
    strict_memory : bool
        Insufficient memory is an error rather than a note.
    granularity : str or int
        As in `clusim.simulation.request.Request`; ``step`` is ``coarse`` up to an error limit of `WANTED_ERROR`.
    seed : int
        As in `clusim.simulation.request.Request`.
    estimate : bool
        The step is composed of previously simulated parts, by `clusim.training.estimate`.
    held : Setup or None
        System for which collectives are planned, if the plan is kept (same plan): its GPUs are equal in number and
        order to those of `setup`. None is `setup`.
    """

    setup: Setup
    workload: Workload
    steps: int = 2
    fold: str | None = None
    strict_memory: bool = False
    granularity: str | int = STEP
    seed: int = 0
    estimate: bool = False
    held: Setup | None = None

    def __post_init__(self) -> None:
        """Normalise the spelling of words, and reject invalid values."""
        own_words(self)
        if self.steps < 1:
            raise InputError(f"steps {self.steps}: must be at least 1")
        if self.folding not in FOLDS:
            raise InputError(f"fold {self.folding!r}: use {', '.join(FOLDS)}")
        for name in ("per_node", "version", "env", "ranks"):
            if getattr(self.setup, name):
                raise InputError(
                    f"{name} {getattr(self.setup, name)}: not supported in training"
                )

    @property
    def folding(self) -> str:
        """Return the choice of blocks to replicate."""
        return self.fold or self.workload.fold
