"""Page as a matplotlib figure; matplotlib is imported only when a picture is requested.

One node: CPUs above the PCIe tree, GPUs and NICs in one row, NVSwitches or direct links below. The
network of a cluster, or of plain hosts: a row for each tier, a box for each node.
"""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Arc, FancyBboxPatch

from clusim.base.units import format_rate
from clusim.topology.drawing.page import CHAR, GAP, ROW, Arch, DrawnBox, Page, Text, label
from clusim.topology.model import Link
from clusim.topology.node import Node, kind_of
from clusim.topology.outline import Branch, Outline, OutlinedMachine, link_name, total
from clusim.topology.render import ranges

MOST_MACHINES = 8
MOST_TIER_SWITCHES = 16


def place_network(page: Page, view: Outline, base: float) -> None:
    rows: list[list[DrawnBox]] = []
    boxes: dict[str, DrawnBox] = {}
    if view.machines:
        row, members = _machine_boxes(view)
        rows.append(row)
        boxes.update(members)
    for tier, nodes in view.tiers:
        row, members = _tier_boxes(tier, nodes)
        rows.append(row)
        boxes.update(members)
    width = max(sum(box.width + GAP for box in row) for row in rows)
    page_width = max([width, *(box.x + box.width / 2 for box in page.boxes)])
    for level, row in enumerate(rows):
        span = max(sum(box.width + GAP for box in row), page_width * 0.8 if len(row) > 1 else 0)
        taken = sum(box.width for box in row)
        space = (span - taken) / len(row)
        x = (page_width - span) / 2
        for box in row:
            box.x, box.y = x + space / 2 + box.width / 2, base + 0.6 + level * ROW * 1.35
            x += box.width + space
        page.boxes += row
    joints: dict[tuple[int, int], tuple[DrawnBox, DrawnBox, Link, int]] = {}
    machine_of = {node.name: node.zone for node in view.fabric.nodes}
    for link in view.cables:
        a = boxes.get(link.a) or boxes.get(f"machine {machine_of[link.a]}")
        b = boxes.get(link.b) or boxes.get(f"machine {machine_of[link.b]}")
        if a is None or b is None or a is b:
            continue
        key = (min(id(a), id(b)), max(id(a), id(b)))
        count = joints[key][3] if key in joints else 0
        joints[key] = (a, b, link, count + link.count)
    most = max((count for *_, count in joints.values()), default=1)
    for a, b, link, count in joints.values():
        if a.y == b.y:
            page.arches.append(Arch(a.x, b.x, a.y + 0.5, 0.5, page.colour(link), 1.2, True))
        else:
            page.join(a, b, link, 0.6 + 2.2 * count / most)
    top = base + 0.6 + (len(rows) - 1) * ROW * 1.35
    title = f"{view.fabric.name}: network" if view.machines else view.fabric.name
    page.text(0.0, top + 1.2, title, "title")
    counts = sorted({count for *_, count in joints.values()})
    if counts:
        many = f"{counts[0]} to {counts[-1]} links" if len(counts) > 1 else f"{counts[0]} links"
        note = "a line is " + ("one link" if counts == [1] else many)
        page.text(page_width, top + 1.2, note, "right")


def _machine_boxes(view: Outline) -> tuple[list[DrawnBox], dict[str, DrawnBox]]:
    shown = (
        view.machines if len(view.machines) <= MOST_MACHINES else view.machines[: MOST_MACHINES - 2]
    )
    boxes: dict[str, DrawnBox] = {}
    row: list[DrawnBox] = []
    for machine in shown:
        gpus = len(machine.gpus())
        nics = sum(kind_of(b.node) == "nic" for root in machine.roots for b in root.walk())
        box = DrawnBox([f"n{machine.zone}", f"{gpus} GPUs, {nics} NICs"], "machine")
        boxes[f"machine {machine.zone}"] = box
        row.append(box)
    rest = view.machines[len(shown) :]
    if rest:
        box = DrawnBox(
            [f"n{rest[0].zone}..{rest[-1].zone}", f"{len(rest)} more nodes"], "more", dashed=True
        )
        boxes |= {f"machine {machine.zone}": box for machine in rest}
        row.append(box)
    return row, boxes


def _tier_boxes(tier: str, nodes: list[Node]) -> tuple[list[DrawnBox], dict[str, DrawnBox]]:
    most = MOST_TIER_SWITCHES
    shown = nodes if len(nodes) <= most else nodes[: most - 2]
    row = [DrawnBox(label(node), kind_of(node)) for node in shown]
    boxes = {node.name: box for node, box in zip(shown, row, strict=True)}
    rest = nodes[len(shown) :]
    if rest:
        box = DrawnBox([f"{len(rest)} more", tier], "more", dashed=True)
        boxes |= {node.name: box for node in rest}
        row.append(box)
    return row, boxes


MOST_SWITCHES = 12
MOST_ROOTS = 4


def place_machine(page: Page, group: list[OutlinedMachine], view: Outline, base: float) -> float:
    """Place a node above the height `base`; return the height of its top."""
    machine = group[0]
    roots = [(root, len(rest)) for root, rest in machine.shown_roots(MOST_ROOTS, 2)]
    depth = max(_depth(root) for root, _ in roots)
    lift = base + _room_below(machine) + 0.5
    places: dict[str, DrawnBox] = {}
    rows = _Rows(page, places, lift)
    x = 0.0
    for root, more in roots:
        x = _place(rows, root, x, depth) + GAP
        if more:
            box = DrawnBox(
                [f"{more} more", f"like {root.node.name.partition('/')[2] or root.node.name}"],
                "more",
            )
            box.x, box.y, box.dashed = x + box.width / 2 + GAP, lift + depth * ROW, True
            page.boxes.append(box)
            x += box.width + 2 * GAP
        x += GAP
    _sides(page, machine, places, lift + depth * ROW)
    _gpu_links(page, machine, places, base, lift)
    top = lift + depth * ROW + 1.0
    title = view.fabric.name
    if len(view.machines) > 1:
        names = ranges(f"n{m.zone}" for m in group)
        title = f"machine n{machine.zone}" + (
            f"  ({len(group)} identical: {names})" if len(group) > 1 else ""
        )
    height = 1.1 if machine.side_links else 0.4
    page.text(0.0, top + height, title, "title")
    return top + height + 0.6


def _depth(branch: Branch) -> int:
    """Return the rows of switches between a branch and its leaves."""
    below = [_depth(child) for child in branch.children if child.node.kind != "memory"]
    return 1 + max(below) if below else 0


class _Rows(NamedTuple):
    """Positions of branches: a page, the boxes by node, and the height of the lowest row."""

    page: Page
    places: dict[str, DrawnBox]
    lift: float


def _place(rows: _Rows, branch: Branch, x: float, level: int) -> float:
    """Place a branch from `x` on, its top in row `level`; return its right end."""
    page, places, lift = rows
    children = [child for child in branch.children if child.node.kind != "memory"]
    memory = [child for child in branch.children if child.node.kind == "memory"]
    lines = label(branch.node)
    lines += [
        f"{label(m.node)[0]} {format_rate(m.node.endpoint.mem_Bps)}"
        for m in memory
        if m.node.endpoint
    ]
    box = DrawnBox(lines, kind_of(branch.node))
    box.height = 1.35 if len(lines) > 2 else 1.0
    page.boxes.append(box)
    places[branch.node.name] = box
    start = x
    groups: list[list[Branch]] = []
    for child in sorted(children, key=lambda c: kind_of(c.node) == "nic"):
        same = groups and not child.children and groups[-1][0].signature() == child.signature()
        if same and kind_of(child.node) == "nic":
            groups[-1].append(child)
        else:
            groups.append([child])
    centres: list[float] = []
    for group in groups:
        first = group[0]
        # GPUs are in the lowest row, above their links; all other leaves are directly below their switch.
        below = 0 if kind_of(first.node) in ("gpu", "host") else max(0, level - 1)
        if len(group) > 1:
            stack = DrawnBox(
                [ranges(label(item.node)[0] for item in group), *label(first.node)[1:]], "nic"
            )
            stack.x, stack.y = x + stack.width / 2, lift + below * ROW
            page.boxes.append(stack)
            for item in group:
                places[item.node.name] = stack
            x += stack.width + GAP
        else:
            x = _place(rows, first, x, below) + GAP
        low = places[first.node.name]
        centres.append(low.x)
    end = max(x - GAP if groups else x, start + box.width)
    middle = (centres[0] + centres[-1]) / 2 if centres else start + box.width / 2
    box.x = min(max(middle, start + box.width / 2), end - box.width / 2)
    box.y = lift + level * ROW
    for group in groups:
        low = places[group[0].node.name]
        for link in group[0].links:
            page.join(low, box, link, 1.2 if len(group) == 1 else 2.4)
    return end


def _sides(page: Page, machine: OutlinedMachine, places: dict[str, DrawnBox], y: float) -> None:
    """Draw links between CPUs above them, labelled with their type."""
    labels: dict[str, tuple[float, float]] = {}
    for link in machine.side_links:
        a, b = places.get(link.a), places.get(link.b)
        if a is None or b is None:
            continue
        height = min(0.35 + abs(a.x - b.x) / 30, 1.0)
        arch = Arch(a.x, b.x, y + a.height / 2, height, page.colour(link), 1.8, True)
        page.arches.append(arch)
        text = f"{link.count} x {link_name(link)}"
        if text not in labels or arch.end > labels[text][1]:
            labels[text] = ((a.x + b.x) / 2, arch.end)
    for number, (text, (x, top)) in enumerate(labels.items()):
        page.text(x, top + 0.25 + 0.4 * number, text, "small")


def _room_below(machine: OutlinedMachine) -> float:
    """Return the height of NVSwitches or arcs below the GPUs."""
    if machine.switches:
        return 1.0 + ROW * 0.9
    return 3.3 if machine.gpu_links else 0.6


def _gpu_links(
    page: Page, machine: OutlinedMachine, places: dict[str, DrawnBox], base: float, lift: float
) -> None:
    if machine.switches:
        _nvswitches(page, machine, places, base)
        return
    if not machine.gpu_links:
        return
    most = max(link.count for link in machine.gpu_links)
    ends = [box.x for box in places.values()]
    span = max(max(ends) - min(ends), 1.0)
    for link in sorted(machine.gpu_links, key=lambda link: link.count):
        a, b = places.get(link.a), places.get(link.b)
        if a is not None and b is not None:
            height = 0.4 + 2.2 * abs(a.x - b.x) / span
            width = 0.9 if link.count < most else 2.4
            width = 1.4 if most == 1 else width
            page.arches.append(Arch(a.x, b.x, lift - 0.5, height, page.colour(link), width, False))
    lowest = min((arch.end for arch in page.arches if not arch.up), default=base)
    counts = sorted({link.count for link in machine.gpu_links})
    first = machine.gpu_links[0].a
    own = [link for link in machine.gpu_links if first in (link.a, link.b)]
    text = f"arcs: {' or '.join(map(str, counts))} x {link_name(own[0])} between two GPUs"
    text += " (thin, thick)" if len(counts) == 2 else ""
    page.text(
        0.0, lowest - 0.45, f"{text}; {format_rate(total(own))} each way for each GPU", "note"
    )


def _nvswitches(
    page: Page, machine: OutlinedMachine, places: dict[str, DrawnBox], base: float
) -> None:
    gpus = [name for name in places if any(name in (k.a, k.b) for k in machine.gpu_links)]
    if not gpus:
        return
    left = min(places[name].x for name in gpus)
    right = max(places[name].x for name in gpus)
    shown = machine.switches
    boxes: dict[str, DrawnBox] = {}
    if len(shown) > MOST_SWITCHES:
        box = DrawnBox(
            [ranges(label(node)[0] for node in shown), f"{len(shown)} {label(shown[0])[-1]}"],
            "nvswitch",
        )
        boxes = {node.name: box for node in shown}
        page.boxes.append(box)
        members = [box]
    else:
        members = [DrawnBox(label(node), "nvswitch") for node in shown]
        page.boxes += members
        boxes = {node.name: box for node, box in zip(shown, members, strict=True)}
    need = sum(box.width for box in members) + GAP * (len(members) - 1)
    step = max(need, (right - left) * 0.9)
    middle = (left + right) / 2
    for number, box in enumerate(members):
        box.x = middle + (number + 0.5) / len(members) * step - step / 2
        box.y = base + 0.9
    drawn: set[tuple[float, float]] = set()
    trunk = 0.0
    per_gpu: dict[str, list[int]] = {}
    for link in machine.gpu_links:
        for one, other in ((link.a, link.b), (link.b, link.a)):
            if one in places and other in boxes:
                per_gpu.setdefault(one, []).append(link.count)
                key = (places[one].x, boxes[other].x)
                if key not in drawn:
                    drawn.add(key)
                    page.join(boxes[other], places[one], link, 0.7)
        if link.a in boxes and link.b in boxes:
            x1, x2 = boxes[link.a].x, boxes[link.b].x
            height = 0.3 + 0.5 * abs(x1 - x2) / max(step, 1.0)
            trunk = max(trunk, height - 0.2)
            page.arches.append(Arch(x1, x2, base + 0.4, height, page.colour(link), 0.9, False))
    first = per_gpu.get(gpus[0], [])
    split = (
        "/".join(map(str, first)) if len(set(first)) > 1 else f"{first[0]} each" if first else ""
    )
    own = [link for link in machine.gpu_links if gpus[0] in (link.a, link.b)]
    text = f"each GPU: {sum(first)} link{'s' if sum(first) > 1 else ''} ({split}), {format_rate(total(own))} each way"
    page.text(0.0, base - 0.1 - trunk, text, "note")


UNIT_INCH = 0.42
"""A box's height [inch]."""

FILL = {
    "cpu": "#dfe6f2",
    "pcie": "#ece7f6",
    "gpu": "#d8efd3",
    "host": "#d8efd3",
    "nic": "#fdebd0",
    "memory": "#f1f1f1",
    "nvswitch": "#cdebe4",
    "switch": "#fbdcdc",
    "machine": "#f4f6f9",
    "more": "#ffffff",
}
LEGEND_ROW = 0.62
TEXT_SIZES = {"title": 12.0, "small": 7.5}
ALIGNMENT = {"small": "center", "right": "right"}


def render(view: Outline) -> Figure:
    """Return the picture of a topology."""
    page = Page()
    bottom = 0.0
    for group in view.alike()[:2]:
        bottom = place_machine(page, group, view, bottom) + 1.4
    if view.tiers:
        place_network(page, view, bottom)
    return _paint(page)


def _paint(page: Page) -> Figure:
    left = min(box.x - box.width / 2 for box in page.boxes) - 0.4
    right = max(box.x + box.width / 2 for box in page.boxes) + 0.4
    right = max(right, left + 1 + max((text.width for text in page.texts), default=0))
    low = min(
        [box.y - box.height / 2 for box in page.boxes]
        + [text.y - 0.3 for text in page.texts]
        + [arch.end for arch in page.arches]
    )
    high = max([text.y + 0.5 for text in page.texts] + [box.y + 1 for box in page.boxes])
    longest = max((len(name) for name in page.legend), default=1)
    columns = max(1, min(len(page.legend), int((right - left) / (2.4 + 1.25 * CHAR * longest))))
    low -= 0.8 + LEGEND_ROW * -(-len(page.legend) // columns)
    figure = Figure(figsize=((right - left) * UNIT_INCH, (high - low) * UNIT_INCH))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(left, right)
    axes.set_ylim(low, high)
    axes.axis("off")
    _draw_links(axes, page)
    for box in page.boxes:
        _draw_box(axes, box)
    for text in page.texts:
        _draw_text(axes, text, left + 0.4)
    handles = [
        Line2D([], [], color=colour, linewidth=2.5, label=name)
        for name, colour in page.legend.items()
    ]
    if handles:
        axes.legend(handles=handles, loc="lower center", ncols=columns, fontsize=8, frameon=False)
    return figure


def _draw_links(axes: Axes, page: Page) -> None:
    for line in page.lines:
        axes.add_line(
            Line2D(
                [line.x1, line.x2],
                [line.y1, line.y2],
                color=line.colour,
                linewidth=line.width,
                zorder=1,
                alpha=0.8,
            )
        )
    for arch in page.arches:
        axes.add_patch(
            Arc(
                ((arch.x1 + arch.x2) / 2, arch.y),
                abs(arch.x2 - arch.x1),
                2 * arch.height,
                theta1=0 if arch.up else 180,
                theta2=180 if arch.up else 360,
                color=arch.colour,
                linewidth=arch.width,
                zorder=1,
                alpha=0.8,
            )
        )


def _draw_box(axes: Axes, box: DrawnBox) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (box.x - box.width / 2, box.y - box.height / 2),
            box.width,
            box.height,
            boxstyle="round,pad=0,rounding_size=0.12",
            facecolor=FILL[box.kind],
            edgecolor="#555555",
            linewidth=0.8,
            linestyle="--" if box.dashed else "-",
            zorder=2,
        )
    )
    step = 0.38
    for number, line in enumerate(box.lines):
        first = number == 0
        axes.text(
            box.x,
            box.y + (len(box.lines) - 1) / 2 * step - number * step,
            line,
            ha="center",
            va="center",
            zorder=3,
            fontsize=8 if first else 6.6,
            weight="bold" if first else "normal",
        )


def _draw_text(axes: Axes, text: Text, left: float) -> None:
    axes.text(
        left if text.style in ("title", "note") else text.x,
        text.y,
        text.words,
        fontsize=TEXT_SIZES.get(text.style, 8.5),
        ha=ALIGNMENT.get(text.style, "left"),
        va="center",
        weight="bold" if text.style == "title" else "normal",
        zorder=3,
    )
