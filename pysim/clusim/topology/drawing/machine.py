"""One machine: CPUs above the PCIe tree, GPUs and adapters in one row, NVSwitches or direct links below."""

from __future__ import annotations

from typing import NamedTuple

from clusim.base.units import format_rate
from clusim.topology.drawing.page import GAP, ROW, Arch, DrawnBox, Page, label
from clusim.topology.node import kind_of
from clusim.topology.outline import Branch, Outline, OutlinedMachine, link_name, total
from clusim.topology.render import ranges

MOST_SWITCHES = 12
MOST_ROOTS = 4


def place_machine(page: Page, group: list[OutlinedMachine], view: Outline, base: float) -> float:
    """Place a machine above the height `base`; return the height of its top."""
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
            f"  ({len(group)} alike: {names})" if len(group) > 1 else ""
        )
    height = 1.1 if machine.side_links else 0.4
    page.text(0.0, top + height, title, "title")
    return top + height + 0.6


def _depth(branch: Branch) -> int:
    """Return the rows of switches between a branch and its leaves."""
    below = [_depth(child) for child in branch.children if child.node.kind != "memory"]
    return 1 + max(below) if below else 0


class _Rows(NamedTuple):
    """Where branches are placed: a page, the boxes by node, and the height of the lowest row."""

    page: Page
    places: dict[str, DrawnBox]
    lift: float


def _place(rows: _Rows, branch: Branch, x: float, level: int) -> float:
    """Place a branch from `x` on, its top in row `level`; return where it ends."""
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
        # GPUs are in the lowest row, above their links; everything else is right below its switch.
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
    """Draw links between CPUs above them; the label says what they are."""
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
    """Return the room that NVSwitches or arcs take below the GPUs."""
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
