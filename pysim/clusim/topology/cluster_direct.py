"""Networks of switches with neighbours instead of levels: dragonfly and torus.

**Hardware** Slingshot: groups of fully connected switches, and cables between any two groups; a switch
has 16 NICs, 31 local and up to 17 global links of its 64 ports. A torus has a switch per node and cables
to the next node in each dimension.
**Model** The NICs of a node are on different switches of its group. Dragonflies route minimally, with
one global link at most; tori route in dimension order. Both change to a second virtual channel on the
path (global links, wrap-around links), so that buffers cannot wait in a cycle.
**Not modelled** Non-minimal (Valiant) paths.
**Parameters** `NetworkSpec`: groups, group_switches, switch_nics, global_links, local_links; shape,
torus_links.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from clusim.base.errors import TopologyError
from clusim.topology.cluster_parts import UNLIMITED, Drawing, amount

GLOBAL_WEIGHT = 4
"""Hops a global link counts as, so that no path uses two global links."""

NICS_PER_SWITCH = 16
"""NICs of a switch without a port limit."""


@dataclass(frozen=True, slots=True)
class _Groups:
    """Groups of a dragonfly: number, switches and nodes of each, local and global links."""

    count: int
    size: int
    machines: int
    local: int
    links: int


def _groups(drawing: Drawing) -> _Groups:
    """Return the groups that hold all nodes; raise `TopologyError` if they cannot be joined."""
    spec, ports = drawing.parts.spec, drawing.parts.ports("leaf")
    count, used = len(drawing.nics), len(drawing.nics[0])
    nics = spec.switch_nics or (max(1, ports // 4) if ports < UNLIMITED else NICS_PER_SWITCH)
    local = spec.local_links or 1
    size = spec.group_switches or min(2 * nics, ceil(count * used / nics))
    if size * nics < used:
        raise TopologyError(f"a group has room for {size * nics} NICs, needs {used} for one node")
    machines = size * nics // used
    groups = spec.groups or ceil(count / machines)
    if groups * machines < count:
        raise TopologyError(
            f"groups={groups}: {amount(size, 'switch', 'switches')} in each take {groups * machines} nodes,"
            f" needs {count}"
        )
    links = spec.global_links or (nics if groups > 1 else 0)
    needs = nics + (size - 1) * local + links
    if needs > ports:
        raise TopologyError(
            f"a switch has {ports} ports, needs {needs}: {nics} for NICs, {(size - 1) * local} local"
            f" and {links} global links; use smaller groups"
        )
    if groups > size * links + 1:
        raise TopologyError(
            f"{groups} groups of {size} switches with {links} global links each:"
            f" at most {size * links + 1} can be joined"
        )
    return _Groups(groups, size, ceil(count / groups), local, links)


def draw_dragonfly(drawing: Drawing) -> None:
    """Build groups of switches, fully connected inside, with links between any two groups."""
    plan = _groups(drawing)
    switches = [
        [drawing.switch(f"switch{g}.{i}", "leaf", "switch") for i in range(plan.size)]
        for g in range(plan.count)
    ]
    for number, machine in enumerate(drawing.nics):
        group, place = divmod(number, plan.machines)
        for index, nic in enumerate(machine):
            drawing.nic(nic, switches[group][(place * len(machine) + index) % plan.size])
    for own in switches:
        for i, j in product(range(plan.size), range(plan.size)):
            if i < j:
                drawing.trunk("local", own[i], own[j], plan.local, dim=1)
    _global(drawing, switches, plan.links)
    drawing.facts.append(
        f"{amount(plan.count, 'group')} of {amount(plan.size, 'switch', 'switches')}"
    )


def _global(drawing: Drawing, switches: list[list[str]], links: int) -> None:
    """Join any two groups by as many cables as the ports allow, spread over their switches."""
    groups = len(switches)
    size = len(switches[0])
    copies = size * links // (groups - 1) if groups > 1 else 0
    for i, j in product(range(groups), range(groups)):
        for copy in range(copies if i < j else 0):
            one = switches[i][(copy * (groups - 1) + j - 1) % size]
            two = switches[j][(copy * (groups - 1) + i) % size]
            drawing.trunk("global", one, two, dim=1, weight=GLOBAL_WEIGHT, dateline=(True, True))


def draw_torus(drawing: Drawing) -> None:
    """Add a switch with links to its neighbours for every node.

    The last coordinate varies fastest.
    """
    spec, ports = drawing.parts.spec, drawing.parts.ports("leaf")
    count, used = len(drawing.nics), len(drawing.nics[0])
    shape = tuple(spec.shape or _cubic(count, 3))
    text = "x".join(map(str, shape))
    if prod(shape) != count:
        raise TopologyError(f"shape {text}: has {prod(shape)} places, needs {count}")
    ends = sum(min(2, length - 1) for length in shape)
    share = drawing.parts.uplinks_per_nic()
    cables = spec.torus_links or max(1, ceil(used * share / max(1, ends) - 1e-9))
    if used + ends * cables > ports:
        raise TopologyError(
            f"a switch has {ports} ports, needs {used + ends * cables}: {used} for NICs and"
            f" {cables} for each of {ends} neighbours; use fewer torus_links"
        )
    places = list(product(*(range(length) for length in shape)))
    names = {
        place: drawing.switch("switch" + ".".join(map(str, place)), "leaf", "switch")
        for place in places
    }
    for place, machine in zip(places, drawing.nics, strict=True):
        for nic in machine:
            drawing.nic(nic, names[place])
    for place in places:
        for axis, length in enumerate(shape):
            last = place[axis] == length - 1
            if last and length <= 2:
                continue
            following = (*place[:axis], (place[axis] + 1) % length, *place[axis + 1 :])
            drawing.trunk(
                "torus", names[place], names[following], cables, dim=axis + 1, dateline=(last, last)
            )
    drawing.dimension_order = True
    drawing.facts.append(f"torus {text}, {amount(cables, 'link')} to each neighbour")


def _cubic(count: int, dimensions: int) -> list[int]:
    """Return the `dimensions` most equal factors of a number, largest first."""
    if dimensions == 1:
        return [count]
    best = max(
        (
            factor
            for factor in range(1, count + 1)
            if count % factor == 0 and factor**dimensions <= count
        ),
    )
    return [*_cubic(count // best, dimensions - 1), best]
