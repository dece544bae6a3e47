"""Expected error of a prediction, from measured rows of sources that did not calibrate their system.

``accuracy.json`` contains the errors of *campaigns*: the independent rows of one source on one system
(`clusim.validation.collectives.standing`), on one node or several, in a regime of size, of an algorithm or of all. Only
`clusim validate --errors` writes it. The expected error is the median of the campaigns' medians, so that a long table
counts as much as a short one, from the first of these classes:

1. the very system: one campaign is enough, as it is measured there;
2. other systems with GPUs of its architecture: at least two campaigns, as one does not show how they differ;
3. all other systems: at least two.

Systems whose architecture is assumed like another one (`Architecture.like`) have only the first class.

In each class rows of the same algorithm have precedence over rows of any. Otherwise the error is not known.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import fmean, median
from typing import Self, TypeVar

from clusim.base.json_schema import JsonObject, Round3
from clusim.base.records import dataclass
from clusim.base.terms.operations import find_algorithm
from clusim.base.terms.times import REGIME_TITLES, place_of, regime_of
from clusim.nccl.env import assumed_like
from clusim.simulation.plan import Plan
from clusim.simulation.setup import Setup

DATA = Path(__file__).with_name("accuracy.json")
"""The file shipped with clusim."""

P2P = "P2P"
"""Name of sends and receives in measured rows."""

ANY = ""

FEWEST = 2
"""Campaigns of other systems that show an error."""

NOT_COMPARABLE = "no measurements of comparable systems"

Class = TypeVar("Class")


def _pct(error: float) -> str:
    """Return an error with two digits, without an exponent."""
    return f"{error:.0f}" if error >= 10 else f"{error:.2g}"


@dataclass(frozen=True, slots=True)
class Campaign:
    """Errors of a source's independent rows on a system; an empty algorithm is any.

    Attributes
    ----------
    n : int
        Rows.
    median_abs_pct, bias_pct : float
        Of their errors [%].
    """

    system: str
    family: str
    source: str
    place: str
    regime: str
    algorithm: str
    n: int
    median_abs_pct: float
    bias_pct: float


@dataclass(frozen=True, slots=True)
class ErrorClass(JsonObject):
    """Errors of a class of independent rows.

    Attributes
    ----------
    system, family : str
        System or architecture of the rows; both are empty for rows of other systems.
    place, regime, algorithm : str
        Number of nodes, range of sizes, and NCCL's algorithm; an empty algorithm is any.
    systems, sources, n : int
        Systems, sources and rows.
    median_abs_pct : float
        Median over the campaigns of the median absolute error [%].
    low_pct, high_pct : float
        Smallest and largest median of a campaign [%].
    bias_pct : float
        Mean of the campaigns' biases [%]; + is predicted too long.
    """

    system: str
    family: str
    place: str
    regime: str
    algorithm: str
    systems: int
    sources: int
    n: int
    median_abs_pct: Round3
    low_pct: Round3
    high_pct: Round3
    bias_pct: Round3

    @classmethod
    def of(cls, system: str, family: str, some: Sequence[Campaign]) -> Self:
        """Return the class of campaigns with equal place, regime and algorithm."""
        errors, first = [item.median_abs_pct for item in some], some[0]
        words = system, family, first.place, first.regime, first.algorithm
        counts = (
            len({c.system for c in some}),
            len({c.source for c in some}),
            sum(c.n for c in some),
        )
        bias = fmean(item.bias_pct for item in some)
        return cls(*words, *counts, median(errors), min(errors), max(errors), bias)

    def text(self) -> str:
        """Return error, range and origin."""
        others = f"{self.systems} other {self.family.capitalize()} system".replace("  ", " ")
        where = self.system or others + "s" * (self.systems > 1)
        if self.high_pct > self.low_pct:
            where = f"{_pct(self.low_pct)} to {_pct(self.high_pct)} % on {where}"
        kind = f"{self.place}, {self.algorithm or 'any algorithm'}, {REGIME_TITLES[self.regime]}"
        return f"{_pct(self.median_abs_pct)} % ({where}; {self.n} independent rows: {kind})"


@dataclass(frozen=True, slots=True)
class UnknownError(JsonObject):
    """Reason for a missing expected error; `median_abs_pct` is None."""

    median_abs_pct: None
    why: str


@dataclass(frozen=True, slots=True)
class MeasuredError(JsonObject):
    """Errors of predictions against the measurements of a file.

    Attributes
    ----------
    n : int
        Measurements.
    median_abs_pct, most_abs_pct : float
        Median and largest absolute error [%].
    """

    n: int
    median_abs_pct: Round3
    most_abs_pct: Round3

    @classmethod
    def of(cls, errors_pct: Iterable[float]) -> Self | None:
        """Return the errors of predictions [%]; None without any."""
        sizes = [abs(error) for error in errors_pct]
        return cls(len(sizes), median(sizes), max(sizes)) if sizes else None

    def text(self) -> str:
        """Return the errors as one line."""
        rows = f"{self.n} measurement{'s' * (self.n != 1)}"
        most = _pct(self.most_abs_pct)
        return f"this file: median {_pct(self.median_abs_pct)} %, at most {most} % ({rows})"


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected error of a prediction; `why` explains a missing class."""

    nearest: ErrorClass | None
    why: str = ""

    def text(self) -> str:
        """Return the expected error as one line."""
        known = f"not known ({self.why})" if self.nearest is None else self.nearest.text()
        return f"expected error: {known}"

    @property
    def error(self) -> ErrorClass | UnknownError:
        """Class of measured rows that determines the expected error, or the reason for its absence."""
        return self.nearest or UnknownError(None, self.why)


@lru_cache(4)
def known_campaigns(path: Path, kind: type[Class]) -> tuple[Class, ...]:
    """Return the campaigns of a file of `clusim validate --errors`; none without a file."""
    if not path.is_file():
        return ()
    data = json.loads(path.read_text(encoding="utf-8"))
    return tuple(kind(**dict(zip(data["columns"], row, strict=True))) for row in data["campaigns"])


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


def expected_error(
    where: RunPlace, size_bytes: int, algorithm: str = ANY, without: Collection[str] = ()
) -> Expected:
    """Return the expected error of the time, with launch, of a NCCL collective.

    Parameters
    ----------
    algorithm : str
        NCCL's, in any spelling, or ``P2P``; empty is any. Algorithms other than NCCL's have no measurements.
    without : collection of str
        Sources to omit.
    """
    known = find_algorithm(algorithm)
    if algorithm and known is None and algorithm.upper() != P2P:
        return Expected(None, f"{algorithm} is not an algorithm of NCCL: no measurements")
    of_kind = place_of(where.machines), regime_of(size_bytes)
    some = [
        item
        for item in known_campaigns(DATA, Campaign)
        if (item.place, item.regime) == of_kind and item.source not in without
    ]
    # Errors of measured architectures do not apply to assumed figures.
    related = [] if assumed_like(where.family) else some
    others = [item for item in related if item.system != where.system]
    names = (P2P if known is None else known.value, ANY) if algorithm else (ANY,)
    for system, family, level, least in (
        (where.system, where.family, [item for item in some if item.system == where.system], 1),
        (ANY, where.family, [item for item in others if item.family == where.family], FEWEST),
        (ANY, ANY, others, FEWEST),
    ):
        for name in names:
            found = [item for item in level if item.algorithm == name]
            if len(found) >= least:
                return Expected(ErrorClass.of(system, family, found))
    return Expected(None, NOT_COMPARABLE)


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
