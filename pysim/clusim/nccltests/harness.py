"""The program around a collective: what launches it, how often, and between which looks at the clock.

**Real programs** A process drives one GPU or several, by one thread or by several; it enqueues iterations and waits
once behind the last. The time that it prints is that of all iterations, divided by their number.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from clusim.errors import InputError, suggest
from clusim.nccl.calls.launch import Host, Launch, iteration_ps

__all__ = ["KINDS", "Harness", "kind_named"]

KINDS = ("nccl-tests", "torch", "own", "mixed")
"""nccl-tests; a Python loop around torch.distributed; a program of who measured; several of these."""


def kind_named(word: str) -> str:
    """Return a kind of harness as `KINDS` has it, "" if it is not known; raises `InputError` for other words."""
    name = word.strip().lower().replace("_", "-")
    if name and name not in KINDS:
        raise InputError(
            f"harness {word[:40]!r}: must be one of {', '.join(KINDS)}{suggest(name, KINDS)}"
        )
    return name


@dataclass(frozen=True, slots=True)
class Harness:
    """What a measurement was made with.

    Attributes
    ----------
    kind : str
        One of `KINDS`; "" is not known.
    launch : Launch
        How it launches collectives.
    iterations : int
        Iterations between two looks at the clock; 0 is so many that start and end do not count.
    """

    kind: str = "nccl-tests"
    launch: Launch = field(default_factory=Launch)
    iterations: int = 0

    def time_ps(self, host: Host, operation: str, kernel_ps: int, channels: int = 1) -> int:
        """Return the time per iteration that it prints [ps]."""
        return iteration_ps(host, operation, kernel_ps, self.launch, channels)
