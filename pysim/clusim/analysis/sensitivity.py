"""Derivatives of the time of a run by the figures of its hardware, from its critical path.

If one figure changes a little, the path stays the same and only the segments that depend on this figure change. The
time of the path by figure is therefore the derivative, as long as no parallel path is equally long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.analysis.critical import Critical
from clusim.analysis.network import Delay
from clusim.analysis.whatif import Change, is_in_image
from clusim.results.causes import wire_key

_NAMES = {
    "cta": "CTA copy/reduce throughput",
    "step": "per-slice CTA overhead",
    "proxy": "proxy cost per message",
    "hbm": "memory bandwidth",
    "unit": "reduction unit throughput",
    "switches": "switch latency",
    "memory latency": "memory latency",
    "flags": "flag latency",
    "launch": "CTA start and pauses",
    "compute": "kernel compute time",
}
"""Other figures than rates and latencies of wires, by their name in `Change`."""

_RATES = ("wires", "cta", "hbm", "unit")
"""Figures whose increase shortens a run; others are times."""


@dataclass(frozen=True, slots=True)
class PathFigure:
    """Figure of a run's hardware, and the time of the critical path that depends on it.

    Attributes
    ----------
    name : str
        ``NVLink, GPU-NVSwitch rate``.
    rate : bool
        True if it is a rate, False if it is a time.
    change : Change
        Change of the figure by factor 1.
    time_ps : int
        Part of the path that is inversely proportional to a rate, or proportional to a time [ps].
    """

    name: str
    rate: bool
    change: Change
    time_ps: int = 0


def path_figures(run: Critical) -> list[PathFigure]:
    """Return the figures in the image of a run, the longest part of the path first.

    Links are merged by class, both directions. Their parts and the remaining time, such as waits for CTA slots, add
    up to the run.

    Raises
    ------
    TraceError
        The critical path cannot be followed.
    """
    groups = [wire_key(name)[1] for name in run.traced.network.classes]
    parts: Counter[tuple[str, str]] = Counter()
    for step in run.walk.steps():
        block = run.blocks is not None and run.blocks.stands(step)
        for delay in (
            [Delay("", step.length_ps)] if block else run.charger.figures(step)
        ):
            parts[delay.what, groups[delay.wire] if delay.wire >= 0 else ""] += (
                delay.ps
            )
    used = run.traced.result.wires.counters["packets"] > 0
    image = run.traced.network.image
    figures = [
        PathFigure(
            _NAMES.get(what) or f"{group} {ending}",
            what in _RATES,
            change,
            parts[what, group],
        )
        for what, group, ending, change in _changes(groups, used)
        if is_in_image(image, change)
    ]
    return sorted(figures, key=lambda figure: (-figure.time_ps, figure.name))


def _changes(
    groups: list[str], used: NDArray[Any]
) -> list[tuple[str, str, str, Change]]:
    """Return name, link, ending of the full name, and change of all figures."""
    wires: Mapping[str, list[int]] = {group: [] for group in groups}
    for wire, group in enumerate(groups):
        wires[group].append(wire)
    results = [(what, "", "", Change(what, Fraction(1))) for what in _NAMES]
    for group, members in wires.items():
        if np.any(used[members]):
            for what, ending in (("wires", "rate"), ("wire latency", "latency")):
                change = Change(what, Fraction(1), frozenset(members))
                results.append((what, group, ending, change))
    return results
