"""Standing of measured rows: calibration rows, further rows of their sources, and independent rows.

A *campaign* is the rows of one source (and network plugin) on one system. A row is *independent* if no parameter that
predicts it was calibrated on rows of its source, on this system or another one. The parameters are those of
its system's topology, architecture and host, and of its protocol and algorithm; each calibrated parameter names its
sets of calibration rows, and these name their sources (`clusim.hardware.calibration`).

**Not modelled.** Parameters are not fitted again without a source. Mechanisms were chosen with all tables in view.
Sets without selectors (data sheets, timings of primitives) name no rows of a table.

Excluded are rows by which no prediction can be judged: of an unknown launch; of an unknown plan, if NCCL's release or
the release of a network plugin is missing and algorithm, protocol and channels are not all forced; and rows slower than
one of the next three sizes of their curve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusim.base.tables import group_values
from clusim.base.terms.operations import Algorithm
from clusim.base.terms.times import ONE
from clusim.hardware import all_figures
from clusim.hardware.calibration import ROW_SETS
from clusim.simulation.expected import P2P
from clusim.topology.render import figures_around
from clusim.validation.collectives.breakdown import Point
from clusim.validation.collectives.systems import setup_of

INDEPENDENT, SAME_SOURCE, CALIBRATION = "independent", "same source", "calibrated"
"""Standings: no parameter was calibrated on the source; one on other rows of the source; one on the row."""

EXCLUDED = UNEVEN, LAUNCH, PLAN = (
    "not monotone",
    "launch not given",
    "plan not known",
)
"""Standings of excluded rows."""

_OWN = ("verbs", "sockets")
"""Transports of NCCL itself; all others are plugins with releases of their own."""

_KERNELS = {
    Algorithm.RING.value: (),
    Algorithm.TREE.value: ("tree",),
    Algorithm.NVLS.value: ("nvls", "local"),
    Algorithm.NVLS_TREE.value: ("nvls", "local", "tree"),
    P2P: ("messages", "local"),
}
"""Algorithm -> first words of the kernel parameters that it uses; others use all."""


@dataclass(frozen=True)
class _System:
    """Calibrated parameters by name, with their row sets, and the network plugins of a system."""

    figures: tuple[tuple[str, tuple[str, ...]], ...]
    plugins: bool

    def sets(self, point: Point) -> Iterator[str]:
        """Yield the row sets of the parameters that predict a point."""
        protocol, words = point.protocol.lower(), _KERNELS.get(point.algorithm)
        for name, rows in self.figures:
            kind, _, number = name.partition(" ")
            if kind == "protocol" and protocol and f".{protocol}:" not in number:
                continue
            if (
                kind == "kernels:"
                and words is not None
                and number.partition(" ")[0] not in words
            ):
                continue
            yield from rows


def _system(points: Sequence[Point]) -> _System:
    """Return the system of some points on one node or on several, as the fewest nodes have it."""
    fewest = min(
        (point.row.group for point in points), key=lambda group: group.n_nodes
    )
    fabric = setup_of(fewest).fabric
    rows_of_figure = {
        str(figure): figure.rows for figure in all_figures() if figure.rows
    }
    figures = [
        (name, rows_of_figure[text])
        for name, text in fabric.sources.items()
        if text in rows_of_figure
    ]
    figures += [
        (name, figure.rows) for name, figure in figures_around(fabric) if figure.rows
    ]
    nics = {node.nic.plugin for node in fabric.nodes if node.nic is not None}
    return _System(tuple(figures), bool(nics.difference(_OWN)))


def standings(points: Sequence[Point]) -> dict[Point, str]:
    """Return the standing of every point."""
    result = {}
    for some in group_values(
        ((p.row.group.system, p.place), p) for p in points
    ).values():
        system = _system(some)
        for point in some:
            result[point] = _exclusion_reason(point, system)
    return result


def left_out(
    points: Sequence[Point], reasons: Mapping[Point, str]
) -> dict[str, list[Point]]:
    """Return the points with no parameter calibrated on their source, and with none calibrated on their system.

    Parameters are not fitted again. Calibration rows and excluded rows are in neither.
    """
    predicted = [p for p in points if reasons[p] in (INDEPENDENT, SAME_SOURCE)]
    result: dict[str, list[Point]] = {
        "source": [p for p in predicted if reasons[p] == INDEPENDENT],
        "system": [],
    }
    for some in group_values(
        ((p.row.group.system, p.place), p) for p in predicted
    ).values():
        system = _system(some)
        result["system"] += [
            p
            for p in some
            if not any(
                ROW_SETS[name].has_system(p.row.columns)
                for name in set(system.sets(p))
            )
        ]
    return result


def _exclusion_reason(point: Point, system: _System) -> str:
    if point.calibration_sets:
        return CALIBRATION
    if point.row.uneven:
        return UNEVEN
    if point.launch_open:
        return LAUNCH
    if not _plan_known(point, system):
        return PLAN
    columns = point.row.columns
    has_source = any(
        ROW_SETS[name].has_source(columns) for name in set(system.sets(point))
    )
    return SAME_SOURCE if has_source else INDEPENDENT


def _plan_known(point: Point, system: _System) -> bool:
    group = point.row.group
    if group.channels and "auto" not in (group.algorithm, group.protocol):
        return True
    if not group.version:
        return False
    return point.place == ONE or not system.plugins or bool(group.plugin)
