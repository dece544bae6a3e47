"""Residuals of predictions of measured collectives, and their distribution for a comparable run.

``accuracy.json`` contains the errors of measured rows by *campaign*: the rows of one source on one system. Only
`clusim validate --errors` writes it, with its date and commit.

**Comparable** are rows with the same library, generation of GPUs, links between GPUs (NVSwitch, mesh of
NVLinks, PCIe, xGMI), number of nodes (one, several), kind of operation (collective, or groups of sends and
receives), and regime of sizes, of a campaign with a range of sizes that contains the size.
**Weights** A campaign counts as one measurement, however many rows it has (`VERY_SYSTEM` on the system of the
run, `OTHER_NETWORK` over another network). Rows of a source that calibrated a parameter, or with unknown
software, count less than independent rows (`DEPENDENT`).
**Expected error** The mean of the medians of the campaigns' absolute errors by these weights. Few rows are
weak evidence: the expected error is not below the mean that includes, with weight `PRIOR`, all other
campaigns with this number of nodes and regime. One factor for all classes of one node, and one for those of several,
is the least with which no expected error is below half of the error found at a source that it omits.
**Limits** The limits of 90% are the weighted quantiles of the residuals, widened about their median by one factor for
one node and one for several: the least with which 90% of the rows of each source lie within the limits from other
sources, at most `MOST_WIDENING`.
**Not modelled** Correlation of the rows of a campaign; differences between systems of one class.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any, TypeVar

from clusim.base.records import dataclass
from clusim.base.terms.times import ONE, place_of, regime_of
from clusim.nccl.env_notes import runs_rccl
from clusim.topology import Fabric
from clusim.topology.node import kind_of

DATA = Path(__file__).with_name("accuracy.json")
"""The file shipped with clusim."""

INDEPENDENT = "independent"
"""Standing of rows of a source that calibrated no parameter of their system."""

COLLECTIVE, MESSAGES = "collective", "sends and receives"
"""Kinds of operations."""

VERY_SYSTEM, OTHER_NETWORK, DEPENDENT = 2.0, 0.25, 0.25
"""Weights; assumed."""

PRIOR = 1.0
"""Weight of the campaigns of other classes; assumed."""

FEWEST_ROWS = 4
"""Rows that show a distribution."""

LATENCY_BYTES = 64 << 10
"""Size up to which a time is mostly latency: a campaign from here on also shows the errors of smaller sizes."""

LOW, HIGH = 0.05, 0.95
"""Quantiles of the limits."""

MOST_TOLD = 0.5
"""Least ratio of an expected to a found error."""

MOST_WIDENING = 5.0
"""Largest factor of the limits."""

ROUNDING = 1e-12
"""Weight below which a quantile is reached."""

Kind = TypeVar("Kind")


def scale_of(path: Path, place: str) -> Scale:
    """Return the factors of a file of `clusim validate --errors` for one node or several."""
    return Scale(**data_of(path).get("scale", {}).get(place, {}))


@lru_cache(4)
def known_campaigns(path: Path, kind: type[Kind]) -> tuple[Kind, ...]:
    """Return the campaigns of a file of `clusim validate --errors`; empty without a file."""
    return tuple(
        kind(**dict(zip(data_of(path)["columns"], row, strict=True)))
        for row in data_of(path).get("campaigns", ())
    )


@lru_cache(4)
def data_of(path: Path) -> Mapping[str, Any]:
    """Return the content of a file; empty without it."""
    if not path.is_file():
        return {}
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


@dataclass(frozen=True, slots=True)
class SystemClass:
    """Properties of systems with comparable errors.

    Attributes
    ----------
    library : str
        ``NCCL`` or ``RCCL``.
    family : str
        Architecture of the oldest GPU.
    links : str
        Links between GPUs of a node: ``NVSwitch``, ``NVLink mesh``, ``xGMI`` or ``PCIe``.
    network : str
        NCCL's transport to other nodes; empty without NICs.
    """

    library: str
    family: str
    links: str
    network: str

    @classmethod
    def of(cls, fabric: Fabric, family: str) -> SystemClass:
        """Return the class of a topology with GPUs of an architecture."""
        library = "RCCL" if runs_rccl(family) else "NCCL"
        return cls(library, family, _links(fabric), _network(fabric))


def _links(fabric: Fabric) -> str:
    """Return the fastest kind of connection between GPUs of a node."""
    kinds = {node.name: kind_of(node) for node in fabric.nodes}
    links = {
        link.cls
        for link in fabric.links
        if {kinds[link.a], kinds[link.b]} <= {"gpu", "nvswitch"}
    }
    if "nvswitch" in kinds.values():
        return "NVSwitch"
    names = {"nvlink": "NVLink mesh", "xgmi": "xGMI"}
    return next((name for kind, name in names.items() if kind in links), "PCIe")


def _network(fabric: Fabric) -> str:
    """Return NCCL's transports to other nodes: ``verbs``, ``efa``, ...; empty without NICs."""
    return " ".join(
        sorted({node.nic.plugin for node in fabric.nodes if node.nic is not None})
    )


@dataclass(frozen=True, slots=True)
class Campaign:
    """Errors of the rows of a source on a system, of one standing.

    Attributes
    ----------
    place, kind : str
        One node or several; `COLLECTIVE` or `MESSAGES`.
    least_bytes, most_bytes : int
        Range of sizes of the campaign.
    rows : list of (int, float)
        Size [bytes] and signed error of the prediction [%]; + is too long.
    """

    source: str
    system: str
    library: str
    family: str
    links: str
    network: str
    place: str
    kind: str
    standing: str
    least_bytes: int
    most_bytes: int
    rows: list[list[float]]

    @property
    def source_name(self) -> str:
        """Return the source, for all network plugins."""
        return _without_plugin(self.source)

    def residuals(self, regime: str) -> list[float]:
        """Return the logarithms of measured by predicted times in a regime of sizes."""
        return [
            -log(1 + pct / 100)
            for size, pct in self.rows
            if regime_of(int(size)) == regime
        ]

    def contains(self, size_bytes: int) -> bool:
        """Return True if the campaign shows the error of a size."""
        min_bytes = 0 if self.least_bytes <= LATENCY_BYTES else self.least_bytes
        return min_bytes <= size_bytes <= self.most_bytes


@dataclass(frozen=True, slots=True)
class Asked:
    """A run with an error to estimate: system's name and class, number of nodes, kind of operation, size."""

    system: str
    about: SystemClass
    machines: int
    kind: str
    size_bytes: int

    @property
    def place(self) -> str:
        """Return one node or several."""
        return place_of(self.machines)

    @property
    def regime(self) -> str:
        """Return the regime of the size."""
        return regime_of(self.size_bytes)

    def weight(self, other: Campaign) -> float:
        """Return the weight of a campaign for this run; 0 if it is not comparable."""
        about = self.about
        same = (about.library, about.family, about.links, self.place, self.kind)
        if same != (
            other.library,
            other.family,
            other.links,
            other.place,
            other.kind,
        ):
            return 0.0
        if not other.contains(self.size_bytes):
            return 0.0
        weight = VERY_SYSTEM if other.system == self.system else 1.0
        weight *= 1.0 if other.standing == INDEPENDENT else DEPENDENT
        return weight * (
            1.0
            if self.place == ONE or other.network == about.network
            else OTHER_NETWORK
        )


@dataclass(frozen=True, slots=True)
class Scale:
    """Factors of all classes of one node or of several: of expected errors, and of limits."""

    error: float = 1.0
    limits: float = 1.0

    @classmethod
    def of(cls, campaigns: Sequence[Campaign], place: str) -> Scale:
        """Return the least factors with which expected errors and limits hold for sources that are omitted in turn."""
        predictions = [
            one for one in left_out(campaigns) if one.campaign.place == place
        ]
        ratios = [
            MOST_TOLD * one.found_pct / one.residuals.error_pct
            for one in predictions
            if one.enough
        ]
        limits = 1.0
        while (
            limits < MOST_WIDENING and inside_share(predictions, limits) < HIGH - LOW
        ):
            limits = round(limits + 0.05, 2)
        return cls(round(max([1.0, *ratios]) + 0.005, 2), limits)


@dataclass(frozen=True, slots=True)
class Residuals:
    """Weighted residuals of rows that are comparable with a run, ascending.

    Attributes
    ----------
    values, weights : tuple of float
        Logarithms of measured by predicted times, and their weights.
    error_pct : float
        Expected error without `Scale` [%].
    """

    campaigns: tuple[Campaign, ...]
    values: tuple[float, ...]
    weights: tuple[float, ...]
    error_pct: float

    def quantile(self, part: float) -> float:
        """Return the weighted quantile of the residuals."""
        weight_left = part * sum(self.weights)
        for value, weight in zip(self.values, self.weights, strict=True):
            weight_left -= weight
            if weight_left <= ROUNDING:
                return value
        return self.values[-1]

    @property
    def bias_pct(self) -> float:
        """Return the weighted mean error [%]; + is predicted too long."""
        total = sum(v * w for v, w in zip(self.values, self.weights, strict=True))
        return 100 * (exp(-total / sum(self.weights)) - 1)

    def limits(self, widening: float) -> tuple[float, float]:
        """Return the ratios of measured to predicted time between which 90% of the rows lie."""
        middle = self.quantile(0.5)
        low, high = (
            middle + widening * (self.quantile(q) - middle) for q in (LOW, HIGH)
        )
        return exp(low), exp(high)


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    """Return the mean of pairs of value and weight."""
    return sum(value * weight for value, weight in weighted) / sum(
        weight for _, weight in weighted
    )


def _without_plugin(source: str) -> str:
    """Return the source of a campaign: ``ncclgauge`` of ``ncclgauge (aws-ofi-nccl 1.17)``."""
    return source.partition(" (")[0]


def median_abs_pct(residuals: Iterable[float]) -> float:
    """Return the median absolute error of predictions with these residuals [%]."""
    return median(abs(100 * (exp(-value) - 1)) for value in residuals)


def residuals_of(
    asked: Asked, campaigns: Iterable[Campaign], without: Collection[str] = ()
) -> Residuals | None:
    """Return the residuals of comparable rows; None if there are fewer than `FEWEST_ROWS`.

    Parameters
    ----------
    without : collection of str
        Sources to omit.
    """
    pairs: list[tuple[float, float]] = []
    medians: list[tuple[float, float]] = []
    other_errors: list[float] = []
    used: list[Campaign] = []
    omitted = {_without_plugin(source) for source in without}
    for item in campaigns:
        if item.source_name in omitted or item.place != asked.place:
            continue
        values = item.residuals(asked.regime)
        weight = asked.weight(item)
        if values and not weight:
            other_errors.append(median_abs_pct(values))
        elif values:
            used.append(item)
            medians.append((median_abs_pct(values), weight))
            pairs += [(value, weight / len(values)) for value in values]
    if len(pairs) < FEWEST_ROWS:
        return None
    own_pct = _mean(medians)
    with_others_pct = _mean(
        [*medians, (fmean(other_errors), PRIOR)] if other_errors else medians
    )
    values_, weights = zip(*sorted(pairs), strict=True)
    return Residuals(tuple(used), values_, weights, max(own_pct, with_others_pct))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows of a campaign in a regime, and the residuals of comparable rows of other sources."""

    campaign: Campaign
    regime: str
    found: tuple[float, ...]
    residuals: Residuals

    @property
    def enough(self) -> bool:
        """True if the rows show a median."""
        return len(self.found) >= FEWEST_ROWS

    @property
    def found_pct(self) -> float:
        """Return the median absolute error of the rows [%]."""
        return median_abs_pct(self.found)

    def inside(self, widening: float) -> int:
        """Return the number of rows within the limits."""
        low, high = self.residuals.limits(widening)
        return sum(low <= exp(value) <= high for value in self.found)


def left_out(campaigns: Sequence[Campaign]) -> Iterator[LeftOut]:
    """Yield the rows of every campaign and regime with comparable rows of other sources."""
    for item in campaigns:
        about = SystemClass(item.library, item.family, item.links, item.network)
        machines = 1 if item.place == ONE else 2
        for regime in dict.fromkeys(regime_of(int(size)) for size, _ in item.rows):
            sizes = sorted(
                int(size) for size, _ in item.rows if regime_of(int(size)) == regime
            )
            middle = sizes[len(sizes) // 2]
            query = Asked(item.system, about, machines, item.kind, middle)
            residuals = residuals_of(query, campaigns, without=(item.source,))
            if residuals is not None:
                yield LeftOut(item, regime, tuple(item.residuals(regime)), residuals)


def inside_share(told: Sequence[LeftOut], widening: float) -> float:
    """Return the share of omitted rows within the limits."""
    total = sum(len(one.found) for one in told)
    return sum(one.inside(widening) for one in told) / total if total else 1.0
