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

FOLDS = ("auto", "all", "proved", "none")
"""Choices of blocks to replicate."""


@dataclass(frozen=True)
class TrainRequest:
    """Training steps on some machines; can be compared, hashed and sent to other processes.

    Attributes
    ----------
    setup : Setup
        `clusim.training.api.inputs` makes one of the machine that the workload names. Plans of NCCL are those of its
        newest release, without variables; which ranks take part is said in the workload.
    steps : int
        Steps; the last one is reported, those before it warm up.
    fold : str or None
        Instead of what the workload says: ``none`` simulates every block; ``all`` simulates equal ones once, and the
        result says how many were proved identical; ``proved`` then writes the others in full and runs again, until
        all that are left were; ``auto`` does that where a run takes half a minute or less, and else is ``all``.
    strict_memory : bool
        Memory that does not suffice is an error rather than a note.
    granularity : str or int
        As of `clusim.simulation.request.Request`; ``step`` is ``coarse`` up to an error limit of `WANTED_ERROR`.
    seed : int
        As there.
    estimate : bool
        The step is put together from parts that were simulated before, by `clusim.training.estimate`.
    held : Setup or None
        The machines for which collectives are planned, if these are surprised: `setup` has as many GPUs, in the same
        order. None is `setup`.
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
                raise InputError(f"{name} {getattr(self.setup, name)}: not supported in training")

    @property
    def folding(self) -> str:
        """Return the choice of blocks to replicate."""
        return self.fold or self.workload.fold
