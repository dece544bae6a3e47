"""Rows of wires, and their histories, merged over wires and time for pictures, with eight bits per value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clusim.base.arrays import Array
from clusim.base.drawing.machine import DrawnMachine, WireGroups, cut, span
from clusim.results.bins import Bins
from clusim.results.result import Wires

FULL = 255
"""Value of an eight-bit column that represents 1."""
MEASURES: dict[str, tuple[str, str]] = {
    "load": ("Load", "part of the time in which the wire was busy"),
    "peak": ("Load, fullest wire", "the same of the fullest wire of the row"),
    "credit": (
        "No credit",
        "part of the time the wire was idle only due to lack of credit",
    ),
    "contended": (
        "Contended",
        "part of the time a packet waited while the wire served another",
    ),
    "queue": ("Queue", "bytes queued for the wire, largest sample"),
}
"""Histories of wires: name -> (title, meaning)."""
_COUNTERS = {
    "load": "busy",
    "credit": "stall_credit",
    "contended": "stall_arbitration",
}


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
    groups = cut(order, keys)
    if len(groups) <= limit:
        return _label_groups(machine, wires, groups)
    by_node: list[Array] = []
    for number in range(len(classes)):
        by_node += _at_nodes(machine, order[class_of[order] == number])
    if len(by_node) > limit:
        by_node = _join_groups(
            by_node, class_of, 1 << (-(-len(by_node) // limit) - 1).bit_length()
        )
    return _label_groups(machine, wires, by_node)


def _at_nodes(machine: DrawnMachine, mine: Array) -> list[Array]:
    """Group the wires of one class by the end with more graph nodes, endpoints first."""
    source, target = machine.source[mine], machine.target[mine]
    use_target = len(np.unique(target)) > len(np.unique(source))
    key = target if use_target else source
    order = np.argsort(key, kind="stable")
    return cut(
        mine[order], (machine.target if use_target else machine.source)[:, None]
    )


def _join_groups(groups: list[Array], class_of: Array, count: int) -> list[Array]:
    """Join `count` consecutive groups of one class; powers of two fit common systems."""
    joined: list[Array] = []
    for number in dict.fromkeys(int(class_of[group[0]]) for group in groups):
        mine = [group for group in groups if class_of[group[0]] == number]
        joined += [
            np.concatenate(mine[i : i + count]) for i in range(0, len(mine), count)
        ]
    return joined


def _label_groups(
    machine: DrawnMachine, wires: Wires, groups: list[Array]
) -> WireGroups:
    labels, classes = [], []
    for group in groups:
        sources = _names(machine, machine.source[group])
        targets = _names(machine, machine.target[group])
        labels.append(f"{sources}->{targets}")
        classes.append(wires.classes[int(group[0])])
    return WireGroups.of(labels, classes, groups)


def _names(machine: DrawnMachine, nodes: Array) -> str:
    return span([machine.nodes[node] for node in np.unique(nodes).tolist()])


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
    bins: Bins,
    groups: WireGroups,
    *,
    columns: int,
    from_ps: int = 0,
    until_ps: int | None = None,
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
    queue = groups.largest(
        np.maximum.reduceat(bins.wires["queue"][:, :high], starts, axis=1)
    )
    longest = int(bins.wires["queue"].max(initial=0))
    values["queue"] = _bytes(queue / max(1, longest))
    return History(edges, values, longest)


def _bytes(part: Array) -> Array:
    """Return fractions of 1 as bytes; a nonzero fraction never becomes 0."""
    scaled = np.clip(np.rint(part * FULL), 0, FULL)
    return np.where((part > 0) & (scaled == 0), 1, scaled).astype(np.uint8)
