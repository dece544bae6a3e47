"""Expected error of a prediction, from the nearest class of held-out measured rows.

``accuracy.json`` contains the classes. Only `clusim validate --data` writes it, from the rows of a validation, which
it names. A class is a system, a family of chips or all of them, on one node or several, in a regime of size, with a
given algorithm or any.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from clusim.base.json_schema import JsonObject
from clusim.base.terms.operations import find_algorithm
from clusim.base.terms.times import REGIME_TITLES, place_of, regime_of
from clusim.simulation.plan import Plan
from clusim.simulation.setup import Setup

DATA = Path(__file__).with_name("accuracy.json")
"""The file shipped with clusim."""

P2P = "P2P"
"""Name of sends and receives in measured rows."""

ANY = ""

Class = TypeVar("Class")


@dataclass(frozen=True, slots=True)
class ErrorClass(JsonObject):
    """Errors of a class of rows.

    Attributes
    ----------
    system, family, algorithm : str
        Empty is any.
    place, regime : str
        As `clusim.validation.collectives.breakdown` has them; an empty place is any.
    n : int
        Rows.
    median_abs_pct, mean_abs_pct, bias_pct : float
        Of their errors [%].
    """

    system: str
    family: str
    place: str
    regime: str
    algorithm: str
    n: int
    median_abs_pct: float
    mean_abs_pct: float
    bias_pct: float


@dataclass(frozen=True, slots=True)
class UnknownError(JsonObject):
    """Reason for a missing expected error; `median_abs_pct` is None."""

    median_abs_pct: None
    why: str


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected error of a prediction; `why` explains a missing class."""

    nearest: ErrorClass | None
    why: str = ""

    def text(self) -> str:
        """Return the expected error as one line."""
        nearest = self.nearest
        if nearest is None:
            return f"expected error: unknown ({self.why})"
        whom = nearest.system or (nearest.family.capitalize() if nearest.family else "all systems")
        words = [
            f"median of {nearest.n} held-out rows",
            *([nearest.place] if nearest.place else []),
            whom,
        ]
        words += [nearest.algorithm] if nearest.algorithm else []
        where = ", ".join([*words, REGIME_TITLES[nearest.regime]])
        return f"expected error: {nearest.median_abs_pct:.2g} % ({where})"

    @property
    def error(self) -> ErrorClass | UnknownError:
        """Class of measured rows that determines the expected error, or the reason for its absence."""
        return self.nearest or UnknownError(None, self.why)


def places_of(family: str, system: str, several: str) -> Iterator[tuple[str, str, str]]:
    """Yield system, family and place of classes, the nearest first."""
    yield system, ANY, several
    yield ANY, family, several
    yield ANY, ANY, several
    yield ANY, ANY, ANY


@lru_cache(4)
def known_classes(path: Path, kind: type[Class]) -> dict[tuple[str, ...], Class]:
    """Return the classes of a file of `clusim validate --data`, by their words; none without a file."""
    if not path.is_file():
        return {}
    data = json.loads(path.read_text(encoding="utf-8"))
    return {
        tuple(word for word in row if isinstance(word, str)): kind(
            **dict(zip(data["columns"], row, strict=True))
        )
        for row in data["classes"]
    }


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Place of a run: preset or file, architecture of the oldest GPU, and number of nodes."""

    system: str
    family: str
    machines: int

    @classmethod
    def of(cls, setup: Setup) -> RunPlace:
        """Return the place of a setup with NCCL."""
        return cls(setup.name, setup.comm.architecture, setup.num_nodes)


def expected_error(where: RunPlace, size_bytes: int, algorithm: str = ANY) -> Expected:
    """Return the expected error of the time, with launch, of a NCCL collective.

    Parameters
    ----------
    algorithm : str
        NCCL's, in any spelling, or ``P2P``; empty is any. Algorithms other than NCCL's have no measurements.
    """
    known = find_algorithm(algorithm)
    if algorithm and known is None and algorithm.upper() != P2P:
        return Expected(None, f"{algorithm} is not an algorithm of NCCL: no measurements")
    place, regime = place_of(where.machines), regime_of(size_bytes)
    names = (P2P if known is None else known.value, ANY) if algorithm else (ANY,)
    known_errors = known_classes(DATA, ErrorClass)
    for system, family, several in places_of(where.family, where.system, place):
        for name in names:
            score = known_errors.get((system, family, several, regime, name))
            if score is not None:
                return Expected(score)
    return Expected(None, "no measurements of this kind")


def expected_on(setup: Setup, size_bytes: int, algorithm: str) -> Expected:
    """Return the expected error of a NCCL collective on a setup; unknown with faults."""
    if setup.broken.lines:
        return Expected(None, "no measurements of systems with faults")
    return expected_error(RunPlace.of(setup), size_bytes, algorithm)


def expected_of(plan: Plan, algorithm: str) -> Expected:
    """Return the expected error of a run; `algorithm` is the executed one."""
    if plan.choice is None:
        return Expected(None, f"{algorithm} differs from NCCL's plan: no measurements")
    return expected_on(plan.setup, plan.choice.request.size_bytes, algorithm)
