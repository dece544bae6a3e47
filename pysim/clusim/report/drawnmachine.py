"""System reconstructed from its wires: graph nodes, connections, groups of wires.

Histories of wires are merged over wires and time for pictures, with eight bits per value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clusim.results.bins import Bins
from clusim.results.result import Wires

Array = NDArray[Any]


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
    """

    nodes: list[str]
    kinds: list[str]
    num_endpoints: int
    source: Array
    target: Array

    def zones(self) -> list[str]:
        """Return the names of a cluster's nodes; empty if the system is not a cluster."""
        result = {zone_of(name) for name in self.nodes} - {""}
        return sorted(result, key=natural_key)

    def part(self, kept: Array) -> DrawnMachine:
        """Return the same nodes with some of the wires."""
        return replace(self, source=self.source[kept], target=self.target[kept])

    def folded(self) -> DrawnMachine:
        """Return the nodes of a cluster as endpoints, and the switches between them."""
        zones = self.zones()
        others = [i for i, name in enumerate(self.nodes) if not zone_of(name)]
        place = {zone: number for number, zone in enumerate(zones)}
        into = np.array([place.get(zone_of(name), -1) for name in self.nodes], np.int64)
        into[others] = len(zones) + np.arange(len(others))
        return DrawnMachine(
            [*zones, *(self.nodes[i] for i in others)],
            [*["machine"] * len(zones), *(self.kinds[i] for i in others)],
            len(zones),
            into[self.source],
            into[self.target],
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
    def of(cls, labels: list[str], classes: list[str], members: Sequence[Array]) -> WireGroups:
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
        sums = np.add.reduceat(values[self.wires], self.offset[:-1], axis=0)
        shape = (-1,) + (1,) * (values.ndim - 1)
        return np.asarray(sums / self.sizes.reshape(shape))

    def total(self, values: Array) -> Array:
        """Return the sum over every group of `values`, shape (wires, ...)."""
        return np.asarray(np.add.reduceat(values[self.wires], self.offset[:-1], axis=0))

    def largest(self, values: Array) -> Array:
        """Return the maximum over every group of `values`, shape (wires, ...)."""
        return np.asarray(np.maximum.reduceat(values[self.wires], self.offset[:-1], axis=0))


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that orders ``gpu10`` after ``gpu9``."""
    parts = re.split(r"(\d+)", name)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]


def zone_of(name: str) -> str:
    """Return the server of a graph node in a cluster: ``n3`` of ``n3/gpu5``, otherwise empty."""
    return name.rpartition("/")[0]


def own_name(name: str) -> str:
    """Return the name of a graph node within its server: ``gpu5`` of ``n3/gpu5``."""
    return name.rpartition("/")[2]


def machine_of(wires: Wires, nodes: Sequence[str] = ()) -> DrawnMachine:
    """Return the system connected by `wires`.

    `nodes` gives the order of ranks; the default is the order of names.
    """
    ends = [name.rsplit(".", 1)[0].split("->", 1) for name in wires.names]
    kinds: dict[str, str] = {}
    endpoints: set[str] = set()
    for (source, target), wire_class, leaves in zip(
        ends, wires.classes, wires.from_endpoint, strict=True
    ):
        from_kind, _, to_kind = wire_class.rsplit(" ", 1)[-1].partition("->")
        kinds.setdefault(source, from_kind)
        kinds.setdefault(target, to_kind)
        if leaves:
            endpoints.add(source)
    place = {name: i for i, name in enumerate(nodes)}
    known = all(name in place for name in endpoints)
    first = sorted(endpoints, key=place.__getitem__ if known else natural_key)
    order = first + sorted(kinds.keys() - endpoints, key=natural_key)
    index = {name: i for i, name in enumerate(order)}
    return DrawnMachine(
        order,
        [kinds[name] for name in order],
        len(first),
        np.array([index[source] for source, _ in ends], np.int64),
        np.array([index[target] for _, target in ends], np.int64),
    )


def span(names: Sequence[str]) -> str:
    """Return one name for several: ``gpu0..3`` for consecutive, ``gpu0 ... gpu6`` for other nodes."""
    first, last = names[0], names[-1]
    if len(names) == 1:
        return first
    a, b = re.fullmatch(r"(.*?)(\d+)", first), re.fullmatch(r"(.*?)(\d+)", last)
    if a and b and a[1] == b[1] and int(b[2]) - int(a[2]) == len(names) - 1:
        return f"{first}..{b[2]}"
    return f"{first} ... {last}"


def group_wires(machine: DrawnMachine, wires: Wires, limit: int) -> WireGroups:
    """Return at most about `limit` groups that cover every wire, sorted by class.

    Wires stay separate below the limit; otherwise parallel wires are grouped, then all wires of a class at
    one graph node, then those of consecutive graph nodes.
    """
    classes = list(dict.fromkeys(wires.classes))
    class_of = np.array([classes.index(name) for name in wires.classes], np.int64)
    order = np.lexsort((machine.target, machine.source, class_of))
    if len(order) <= limit:
        return WireGroups.of(
            [wires.names[w] for w in order],
            [wires.classes[w] for w in order],
            [order[i : i + 1] for i in range(len(order))],
        )
    keys = np.stack([class_of, machine.source, machine.target], axis=1)
    groups = _cut(order, keys)
    if len(groups) <= limit:
        return _named(machine, wires, groups)
    by_node: list[Array] = []
    for number in range(len(classes)):
        by_node += _at_nodes(machine, order[class_of[order] == number])
    if len(by_node) > limit:
        by_node = _merged(by_node, class_of, 1 << (-(-len(by_node) // limit) - 1).bit_length())
    return _named(machine, wires, by_node)


def _cut(order: Array, keys: Array) -> list[Array]:
    """Cut `order` where a key changes."""
    changes = np.flatnonzero((np.diff(keys[order], axis=0) != 0).any(axis=1)) + 1
    return np.split(order, changes)


def _at_nodes(machine: DrawnMachine, mine: Array) -> list[Array]:
    """Group the wires of one class by the end with more graph nodes, endpoints first."""
    source, target = machine.source[mine], machine.target[mine]
    use_target = len(np.unique(target)) > len(np.unique(source))
    key = target if use_target else source
    order = np.argsort(key, kind="stable")
    return _cut(mine[order], (machine.target if use_target else machine.source)[:, None])


def _merged(groups: list[Array], class_of: Array, count: int) -> list[Array]:
    """Join `count` consecutive groups of one class; powers of two fit common systems."""
    joined: list[Array] = []
    for number in dict.fromkeys(int(class_of[group[0]]) for group in groups):
        mine = [group for group in groups if class_of[group[0]] == number]
        joined += [np.concatenate(mine[i : i + count]) for i in range(0, len(mine), count)]
    return joined


def _named(machine: DrawnMachine, wires: Wires, groups: list[Array]) -> WireGroups:
    labels, classes = [], []
    for group in groups:
        sources = _names(machine, machine.source[group])
        targets = _names(machine, machine.target[group])
        labels.append(f"{sources}->{targets}")
        classes.append(wires.classes[int(group[0])])
    return WireGroups.of(labels, classes, groups)


def _names(machine: DrawnMachine, nodes: Iterable[int]) -> str:
    return span([machine.nodes[int(node)] for node in np.unique(np.fromiter(nodes, np.int64))])


if TYPE_CHECKING:
    pass

FULL = 255
"""Value of an eight-bit column that represents 1."""
MEASURES: dict[str, tuple[str, str]] = {
    "load": ("Load", "part of the time in which the wire was busy"),
    "peak": ("Load, fullest wire", "the same of the fullest wire of the row"),
    "credit": ("No credit", "part of the time the wire was idle only due to lack of credit"),
    "contended": ("Contended", "part of the time a packet waited while the wire served another"),
    "queue": ("Queue", "bytes queued for the wire, largest sample"),
}
"""Histories of wires: name -> (title, meaning)."""
_COUNTERS = {"load": "busy", "credit": "stall_credit", "contended": "stall_arbitration"}


@dataclass(frozen=True, slots=True)
class History:
    """Measures of groups of wires in time columns.

    Attributes
    ----------
    edge_ps : ndarray, shape (columns + 1,)
        Where columns start and end [ps].
    values : dict of ndarray of uint8, shape (groups, columns)
        One for each of `MEASURES`; `FULL` is 100 %, or `queue_max_bytes`. Without groups of several wires, ``peak`` is
        absent.
    queue_max_bytes : int
        Longest queue of all [bytes].
    """

    edge_ps: Array
    values: dict[str, Array]
    queue_max_bytes: int


def history(
    bins: Bins, groups: WireGroups, *, columns: int, from_ps: int = 0, until_ps: int | None = None
) -> History:
    """Return the history of `groups` between two times [ps].

    It has at most `columns` columns, each of an integer number of bins.
    """
    edge_ps = bins.edge_ps
    count = len(edge_ps) - 1
    if count < 1 or not len(groups):
        return History(np.zeros(1), {}, 0)
    low = int(np.clip(np.searchsorted(edge_ps, from_ps, "right") - 1, 0, count - 1))
    high = (
        count
        if until_ps is None
        else int(np.clip(np.searchsorted(edge_ps, until_ps), low + 1, count))
    )
    step = max(1, -(-(high - low) // columns))
    starts = np.arange(low, high, step)
    edges = np.append(edge_ps[starts], edge_ps[high])
    width = np.diff(edges).astype(np.float64)
    values: dict[str, Array] = {}
    for name, counter in _COUNTERS.items():
        table = np.add.reduceat(bins.wires[counter][:, :high], starts, axis=1)
        values[name] = _bytes(groups.mean(table) / width)
        if name == "load" and groups.sizes.max() > 1:
            values["peak"] = _bytes(groups.largest(table) / width)
    queue = groups.largest(np.maximum.reduceat(bins.wires["queue"][:, :high], starts, axis=1))
    longest = int(bins.wires["queue"].max(initial=0))
    values["queue"] = _bytes(queue / max(1, longest))
    return History(edges, values, longest)


def _bytes(part: Array) -> Array:
    """Return fractions of 1 as bytes; a nonzero fraction never becomes 0."""
    scaled = np.clip(np.rint(part * FULL), 0, FULL)
    return np.where((part > 0) & (scaled == 0), 1, scaled).astype(np.uint8)
