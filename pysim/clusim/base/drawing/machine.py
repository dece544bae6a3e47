"""Graph nodes and wires of a system to draw, and groups of wires."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from clusim.base.arrays import Array


@dataclass(frozen=True, slots=True)
class DrawnMachine:
    """Graph nodes and wires of a system.

    Attributes
    ----------
    nodes, kinds : list of str
        Name and kind of every node; endpoints come first, in the order of their ranks.
    num_endpoints : int
        Number of endpoints.
    source, target : ndarray, shape (wires,)
        Nodes of every wire.
    classes : list of str
        Class of every wire: its kind of link, and the kinds of its ends.
    """

    nodes: list[str]
    kinds: list[str]
    num_endpoints: int
    source: Array
    target: Array
    classes: list[str]

    @property
    def neighbours(self) -> list[set[int]]:
        """Neighbours of every node."""
        neighbours: list[set[int]] = [set() for _ in self.nodes]
        for a, b in zip(self.source.tolist(), self.target.tolist(), strict=True):
            neighbours[a].add(b)
            neighbours[b].add(a)
        return neighbours

    def zones(self) -> list[str]:
        """Return the names of a cluster's nodes; empty if the system is not a cluster."""
        return sorted({zone_of(name) for name in self.nodes} - {""}, key=natural_key)

    def in_order(self, nodes: Sequence[int]) -> list[int]:
        """Return nodes by name, ``gpu10`` after ``gpu9``."""
        return sorted(nodes, key=lambda node: natural_key(self.nodes[node]))

    def num_lines(self, cells: list[list[list[int]]]) -> int:
        """Return the number of directed lines if each cell of graph nodes is one box."""
        cell_of = np.zeros(len(self.nodes), np.int64)
        for number, cell in enumerate(cell for row in cells for cell in row):
            cell_of[cell] = number
        a, b = cell_of[self.source], cell_of[self.target]
        return len(np.unique(np.stack([a, b], axis=1)[a != b], axis=0))

    def part(self, mask: Array) -> DrawnMachine:
        """Return the same nodes with the wires selected by a mask."""
        classes = [self.classes[wire] for wire in np.flatnonzero(mask)]
        return replace(
            self, source=self.source[mask], target=self.target[mask], classes=classes
        )

    def collapse_cluster(self) -> DrawnMachine:
        """Return the nodes of a cluster as endpoints, and the switches between them."""
        zones = self.zones()
        unzoned = [i for i, name in enumerate(self.nodes) if not zone_of(name)]
        place = {zone: number for number, zone in enumerate(zones)}
        into = np.array(
            [place.get(zone_of(name), -1) for name in self.nodes], np.int64
        )
        into[unzoned] = len(zones) + np.arange(len(unzoned))
        return DrawnMachine(
            [*zones, *(self.nodes[i] for i in unzoned)],
            [*["node"] * len(zones), *(self.kinds[i] for i in unzoned)],
            len(zones),
            into[self.source],
            into[self.target],
            self.classes,
        )


def machine_of(
    names: Sequence[str],
    classes: list[str],
    from_endpoint: Array,
    nodes: Sequence[str] = (),
) -> DrawnMachine:
    """Return the system connected by wires.

    Parameters
    ----------
    names, classes : sequence of str
        Name of every wire, ``gpu0->nvswitch0.2``, and its class, ``nvlink gpu->nvswitch``.
    from_endpoint : ndarray of bool
        True for wires that leave endpoints.
    nodes : sequence of str
        Order of ranks; the default is the order of names.
    """
    ends = [name.rsplit(".", 1)[0].split("->", 1) for name in names]
    kinds: dict[str, str] = {}
    for (source, target), wire_class in zip(ends, classes, strict=True):
        from_kind, _, to_kind = wire_class.rsplit(" ", 1)[-1].partition("->")
        kinds.setdefault(source, from_kind)
        kinds.setdefault(target, to_kind)
    endpoints = {
        end[0] for end, leaves in zip(ends, from_endpoint, strict=True) if leaves
    }
    place = {name: i for i, name in enumerate(nodes)}
    first = sorted(
        endpoints,
        key=place.__getitem__ if endpoints <= place.keys() else natural_key,
    )
    order = first + sorted(kinds.keys() - endpoints, key=natural_key)
    index = {name: i for i, name in enumerate(order)}
    a, b = (
        np.array([index[end[side]] for end in ends], np.int64) for side in (0, 1)
    )
    return DrawnMachine(
        order, [kinds[name] for name in order], len(first), a, b, classes
    )


@dataclass(frozen=True, slots=True)
class WireGroups:
    """Sets of wires that are shown as one row or one line.

    Attributes
    ----------
    labels, classes : list of str
        Name of every group, and the class of its wires.
    offset, wires : ndarray
        Group `i` is ``wires[offset[i]:offset[i + 1]]``.
    """

    labels: list[str]
    classes: list[str]
    offset: Array
    wires: Array

    @classmethod
    def of(
        cls, labels: list[str], classes: list[str], members: Sequence[Array]
    ) -> WireGroups:
        """Return groups of the wires in `members`."""
        offset = np.cumsum([0, *map(len, members)])
        wires = np.concatenate(members) if members else np.zeros(0, np.int64)
        return cls(labels, classes, offset, wires.astype(np.int64))

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self.labels)

    @property
    def sizes(self) -> Array:
        """Number of wires of every group."""
        return np.diff(self.offset)

    def mean(self, values: Array) -> Array:
        """Return the mean over every group of `values`, shape (wires, ...)."""
        shape = (-1,) + (1,) * (values.ndim - 1)
        return np.asarray(self.total(values) / self.sizes.reshape(shape))

    def total(self, values: Array) -> Array:
        """Return the sum over every group of `values`, shape (wires, ...)."""
        return np.asarray(
            np.add.reduceat(values[self.wires], self.offset[:-1], axis=0)
        )

    def largest(self, values: Array) -> Array:
        """Return the maximum over every group of `values`, shape (wires, ...)."""
        return np.asarray(
            np.maximum.reduceat(values[self.wires], self.offset[:-1], axis=0)
        )


def cut(order: Array, keys: Array) -> list[Array]:
    """Cut `order`, wires sorted by their `keys`, shape (wires, ...), where a key changes."""
    changes = np.flatnonzero((np.diff(keys[order], axis=0) != 0).any(axis=1)) + 1
    return np.split(order, changes) if len(order) else []


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that orders ``gpu10`` after ``gpu9``."""
    parts = re.split(r"(\d+)", name)
    return [
        (1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts
    ]


def zone_of(name: str) -> str:
    """Return the server of a graph node in a cluster: ``n3`` of ``n3/gpu5``, otherwise empty."""
    return name.rpartition("/")[0]


def own_name(name: str) -> str:
    """Return the name of a graph node within its server: ``gpu5`` of ``n3/gpu5``."""
    return name.rpartition("/")[2]


def span(names: Sequence[str]) -> str:
    """Return one name for several: ``gpu0..3`` for consecutive, ``gpu0 ... gpu6`` for other nodes."""
    first, last = names[0], names[-1]
    if len(names) == 1:
        return first
    a, b = re.fullmatch(r"(.*?)(\d+)", first), re.fullmatch(r"(.*?)(\d+)", last)
    if a and b and a[1] == b[1] and int(b[2]) - int(a[2]) == len(names) - 1:
        return f"{first}..{b[2]}"
    return f"{first} ... {last}"


def common_prefix(names: Sequence[str]) -> str:
    """Return the common prefix of names that are followed by numbers: ``gpu`` of ``gpu0``, ``gpu1``."""
    matches = [re.fullmatch(r"(.*?)([\d.]+)", name) for name in names]
    prefixes = {match[1] for match in matches if match}
    return prefixes.pop() if all(matches) and len(prefixes) == 1 else ""
