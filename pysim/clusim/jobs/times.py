"""Times of calls in isolation: each distinct call is simulated once.

An answer belongs to a question, the granularity of its simulation and the harness that measures it. A question
contains everything else that determines the time: system, NCCL, ranks, operation and bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from clusim.base.kept import SampleCache
from clusim.hardware.figures import any_scaled
from clusim.nccltests.jobs import PerfKernel, kernel
from clusim.simulation.request import Request
from clusim.topology.shelf import VARIABLES

T = TypeVar("T")

KERNEL = "kernel"
"""Harness of kernel times without launches."""


def shared_answers() -> SampleCache:
    """Return the answers of all runs on this computer; those of this process if figures are overridden."""
    overridden = any_scaled() or any(map(os.environ.get, VARIABLES))
    return SampleCache(None) if overridden else SampleCache()


@dataclass
class Times:
    """Times of calls at one granularity.

    Attributes
    ----------
    granularity : str or int
        Granularity of the simulations.
    kept : SampleCache
        Answers that are valid in other runs too.
    """

    granularity: str | int = "auto"
    kept: SampleCache = field(default_factory=lambda: SampleCache(None))
    _known: dict[Hashable, Any] = field(default_factory=dict)

    def find(
        self,
        question: Hashable,
        simulate: Callable[[], T],
        harness: Hashable = KERNEL,
    ) -> T:
        """Return the answer to a question, simulated on first use."""
        key = self.granularity, harness, question
        if key not in self._known:
            self._known[key] = simulate()
        result: T = self._known[key]
        return result

    def kernel(self, request: Request) -> PerfKernel:
        """Return the kernel of a collective by NCCL's plan, extrapolated if it is large."""
        timed_request = replace(request, granularity=self.granularity)
        return self.find(timed_request, partial(kernel, timed_request))

    def stored(self, question: Any, simulate: Callable[[], T]) -> T:
        """Return the answer to a question from earlier runs, or simulated; a value of JSON."""
        answer = self.peek(question)
        if answer is None:
            answer = simulate()
            self.kept.put(_key(question, self.granularity), answer)
        result: T = answer
        return result

    def peek(self, question: Any, granularity: str | int | None = None) -> Any:
        """Return a stored answer, by default for this object's granularity; None if it is not stored."""
        return self.kept.get(_key(question, granularity or self.granularity))


def _key(question: Any, granularity: str | int) -> tuple[Any, ...]:
    return "time", granularity, KERNEL, question
