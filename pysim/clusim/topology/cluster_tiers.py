"""Cluster networks of switch tiers: rails, fat trees, planes, pairs of top-of-rack switches.

**Hardware** A scalable
unit of a DGX SuperPOD has as many nodes as a leaf has downlink ports, half of its ports being uplinks;
NIC i of each node is on leaf i. The uplinks of a leaf spread evenly over all spines. If there are
more leaves than a spine has ports, the leaves of one rail have separate spines, which cores join.
**Model** The number of
switches is the minimum for the ports, with the same number of cables from every leaf to each of its
spines and from every spine to each of its cores; this yields the counts of the SuperPOD reference
architectures. Cores without a given type or radix have more ports than one switch if the system needs them, as
modular (director) switches do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from clusim.base.errors import TopologyError
from clusim.topology.cluster_parts import Drawing, amount
from clusim.topology.schema import NetworkSpec


def draw_single(drawing: Drawing) -> None:
    """Connect all NICs to one switch."""
    needs = sum(map(len, drawing.nics))
    ports = drawing.parts.ports("leaf")
    if needs > ports:
        raise TopologyError(
            f"one switch has {ports} ports, needs {needs}; use kind rail or fat-tree, or a larger switch"
        )
    switch = drawing.switch("switch0", "leaf")
    for nic in (nic for machine in drawing.nics for nic in machine):
        drawing.nic(nic, switch)
    drawing.facts.append("1 switch")


@dataclass(frozen=True, slots=True)
class _Rails:
    """Groups of NICs: rails, NICs per rail and node, nodes per unit, number of units."""

    rails: int
    width: int
    unit: int
    units: int


def _units(drawing: Drawing, *, complete: bool) -> _Rails:
    spec, count = drawing.parts.spec, len(drawing.nics)
    used = len(drawing.nics[0])
    rails = spec.rails or used
    if used % rails:
        raise TopologyError(
            f"rails={rails}: does not divide the {used} NICs of a node"
        )
    width = used // rails
    ports = drawing.parts.ports("leaf")
    if spec.unit is not None:
        return _Rails(rails, width, spec.unit, ceil(count / spec.unit))
    lone = spec.spines == 0 or (
        rails == 1 and not complete and count * width <= ports
    )
    share = 0.0 if lone else _up_share(drawing)
    unit = int(ports / (1 + share) + 1e-9) // width
    if not unit:
        raise TopologyError(
            f"a leaf has {ports} ports, needs {width + ceil(width * share)} for one node;"
            " use more rails or a larger switch"
        )
    units = ceil(count / unit)
    return _Rails(rails, width, unit if complete else ceil(count / units), units)


def _up_share(drawing: Drawing) -> float:
    """Return the uplinks of a leaf per NIC on it."""
    return drawing.parts.uplinks_per_nic() / (
        drawing.parts.spec.oversubscription or 1.0
    )


def draw_rail(drawing: Drawing, *, complete: bool = False) -> None:
    """Connect NIC i of the nodes of a unit to leaf i.

    `complete` units have all their switches and cables.
    """
    spec, count = drawing.parts.spec, len(drawing.nics)
    plan = _units(drawing, complete=complete)
    grid = [
        [drawing.switch(f"leaf{unit}.{rail}", "leaf") for rail in range(plan.rails)]
        for unit in range(plan.units)
    ]
    leaves = [list(rail) for rail in zip(*grid, strict=True)]
    for number, machine in enumerate(drawing.nics):
        for index, nic in enumerate(machine):
            drawing.nic(nic, leaves[index % plan.rails][number // plan.unit])
    down = plan.unit * plan.width
    drawing.facts.append(
        f"{amount(plan.rails, 'rail')}, {amount(plan.units, 'unit')} of {amount(plan.unit, 'node')}"
    )
    if spec.spines == 0 and plan.units > 1:
        raise TopologyError(
            f"spines=0: {count} nodes need {plan.units} leaves per rail, and spines to join them;"
            f" without spines there are at most {plan.unit} nodes"
        )
    _join(drawing, leaves, down)


def draw_fat_tree(drawing: Drawing) -> None:
    """Connect all NICs of a node to one leaf, filling the leaves in order."""
    count, used = len(drawing.nics), len(drawing.nics[0])
    ports = drawing.parts.ports("leaf")
    room = (
        ports
        if count * used <= ports
        else int(ports / (1 + _up_share(drawing)) + 1e-9)
    )
    down = room // used * used if room >= used else room
    if not down:
        raise TopologyError(
            f"a leaf has {ports} ports, without ports for NICs; oversubscribe less"
        )
    down = min(down, (drawing.parts.spec.unit or down) * used)
    leaves = [
        drawing.switch(f"leaf{i}", "leaf") for i in range(ceil(count * used / down))
    ]
    nics = (nic for machine in drawing.nics for nic in machine)
    for index, nic in enumerate(nics):
        drawing.nic(nic, leaves[index // down])
    _join(drawing, [leaves], min(down, count * used))


def draw_multi_plane(drawing: Drawing) -> None:
    """Connect NIC i of all nodes by a separate fat tree, plane i."""
    used = len(drawing.nics[0])
    rails = [[[machine[rail]] for machine in drawing.nics] for rail in range(used)]
    _draw_planes(drawing, rails, draw_fat_tree)


def draw_dual_tor(drawing: Drawing) -> None:
    """Connect both ports of every NIC to the leaves of its rail in two separate planes."""
    _draw_planes(drawing, [drawing.nics, drawing.nics], draw_rail)


def _draw_planes(
    drawing: Drawing, planes: list[list[list[str]]], draw: Callable[[Drawing], None]
) -> None:
    """Draw a network around the NICs of every plane; no switch joins two planes."""
    for number, nics in enumerate(planes):
        plane = Drawing(drawing.parts, nics, plane=f"plane{number}/")
        draw(plane)
        drawing.nodes += plane.nodes
        drawing.links += plane.links
        facts = plane.facts
    drawing.facts.append(
        f"{amount(len(planes), 'plane')}, each with {', '.join(facts)}"
    )


def _join(drawing: Drawing, rails: list[list[str]], down: int) -> None:
    """Join leaves by spines, or spines and cores; `down` is the number of NICs on a full leaf."""
    spec, ports = drawing.parts.spec, drawing.parts.ports("leaf")
    leaves = [leaf for unit in zip(*rails, strict=True) for leaf in unit]
    drawing.facts.append(amount(len(leaves), "leaf", "leaves"))
    up = spec.uplinks or max(1, ceil(down * _up_share(drawing) - 1e-9))
    alone = spec.spines == 0 or len(leaves) == 1
    if down + (0 if alone else up) > ports:
        raise TopologyError(
            f"a leaf has {ports} ports, needs {down + up}: {down} for NICs and {up} uplinks;"
            " use smaller units, fewer uplinks or a larger switch"
        )
    if alone:
        return
    room = ports - down
    spine_ports = drawing.parts.ports("spine")
    levels = spec.levels or (
        2 if len(leaves) <= spine_ports and spec.cores is None else 3
    )
    if levels == 1:
        raise TopologyError(
            f"levels=1: {len(leaves)} leaves need spines; use levels 2 or 3"
        )
    if levels == 2:
        spines, cables = _spread(spec, len(leaves), up, spine_ports, room)
        names = [drawing.switch(f"spine{i}", "spine") for i in range(spines)]
        for leaf in leaves:
            for spine in names:
                drawing.trunk("spine", leaf, spine, cables)
        drawing.facts.append(amount(spines, "spine"))
        return
    _three_levels(drawing, rails, up, room)


def _spread(
    spec: NetworkSpec, leaves: int, up: int, ports: int, room: int
) -> tuple[int, int]:
    """Return the number of spines for `leaves` leaves, and the cables per leaf and spine.

    As few spines as possible; all leaves have the same number of cables to all spines, at least `up` in all.
    """
    if spec.spines is not None:
        cables = ceil(up / spec.spines)
        if spec.spines * cables > room:
            raise TopologyError(
                f"spines={spec.spines}: {up} uplinks of a leaf do not spread over them evenly;"
                f" {spec.spines} x {cables} are more than the {room} ports left"
            )
        if leaves * cables > ports:
            raise TopologyError(
                f"a spine has {ports} ports, needs {leaves * cables}: {cables} for each of"
                f" {leaves} leaves; use more spines or a larger switch"
            )
        return spec.spines, cables
    for spines in range(max(1, ceil(leaves * up / ports)), up + 1):
        cables = ceil(up / spines)
        if leaves * cables <= ports and spines * cables <= room:
            return spines, cables
    raise TopologyError(
        f"a spine has {ports} ports, needs {leaves}: one for each leaf; use levels 3 or a larger switch"
    )


def _three_levels(
    drawing: Drawing, rails: list[list[str]], up: int, room: int
) -> None:
    """Add separate spines for the leaves of each rail (or pod), and cores that join them."""
    spec, ports = drawing.parts.spec, drawing.parts.ports("spine")
    core_share = 1 / (spec.core_oversubscription or 1.0)
    below = int(ports / (1 + core_share) + 1e-9)
    longest = max(map(len, rails))
    size = ceil(longest / ceil(longest / below))
    blocks = [
        rail[lo : lo + size] for rail in rails for lo in range(0, len(rail), size)
    ]
    per_block = spec
    if spec.spines is not None:
        if spec.spines % len(blocks):
            raise TopologyError(
                f"spines={spec.spines}: must be a multiple of the {len(blocks)} blocks of leaves"
            )
        per_block = spec.model_copy(update={"spines": spec.spines // len(blocks)})
    spines, cables = _spread(per_block, size, up, below, room)
    above = max(1, ceil(size * cables * core_share - 1e-9))
    core_ports = drawing.parts.ports("core")
    group_size, core_cables = _core_groups(drawing, len(blocks), spines, above)
    groups, per_group = spines // group_size, above // core_cables
    names = [
        [drawing.switch(f"spine{b}.{i}", "spine") for i in range(spines)]
        for b in range(len(blocks))
    ]
    cores = [
        [drawing.switch(f"core{g}.{i}", "core") for i in range(per_group)]
        for g in range(groups)
    ]
    for block, group in zip(blocks, names, strict=True):
        for leaf in block:
            for spine in group:
                drawing.trunk("spine", leaf, spine, cables)
    for group in names:
        for index, spine in enumerate(group):
            for core in cores[index // group_size]:
                drawing.trunk("core", spine, core, core_cables)
    modular = drawing.parts.ports("core")
    kind = (
        f" (modular switches of {modular} ports, assumed)"
        if modular != core_ports
        else ""
    )
    drawing.facts.append(
        f"{spines * len(blocks)} spines, {amount(groups * per_group, 'core')}{kind}"
    )


def _core_groups(
    drawing: Drawing, blocks: int, spines: int, above: int
) -> tuple[int, int]:
    """Return the spines per block that share cores, and the cables from a spine to each core."""
    spec, ports = drawing.parts.spec, drawing.parts.ports("core")
    cores = spec.cores
    if blocks > ports and spec.core_switch is None and spec.radix is None:
        switches = drawing.parts.switches
        core = replace(switches["core"], ports=blocks)
        drawing.parts = replace(drawing.parts, switches={**switches, "core": core})
        ports = blocks
    choices = [
        (group_size * cables, group_size, cables)
        for group_size in range(1, spines + 1)
        if spines % group_size == 0
        for cables in range(1, above + 1)
        if above % cables == 0 and blocks * group_size * cables <= ports
    ]
    if not choices:
        raise TopologyError(
            f"a core has {ports} ports, needs {blocks}: one for each block of spines;"
            " use a larger switch or fewer nodes"
        )
    if cores is None:
        _, group_size, cables = max(choices)
        return group_size, cables
    counts = {spines // t * (above // c): (t, c) for _, t, c in sorted(choices)}
    if cores not in counts:
        raise TopologyError(
            f"cores={cores}: {spines} spines of a block with {above} uplinks each do not spread over them;"
            f" possible are {', '.join(map(str, sorted(counts)[:8]))}"
        )
    return counts[cores]
