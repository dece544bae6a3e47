"""Expected error of a prediction, and limits of the measured time, from measured rows of comparable systems.

`clusim.simulation.residuals` defines the comparable rows and their weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from statistics import median
from typing import TYPE_CHECKING, Self

from clusim.base.errors import ClusimError
from clusim.base.json_schema import JsonObject, Round3
from clusim.base.records import dataclass
from clusim.base.terms.operations import find_algorithm
from clusim.base.terms.times import REGIME_TITLES
from clusim.simulation.residuals import (
    COLLECTIVE,
    DATA,
    INDEPENDENT,
    MESSAGES,
    Asked,
    Campaign,
    Residuals,
    SystemClass,
    known_campaigns,
    residuals_of,
    scale_of,
)
from clusim.simulation.setup import Setup, loaded

if TYPE_CHECKING:
    from clusim.simulation.plan import Plan

P2P = "P2P"
"""Name of sends and receives in measured rows."""

ANY = ""

FEWEST = 2
"""Campaigns of other systems that show the error of a training step."""

NOT_COMPARABLE = "no measurements of comparable systems"


def _pct(error: float) -> str:
    """Return an error with two digits, without an exponent."""
    return f"{error:.0f}" if error >= 10 else f"{error:.2g}"


@dataclass(frozen=True, slots=True)
class ErrorClass(JsonObject):
    """Errors of comparable measured rows.

    Attributes
    ----------
    system : str
        The system of the run if it has rows; otherwise empty.
    library, family, links : str
        NCCL or RCCL, architecture of the GPUs, and links between them.
    place, regime, kind : str
        Number of nodes, range of sizes, and kind of operation.
    systems, sources, n, independent : int
        Systems, sources and rows, and rows of sources that calibrated no parameter of their system.
    median_abs_pct : float
        Expected absolute error [%].
    low_pct, high_pct : float
        Deviation of the measured from the predicted time between which 90% of the rows lie [%].
    bias_pct : float
        Mean error of the predictions [%]; + is predicted too long.
    """

    system: str
    library: str
    family: str
    links: str
    place: str
    regime: str
    kind: str
    systems: int
    sources: int
    n: int
    independent: int
    median_abs_pct: Round3
    low_pct: Round3
    high_pct: Round3
    bias_pct: Round3

    @classmethod
    def of(cls, asked: Asked, found: Residuals) -> Self:
        """Return the errors of comparable rows with the factors of the shipped file."""
        systems = {item.system for item in found.campaigns}
        scale = scale_of(DATA, asked.place)
        low, high = found.limits(scale.limits)
        rows = [
            (item, len(item.residuals(asked.regime))) for item in found.campaigns
        ]
        return cls(
            asked.system if asked.system in systems else "",
            asked.about.library,
            asked.about.family,
            asked.about.links,
            asked.place,
            asked.regime,
            asked.kind,
            len(systems),
            len({item.source for item in found.campaigns}),
            sum(n for _, n in rows),
            sum(n for item, n in rows if item.standing == INDEPENDENT),
            scale.error * found.error_pct,
            100 * (low - 1),
            100 * (high - 1),
            found.bias_pct,
        )

    @property
    def limits_text(self) -> str:
        """Limits of 90% of the measurements, relative to the prediction."""
        return f"90% of rows {self.low_pct:+.0f} to {self.high_pct:+.0f} %"

    @property
    def origin(self) -> str:
        """Systems and rows."""
        other_systems = self.systems - bool(self.system)
        comparable = (
            f"{other_systems} comparable system{'s' * (other_systems != 1)}"
            if other_systems
            else ""
        )
        where = " and ".join(word for word in (self.system, comparable) if word)
        kind = "" if self.kind == COLLECTIVE else f", {self.kind}"
        rows = f"{self.n} rows of {self.sources} source{'s' * (self.sources != 1)}"
        return f"{where}; {rows}: {self.place}, {REGIME_TITLES[self.regime]}{kind}"

    def text(self) -> str:
        """Return error, limits and origin."""
        return f"{_pct(self.median_abs_pct)} % ({self.limits_text}; {self.origin})"


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
        largest = _pct(self.most_abs_pct)
        return f"this file: median {_pct(self.median_abs_pct)} %, at most {largest} % ({rows})"


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected error of a prediction; `why` explains a missing class."""

    nearest: ErrorClass | None
    why: str = ""

    def text(self) -> str:
        """Return the expected error as one line."""
        nearest_text = (
            f"not known ({self.why})"
            if self.nearest is None
            else self.nearest.text()
        )
        return f"expected error: {nearest_text}"

    @property
    def error(self) -> ErrorClass | UnknownError:
        """Class of measured rows that determines the expected error, or the reason for its absence."""
        return self.nearest or UnknownError(None, self.why)


@dataclass(frozen=True, slots=True)
class RunPlace:
    """Place of a run: preset or file, its class, and number of nodes."""

    system: str
    about: SystemClass
    machines: int

    @classmethod
    def of(cls, setup: Setup) -> RunPlace:
        """Return the place of a setup with NCCL."""
        about = SystemClass.of(setup.fabric, setup.comm.architecture)
        return cls(setup.name, about, setup.num_nodes)

    @classmethod
    def of_name(cls, system: str, family: str, machines: int) -> RunPlace:
        """Return the place of a run on a preset or file; its links are unknown if it cannot be loaded."""
        try:
            about = SystemClass.of(loaded(system, None), family)
        except ClusimError:
            about = SystemClass("", family, "", "")
        return cls(system, about, machines)


def expected_error(
    where: RunPlace,
    size_bytes: int,
    algorithm: str = ANY,
    without: Collection[str] = (),
) -> Expected:
    """Return the expected error of the time, with launch, of a NCCL collective.

    Parameters
    ----------
    algorithm : str
        NCCL's, in any spelling, or ``P2P``; empty is any. Algorithms other than NCCL's have no measurements.
    without : collection of str
        Sources to omit.
    """
    messages = algorithm.upper() == P2P
    if algorithm and not messages and find_algorithm(algorithm) is None:
        return Expected(
            None, f"{algorithm} is not an algorithm of NCCL: no measurements"
        )
    kind = MESSAGES if messages else COLLECTIVE
    query = Asked(where.system, where.about, where.machines, kind, size_bytes)
    residuals = residuals_of(query, known_campaigns(DATA, Campaign), without)
    if residuals is None:
        return Expected(None, NOT_COMPARABLE)
    return Expected(ErrorClass.of(query, residuals))


def expected_on(setup: Setup, size_bytes: int, algorithm: str) -> Expected:
    """Return the expected error of a NCCL collective on a setup; unknown with faults."""
    if setup.broken.lines:
        return Expected(None, "no measurements of systems with faults")
    return expected_error(RunPlace.of(setup), size_bytes, algorithm)


def expected_of(plan: Plan, algorithm: str) -> Expected:
    """Return the expected error of a run; `algorithm` is the executed one."""
    if plan.choice is None:
        return Expected(
            None, f"{algorithm} differs from NCCL's plan: no measurements"
        )
    return expected_on(plan.setup, plan.choice.request.size_bytes, algorithm)
