"""Topology as a picture, in the layout of reports.

Small clusters are drawn with the interior of their nodes; larger clusters as the network and one node of each kind.
Colours mark the type of a link, the legend its rate and latency, and the width of a line its bandwidth.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clusim.base.display import Plot, need_matplotlib, picture_format
from clusim.base.drawing.boxes import INSIDE
from clusim.base.drawing.layout import draw
from clusim.base.drawing.machine import DrawnMachine, natural_key
from clusim.base.errors import InputError
from clusim.base.terms.links import kind_of
from clusim.base.units import format_rate, format_time
from clusim.topology.model import Fabric
from clusim.topology.node import Node
from clusim.topology.node import kind_of as kind_of_node
from clusim.topology.outline import outline
from clusim.topology.render import ranges

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from clusim.base.drawing.paint import Sheet

COLOURS = {
    "nvlink": "#2a9d3a",
    "trunk": "#0a7f7f",
    "xgmi": "#b5179e",
    "c2c": "#0a7f7f",
    "pcie": "#6a51a3",
    "numa": "#1f4e9e",
    "dram": "#8c8c8c",
    "infiniband": "#c1440e",
    "roce": "#d9822b",
    "efa": "#d9822b",
    "slingshot": "#a6611a",
    "ethernet": "#c1440e",
}
"""Colour by link class."""

SPARE = ("#c1440e", "#1f4e9e", "#6a51a3", "#2a9d3a", "#8c564b", "#e377c2", "#17becf")

FILL = {
    "gpu": "#d8efd3",
    "host": "#d8efd3",
    "node": "#f4f6f9",
    "memory": "#f1f1f1",
    "nic": "#fdebd0",
    "nvswitch": "#cdebe4",
    "pcie": "#ece7f6",
    "root": "#dfe6f2",
    "switch": "#fbdcdc",
}
"""Colour of boxes by tier, or by kind: all other tiers are switches."""

UNIT_IN, LETTER = 0.012, 14.0
"""Largest size of a unit of the picture [inch], and the largest letters of boxes [units]."""

FULL_SIZE = 16
"""Graph nodes from which a picture has its full size."""

MOST_KINDS = 2
"""Different nodes of a cluster that are drawn one by one."""


def draw_fabric(fabric: Fabric) -> Figure:
    """Return the picture as a matplotlib figure."""
    need_matplotlib()
    from clusim.base.drawing.paint import figure_of

    colours = _colours(fabric)
    sheet = _sheet(
        fabric, {node.name for node in fabric.nodes}, fabric.name, colours
    )
    sheets = [sheet]
    if fabric.num_zones > 1 and not sheet.picture.frames:
        for group in outline(fabric).alike()[:MOST_KINDS]:
            names = {
                node.name for node in fabric.nodes if node.zone == group[0].zone
            }
            title = f"node n{group[0].zone}"
            if len(group) > 1:
                title += f"  ({len(group)} identical: {ranges(f'n{m.zone}' for m in group)})"
            sheets.append(_sheet(fabric, names, title, colours))
    return figure_of(sheets, _legend(fabric, sheets, colours))


def plot_fabric(fabric: Fabric, figure: str = "") -> Figure:
    """Return the picture for notebooks; its name is ``machine``."""
    if figure not in ("", "machine"):
        raise InputError(f"figure {figure!r}: a fabric has one picture, 'machine'")
    return draw_fabric(fabric)


def save_picture(fabric: Fabric, path: Path) -> None:
    """Write the picture to a file, in the format of its suffix."""
    picture_format(path)
    Plot(draw_fabric(fabric)).save(path, dpi=130)


def _colours(fabric: Fabric) -> dict[str, str]:
    """Return the colour of every type of link."""
    spare: dict[str, str] = {}
    result = {}
    for link in fabric.links:
        kind = link.cls.rstrip("0123456789")
        if kind not in COLOURS:
            spare.setdefault(kind, SPARE[len(spare) % len(SPARE)])
        result[link.label] = COLOURS.get(kind) or spare[kind]
    return result


def _legend(
    fabric: Fabric, sheets: list[Sheet], colours: dict[str, str]
) -> dict[str, str]:
    """Return the colours of the types of links, with their rates, latencies, and numbers per line."""
    speeds: dict[str, dict[str, None]] = {}
    for link in fabric.links:
        speed = f"{format_rate(link.rate)}, {format_time(link.latency_ps)}"
        speeds.setdefault(link.label, {})[speed] = None
    counts: dict[str, set[int]] = {}
    for lines in (sheet.picture.lines for sheet in sheets):
        for name, size in zip(lines.classes, lines.sizes.tolist(), strict=True):
            counts.setdefault(kind_of(name), set()).add(size)
    legend = {}
    for name, rates in speeds.items():
        low, high = min(counts.get(name, (1,))), max(counts.get(name, (1,)))
        number = f"{low} to {high}" if low < high else str(high)
        per_line = f", {number} links a line" if high > 1 else ""
        legend[f"{name}: {' or '.join(rates)}{per_line}"] = colours[name]
    return legend


def _sheet(
    fabric: Fabric, names: set[str], title: str, colours: dict[str, str]
) -> Sheet:
    """Return the picture of the nodes called `names` and of the links between them, as one wire each."""
    from clusim.base.drawing.paint import Ink, Sheet

    nodes = {node.name: node for node in fabric.nodes if node.name in names}
    tiers = {name: _tier(node) for name, node in nodes.items()}
    ends = [name for name, node in nodes.items() if node.endpoint is not None]
    order = ends + sorted(nodes.keys() - set(ends), key=natural_key)
    place = {name: number for number, name in enumerate(order)}
    links = [link for link in fabric.links if link.a in names and link.b in names]
    links = [link for link in links for _ in range(link.count)]
    machine = DrawnMachine(
        order,
        [tiers[name] for name in order],
        len(ends),
        np.array([place[link.a] for link in links], np.int64),
        np.array([place[link.b] for link in links], np.int64),
        [f"{link.label} {tiers[link.a]}->{tiers[link.b]}" for link in links],
    )
    picture = draw(machine)
    models: dict[str, dict[str, None]] = {}
    for name, node in nodes.items():
        if node.product not in ("", "generic", "host"):
            models.setdefault(tiers[name], {})[node.product] = None
    rows = picture.boxes if picture.titles else []
    notes = {
        box.y: ", ".join(models[box.tier]) for box in rows if box.tier in models
    }
    widths = picture.line_widths(np.array([link.rate.bytes_per_s for link in links]))
    kinds = (kind_of(name.removesuffix(INSIDE)) for name in picture.lines.classes)
    unit_in = UNIT_IN * min(1.0, max(0.55, len(fabric.nodes) / FULL_SIZE))
    ink = Ink([colours[kind] for kind in kinds], FILL, unit_in, LETTER)
    return Sheet(title, picture, widths, notes, ink)


def _tier(node: Node) -> str:
    return "nvswitch" if kind_of_node(node) == "nvswitch" else node.tier or node.kind
