"""The network of a cluster, or of plain hosts: a row for each tier, a box for each machine."""

from __future__ import annotations

from clusim.topology.drawing.page import GAP, ROW, Arch, DrawnBox, Page, label
from clusim.topology.model import Link
from clusim.topology.node import Node, kind_of
from clusim.topology.outline import Outline

MOST_MACHINES = 8
MOST_SWITCHES = 16


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
            [f"n{rest[0].zone}..{rest[-1].zone}", f"{len(rest)} more machines"], "more", dashed=True
        )
        boxes |= {f"machine {machine.zone}": box for machine in rest}
        row.append(box)
    return row, boxes


def _tier_boxes(tier: str, nodes: list[Node]) -> tuple[list[DrawnBox], dict[str, DrawnBox]]:
    most = MOST_SWITCHES
    shown = nodes if len(nodes) <= most else nodes[: most - 2]
    row = [DrawnBox(label(node), kind_of(node)) for node in shown]
    boxes = {node.name: box for node, box in zip(shown, row, strict=True)}
    rest = nodes[len(shown) :]
    if rest:
        box = DrawnBox([f"{len(rest)} more", tier], "more", dashed=True)
        boxes |= {node.name: box for node in rest}
        row.append(box)
    return row, boxes
