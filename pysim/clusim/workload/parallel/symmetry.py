"""Ranks at equal positions: nodes with equal wiring and equal links to the network.

**Model** Two nodes are equal if their graph nodes and links are equal and in equal order. Two nodes at
the same switches reach each other only through those switches, so any two of them are interchangeable,
with results equal to the picosecond. Where ranks are at different switches, positions are equal if the
nodes, the switches and links around them and the distances between them are; the choice of packets
between several equal paths then depends on the node, so equality is not proven.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric

ROUNDS = 4
"""Radius around a switch within which switches are compared [links]."""


class EqualPlace(NamedTuple):
    """Position of some ranks, equal for equal positions, with a flag for picosecond equality."""

    key: Any
    proved: bool


class EqualPlaces:
    """Positions of the ranks of a topology.

    Attributes
    ----------
    zone, local : list of int
        Node of every rank, and its number there.
    """

    def __init__(self, fabric: Fabric) -> None:
        arrays = arrays_of(fabric)
        several_nodes = fabric.num_zones > 1
        self.zone = [
            arrays.zone_of(r) if several_nodes else 0
            for r in range(fabric.num_ranks)
        ]
        self.local: list[int] = []
        counts: dict[int, int] = {}
        for zone in self.zone:
            self.local.append(counts.get(zone, 0))
            counts[zone] = self.local[-1] + 1
        self._kind = machine_kinds(fabric)
        self._twins = switched_machines(fabric)
        self._network = _Network(fabric, self._kind)
        self._spread: dict[tuple[int, ...], EqualPlace] = {}

    def of(self, ranks: tuple[int, ...]) -> EqualPlace:
        """Return the positions of ranks."""
        zones = tuple(dict.fromkeys(self.zone[rank] for rank in ranks))
        within = tuple(self.local[rank] for rank in ranks)
        if len(zones) == 1:
            if zones[0] in self._twins:
                # Any GPUs are equivalent, in the same order of their numbers.
                order = sorted(within)
                within = tuple(order.index(local) for local in within)
            return EqualPlace((self._kind.get(zones[0], -1), within), True)
        if zones not in self._spread:
            kinds = tuple(self._kind.get(zone, -1) for zone in zones)
            surroundings = self._network.surroundings(zones)
            self._spread[zones] = EqualPlace(
                (kinds, surroundings.key), surroundings.proved
            )
        spread, number = (
            self._spread[zones],
            {zone: i for i, zone in enumerate(zones)},
        )
        return EqualPlace(
            (spread.key, within, tuple(number[self.zone[r]] for r in ranks)),
            spread.proved,
        )

    def renaming(self, machines: dict[int, int]) -> Callable[[str], str]:
        """Return a function that renames graph nodes from these nodes to their images.

        Parameters
        ----------
        machines : dict
            Image of each node: an equal node.
        """
        switches = self._network.switches(machines)

        def name(node: str) -> str:
            machine, slash, local = node.partition("/")
            if not slash or not machine[1:].isdigit():
                return switches.get(node, node)
            zone = int(machine[1:])
            return f"n{machines.get(zone, zone)}/{local}"

        return name


class _Network:
    """Network between nodes: switches by their surroundings, and their distances."""

    def __init__(self, fabric: Fabric, kinds: dict[int, int]) -> None:
        zone_of = {node.name: node.zone for node in fabric.nodes}
        self._links: dict[str, list[tuple[str, Any]]] = {}
        self._ports: dict[int, list[tuple[str, str, Any]]] = {}
        colors: dict[str, int] = {}
        numbers: dict[Any, int] = {}
        for node in fabric.nodes:
            if node.zone < 0:
                own_shape = (
                    node.kind,
                    node.tier,
                    node.model,
                    node.latency_ps,
                    node.ports,
                )
                colors[node.name] = numbers.setdefault(own_shape, len(numbers))
                self._links[node.name] = []
        machines: dict[str, list[Any]] = {name: [] for name in colors}
        for link in fabric.links:
            shape = (
                link.count,
                str(link.rate),
                link.latency_ps,
                link.format,
                link.buffer_bytes,
            )
            for end, other in ((link.a, link.b), (link.b, link.a)):
                zone = zone_of[end]
                if zone_of[other] < 0 <= zone:
                    port = end.partition("/")[2]
                    self._ports.setdefault(zone, []).append((port, other, shape))
                    machines[other].append((kinds.get(zone, -1), port, shape))
                elif zone < 0 and zone_of[other] < 0:
                    self._links[end].append((other, shape))
        for _ in range(ROUNDS):
            numbers = {}
            colors = {
                name: numbers.setdefault(
                    repr(
                        (
                            color,
                            sorted(map(repr, machines[name])),
                            sorted(
                                repr((shape, colors[other]))
                                for other, shape in self._links[name]
                            ),
                        )
                    ),
                    len(numbers),
                )
                for name, color in colors.items()
            }
        self._colors = colors
        self._far: dict[frozenset[str], dict[str, int]] = {}

    def switches(self, machines: dict[int, int]) -> dict[str, str]:
        """Return the switches at the images of nodes, by the switches at the nodes."""
        result: dict[str, str] = {}
        for old, new in machines.items():
            ports = (
                sorted(self._ports.get(zone, []), key=lambda port: port[0])
                for zone in (old, new)
            )
            result |= {one[1]: two[1] for one, two in zip(*ports, strict=False)}
        return result

    def surroundings(self, zones: tuple[int, ...]) -> EqualPlace:
        """Return the links of nodes to the network and, across switches, to each other."""
        ports = [
            tuple(sorted(self._ports.get(zone, ()), key=repr)) for zone in zones
        ]
        kinds = dict.fromkeys(ports)
        if len(kinds) == 1 and ports[0]:
            return EqualPlace(self._shape(ports[0]), True)
        number = {node: index for index, node in enumerate(kinds)}
        shapes = tuple(map(self._shape, kinds))
        far = tuple(
            self._distance(one[1], two[1])
            for first in kinds
            for second in kinds
            if number[first] < number[second]
            for one in first
            for two in second
        )
        return EqualPlace(
            (tuple(number[node] for node in ports), shapes, far), False
        )

    def _shape(self, ports: Iterable[tuple[str, str, Any]]) -> tuple[Any, ...]:
        """Return the ports of a node with the kinds of switches there."""
        return tuple(
            (port, self._colors[switch], shape) for port, switch, shape in ports
        )

    def _distance(self, one: str, two: str) -> int:
        """Return the number of links between two switches, or -1 if they are not connected."""
        if one == two:
            return 0
        # Switches with the same neighbours are equally far from all others.
        neighbours = frozenset(other for other, _ in self._links[one])
        if neighbours not in self._far:
            far, queue = dict.fromkeys(neighbours, 1), deque(neighbours)
            while queue:
                at = queue.popleft()
                for other, _ in self._links[at]:
                    if other not in far:
                        far[other] = far[at] + 1
                        queue.append(other)
            self._far[neighbours] = far
        return self._far[neighbours].get(two, -1)


def machine_kinds(fabric: Fabric) -> dict[int, int]:
    """Return a number for every node, the same for equal graph nodes and links in equal order."""
    if fabric.num_zones < 2:
        return {0: 0}
    zone_of = {node.name: node.zone for node in fabric.nodes}
    shapes: dict[int, list[Any]] = {}
    for node in fabric.nodes:
        if node.zone >= 0:
            properties = (
                node.name.partition("/")[2],
                node.kind,
                node.latency_ps,
                node.endpoint is None,
                node.model,
            )
            shapes.setdefault(node.zone, []).append(
                (*properties, repr(node.endpoint))
            )
    for link in fabric.links:
        zone = zone_of[link.a]
        if zone >= 0 and zone == zone_of[link.b]:
            ends = (link.a.partition("/")[2], link.b.partition("/")[2])
            shapes[zone].append(
                (
                    *ends,
                    link.count,
                    str(link.rate),
                    link.latency_ps,
                    link.format,
                    link.buffer_bytes,
                )
            )
    numbers: dict[Any, int] = {}
    return {
        zone: numbers.setdefault(tuple(shape), len(numbers))
        for zone, shape in shapes.items()
    }


def switched_machines(fabric: Fabric) -> frozenset[int]:
    """Return the nodes whose GPUs share NVLink switches by equal links, and so are equal.

    This holds only for traffic across those switches: blocks communicate over them where they are the
    fastest path, which NVLink is.
    """
    arrays = arrays_of(fabric)
    crossbars = {n.name for n in fabric.nodes if n.tier == "switch" and n.zone >= 0}
    gpus = [fabric.nodes[arrays.node_of(rank)] for rank in range(fabric.num_ranks)]
    links: dict[str, list[Any]] = {gpu.name: [] for gpu in gpus}
    for link in fabric.links:
        for end, other in ((link.a, link.b), (link.b, link.a)):
            if other in crossbars and end in links:
                shape = (
                    other,
                    link.count,
                    str(link.rate),
                    link.latency_ps,
                    link.format,
                )
                links[end].append(shape)
    result: dict[int, set[Any]] = {}
    for gpu in gpus:
        own_links = tuple(sorted(map(repr, links[gpu.name])))
        result.setdefault(gpu.zone, set()).add((own_links, repr(gpu.endpoint)))
    return frozenset(
        zone
        for zone, shapes in result.items()
        if len(shapes) == 1 and next(iter(shapes))[0]
    )
