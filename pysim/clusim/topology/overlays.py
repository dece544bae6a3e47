"""Overlays: a system with other values of some of its figures.

An overlay names its ``base``, and figures by their places, as in ``clusim topo show --figures``. Figures with the same
text share their origin, so that all their places change together. Published figures, and figures of kernels, which
belong to every system, cannot be replaced. `Fabric.figures` keeps the figures for launches, which are outside of the
topology.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from clusim.base.errors import InputError, suggest
from clusim.base.files import write_text
from clusim.hardware import CTA_SKEW, FAMILIES, HOST_COSTS, WINDOW, Figure
from clusim.hardware.figures import figure as figure_of_entry
from clusim.hardware.figures import overlaid_figures
from clusim.topology.catalogue import NOUNS, PRESETS
from clusim.topology.model import Fabric
from clusim.topology.schema import Topology
from clusim.topology.validate import Problems

_LAUNCHES = ("kernel_overhead", "graph_node", "stream_launch")
"""Figures of an architecture that launches use; training steps use others, which stay."""

_SECTIONS = {noun: section for section, noun in NOUNS.items()}


def is_launch(place: str) -> bool:
    """Return True if launches depend on the figure at a place, and topologies do not."""
    return place.startswith(("architecture ", "host "))


def figure_at(place: str) -> Figure:
    """Return the figure at a place, such as ``link type nvlink4: latency`` or ``host intel: launch``.

    Raises
    ------
    InputError
        A figure does not exist at this place, or it cannot be replaced.
    """
    owner, _, key = place.removeprefix("network: ").partition(": ")
    noun, _, name = owner.rpartition(" ")
    presets: Mapping[str, Figure] = {}
    if noun in _SECTIONS:
        presets = PRESETS[_SECTIONS[noun]].get(name, {})
    elif noun == "architecture" and name in FAMILIES:
        figures = FAMILIES[name].named_figures()
        presets = {key: figure for key, figure in figures if key in _LAUNCHES}
    elif noun == "host" and name in HOST_COSTS:
        presets = dict(HOST_COSTS[name].named_figures())
    elif not key:
        presets, key = {"window": WINDOW, "cta_skew": CTA_SKEW}, owner
    if key not in presets:
        raise InputError(
            f"no figure is at this place{suggest(key, presets)}; clusim topo show BASE --figures lists them"
        )
    if presets[key].mark == "published":
        raise InputError(
            "a published figure is not replaced; use a type in a topology file"
        )
    return presets[key]


def overlay(
    topology: Topology,
    problems: Problems,
    load: Callable[[str], Fabric],
    text: str = "",
) -> Fabric:
    """Return the base of an overlay with its figures; `load` returns a topology by name."""
    figures: dict[str, Figure] = {}
    for place, entry in topology.figures.items():
        try:
            figure = figure_of_entry(entry.model_dump(exclude_none=True))
            figures[str(figure_at(place))] = figure
        except InputError as error:
            problems.add(("figures", place), str(error))
    problems.raise_if_any()
    with overlaid_figures(figures):
        base = load(topology.base or "")
    return replace(
        base,
        name=topology.name or base.name,
        description=topology.description or base.description,
        figures={**base.figures, **figures},
        source_text=text,
    )


def write_overlay(
    path: Path, base: str, figures: Mapping[str, Figure], description: str = ""
) -> None:
    """Write the overlay of a base with figures by place."""
    entries = {}
    for place, figure in figures.items():
        low, high = figure.bounds or (1.0, 1.0)
        bounds = [f"{low - 1:+.3%}", f"{high - 1:+.3%}"]
        entries[place] = {
            "value": figure.value,
            "mark": figure.mark,
            "source": figure.source,
        } | ({"bounds": bounds} if figure.bounds else {})
    data = {"description": description, "base": base, "figures": entries}
    write_text(
        path, yaml.safe_dump(data, sort_keys=False, width=100, allow_unicode=True)
    )
