"""Rows of an image: graph nodes, endpoints, units, formats and wires of a topology, by column.

Names and classes of wires, computed on request: a large topology has millions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, overload

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import TopologyError
from clusim.base.match import turns
from clusim.engine.abi import CLASSES, NONE, TABLES, Kind, NodeFlag, NodeKind
from clusim.engine.image import empty
from clusim.topology.model import Fabric, Link
from clusim.topology.node import NETWORK, UNBOUNDED_BYTES, Endpoint, Unit
from clusim.topology.packets import NO_LIMIT, Format


class WireNames(Sequence[str]):
    """Wire names such as ``gpu0->nvswitch1.0``: ends, and number among parallel wires."""

    def __init__(
        self, nodes: Sequence[str], node_index: Mapping[str, int], wires: Array
    ) -> None:
        """Name `wires` (rows of an image) by the names of nodes."""
        self._nodes, self._node_index, self._wires = nodes, node_index, wires

    def __len__(self) -> int:
        return len(self._wires)

    @overload
    def __getitem__(self, wire: int) -> str: ...
    @overload
    def __getitem__(self, wire: slice) -> list[str]: ...
    def __getitem__(self, wire: int | slice) -> str | list[str]:
        if isinstance(wire, slice):
            return list(self._names(self._wires[wire]))
        row = self._wires[wire]
        return (
            f"{self._nodes[row['src']]}->{self._nodes[row['dst']]}.{row['ordinal']}"
        )

    def __iter__(self) -> Iterator[str]:
        return self._names(self._wires)

    def _names(self, rows: Array) -> Iterator[str]:
        columns = (rows[name].tolist() for name in ("src", "dst", "ordinal"))
        nodes = self._nodes
        for src, dst, ordinal in zip(*columns, strict=True):
            yield f"{nodes[src]}->{nodes[dst]}.{ordinal}"

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def index(self, name: str, start: int = 0, stop: int | None = None) -> int:
        """Return the wire called `name`; raise `ValueError` if it does not exist."""
        wire = self._find(name)
        if wire is None or not start <= wire < (len(self) if stop is None else stop):
            raise ValueError(f"{name!r} is not a wire")
        return wire

    def _find(self, name: str) -> int | None:
        ends, _, ordinal = name.rpartition(".")
        if not (ordinal.isascii() and ordinal.isdecimal()):
            return None
        at = ends.find("->")
        while at >= 0:
            src, dst = (
                self._node_index.get(ends[:at]),
                self._node_index.get(ends[at + 2 :]),
            )
            if src is not None and dst is not None:
                same = (self._wires["src"] == src) & (self._wires["dst"] == dst)
                parallel = np.flatnonzero(same)
                if int(ordinal) < len(parallel) and ordinal == str(int(ordinal)):
                    return int(parallel[int(ordinal)])
            at = ends.find("->", at + 1)
        return None


class WireClasses(Sequence[str]):
    """Class of every wire, the class of its link."""

    def __init__(self, names: Sequence[str], codes: Array) -> None:
        """Set the class of wire w to ``names[codes[w]]``."""
        self.names = tuple(names)
        self.codes = codes

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, wire: int) -> str: ...
    @overload
    def __getitem__(self, wire: slice) -> list[str]: ...
    def __getitem__(self, wire: int | slice) -> str | list[str]:
        if isinstance(wire, slice):
            return [self.names[code] for code in self.codes[wire].tolist()]
        return self.names[int(self.codes[wire])]

    def __iter__(self) -> Iterator[str]:
        return map(self.names.__getitem__, self.codes.tolist())


def lower_nodes(fabric: Fabric) -> tuple[Array, Array, Array]:
    """Return the rows of nodes, endpoints and reduction units."""
    nodes = empty("nodes", len(fabric.nodes))
    ends = [i for i, node in enumerate(fabric.nodes) if node.endpoint is not None]
    with_unit = [i for i, node in enumerate(fabric.nodes) if node.unit is not None]
    endpoints, units = empty("endpoints", len(ends)), empty("units", len(with_unit))
    nodes["latency_ps"] = [node.latency_ps for node in fabric.nodes]
    nodes["kind"] = [
        NodeKind.SWITCH if node.endpoint is None else NodeKind.ENDPOINT
        for node in fabric.nodes
    ]
    nodes["flags"] = [
        NodeFlag.STORE_FORWARD
        * (node.store_and_forward or node.endpoint is not None)
        + NodeFlag.BRIDGE * (node.kind == "nic")
        for node in fabric.nodes
    ]
    zone = np.array([node.zone for node in fabric.nodes], np.int64)
    nodes["zone"] = np.where(zone == NETWORK, NONE, zone)
    nodes["shared_bytes"] = [
        node.buffer_bytes
        if node.name in fabric.dropping and node.unit is None
        else 0
        for node in fabric.nodes
    ]
    nodes["endpoint"] = nodes["unit"] = NONE
    nodes["endpoint"][ends] = np.arange(len(ends))
    nodes["unit"][with_unit] = np.arange(len(with_unit))
    endpoints["node"] = ends
    units["node"] = with_unit
    chips = [fabric.nodes[i].endpoint for i in ends]
    for name in _shared_columns("endpoints", Endpoint):
        endpoints[name] = _values(chips, name)
    reducers = [fabric.nodes[i].unit for i in with_unit]
    for name in _shared_columns("units", Unit):
        units[name] = _values(reducers, name)
    return nodes, endpoints, units


def _values(items: Sequence[Any], name: str) -> list[int]:
    """Return an attribute of every item, looked up once per distinct object."""
    indices: dict[int, int] = {}
    result = []
    for item in items:
        value = indices.get(id(item))
        if value is None:
            value = indices[id(item)] = getattr(item, name)
        result.append(value)
    return result


def lower_formats(fabric: Fabric, names: list[str]) -> Array:
    """Return the rows of packet formats, in order of `names`."""
    formats = empty("formats", len(names))
    for row, name in zip(formats, names, strict=True):
        form = fabric.formats[name]
        for column in _shared_columns("formats", Format):
            row[column] = getattr(form, column)
        if trim_bytes(fabric):
            row["header_bytes"][Kind.TRIMMED] = trim_bytes(fabric)
            row["limit_bytes"][Kind.TRIMMED] = NO_LIMIT
    return formats


def _shared_columns(table: str, cls: type) -> list[str]:
    """Return the columns of a table that are fields or properties of a class with slots."""
    return [name for name in TABLES[table].names or () if hasattr(cls, name)]


_OF_A_WIRE = ("format", "dateline")
"""Columns whose values are those of a wire, or numbers instead of names."""


def _threshold(probability: float) -> int:
    return min(round(probability * 2**32), 2**32 - 1)


_WIRE_FIELDS: dict[str, Callable[[Link], int]] = {
    **{
        name: attrgetter(name)
        for name in _shared_columns("wires", Link)
        if name not in _OF_A_WIRE
    },
    "rate_num": lambda link: link.rate.num,
    "rate_den": lambda link: link.rate.den,
    "error_threshold": lambda link: _threshold(link.error_rate),
    "ecn_threshold": lambda link: _threshold(link.ecn_probability),
}
"""Common fields of both wires of a link."""


def lower_wires(
    fabric: Fabric, format_names: list[str]
) -> tuple[Array, Array, WireClasses]:
    """Return rows, weights and classes of wires.

    Each link is two wires, in order of links, a->b before b->a.
    """
    links = fabric.links
    times = np.array([2 * link.count for link in links], np.int64)
    wires = empty("wires", int(times.sum()))
    for name, value in _WIRE_FIELDS.items():
        wires[name] = np.repeat(
            np.array([value(link) for link in links], wires.dtype[name]), times
        )
    format_index = {name: index for index, name in enumerate(format_names)}
    forms = np.array([format_index[link.format] for link in links], np.uint32)
    wires["format"] = np.repeat(forms, times)
    index = fabric.node_index
    ends = np.array(
        [(index[link.a], index[link.b]) for link in links], np.uint32
    ).reshape(-1, 2)
    datelines = np.array([link.dateline for link in links], np.uint16).reshape(-1, 2)
    for back in (0, 1):
        wires["src"][back::2] = np.repeat(ends[:, back], times // 2)
        wires["dst"][back::2] = np.repeat(ends[:, 1 - back], times // 2)
        wires["dateline"][back::2] = np.repeat(datelines[:, back], times // 2)
    _drop_at_switches(fabric, wires)
    wires["reverse"] = np.arange(len(wires)) ^ 1
    wires["ordinal"] = turns(
        wires["src"].astype(np.int64) * len(fabric.nodes) + wires["dst"]
    )
    weight = np.repeat(np.array([link.weight for link in links], np.int64), times)
    names = list(dict.fromkeys(link.cls for link in links))
    code = {name: number for number, name in enumerate(names)}
    codes = np.repeat(np.array([code[link.cls] for link in links], np.int32), times)
    return wires, weight, WireClasses(names, codes)


def _drop_at_switches(fabric: Fabric, wires: Array) -> None:
    """Let switches drop packets on links that do; such links are without credits and pauses."""
    lossy = wires["queue_bytes"] > 0
    wires["xoff_bytes"][lossy] = wires["xon_bytes"][lossy] = UNBOUNDED_BYTES // 2
    wires["buffer_bytes"][lossy] = UNBOUNDED_BYTES
    switches = np.array([node.kind == "switch" for node in fabric.nodes], bool)
    for name in ("queue_bytes", "alpha_1024", "red"):
        wires[name][~switches[wires["src"]]] = 0


QUANTUM_BYTES = 4096
"""Bytes by which a class of weight 1 grows its deficit per turn; **assumed**: a packet of 4 KiB."""


def trim_bytes(fabric: Fabric) -> int:
    """Return the header of trimmed packets on all links, the largest of the links [bytes]; 0 if no link trims."""
    return max((link.trim_bytes for link in fabric.links), default=0)


def classes_of(fabric: Fabric) -> int:
    """Return the number of classes of traffic: of NICs, and of the schedules of links."""
    used = [
        node.nic.traffic_class + 1 for node in fabric.nodes if node.nic is not None
    ]
    scheduled = [max(len(link.priority), len(link.weights)) for link in fabric.links]
    return max([1, *used, *scheduled])


def class_vcs(fabric: Fabric, traffic_class: Array) -> Array:
    """Return the virtual channels of the flows of classes."""
    return np.where(traffic_class == 0, 0, fabric.num_vcs + traffic_class - 1)


def total_vcs(fabric: Fabric) -> int:
    """Return the virtual channels of a topology, its classes and headers."""
    return fabric.num_vcs + classes_of(fabric) - 1 + (trim_bytes(fabric) > 0)


def _schedule_row(fabric: Fabric, link: Link) -> tuple[list[int], list[int]]:
    """Return priorities and quanta by virtual channel."""
    of_vc = [0] * fabric.num_vcs + list(range(1, classes_of(fabric)))
    priority = dict(enumerate(link.priority))
    weights = dict(enumerate(link.weights))
    levels = [priority.get(number, 0) for number in of_vc]
    quanta = [weights.get(number, 1) * QUANTUM_BYTES for number in of_vc]
    if trim_bytes(fabric):
        levels = [level + 1 for level in levels] + [0]
    padding = [0] * (CLASSES - len(levels))
    return levels + padding, quanta + [QUANTUM_BYTES] * (CLASSES - len(quanta))


def schedule_wires(fabric: Fabric, wires: Array) -> Array:
    """Set schedules and channels of headers of `wires`; return the rows of schedules.

    Raises
    ------
    TopologyError
        More virtual channels than wires have, or classes beside datelines.
    """
    total = total_vcs(fabric)
    if total > CLASSES or (total > fabric.num_vcs and wires["dateline"].any()):
        why = (
            "a torus in dimension order excludes them"
            if total <= CLASSES
            else f"{total} of {CLASSES}"
        )
        raise TopologyError(
            f"{fabric.name}: traffic classes and trim: need virtual channels, {why}; fewer classes"
        )
    times = [2 * link.count for link in fabric.links]
    rows: dict[tuple[tuple[int, ...], tuple[int, ...], bool], int] = {}
    numbers, table = [], []
    for link in fabric.links:
        key = link.priority, link.weights, link.trim_bytes > 0
        if any(key) and key not in rows:
            table.append(_schedule_row(fabric, link))
            rows[key] = len(table)
        numbers.append(rows.get(key, 0))
    wires["schedule"] = np.repeat(np.array(numbers, np.uint32), times)
    trims = np.repeat(
        np.array([link.trim_bytes > 0 for link in fabric.links], bool), times
    )
    wires["trim_vc"][trims & (wires["queue_bytes"] > 0)] = total - 1
    schedules = empty("schedules", len(table))
    for row, (priority, quantum) in zip(schedules, table, strict=True):
        row["priority"], row["quantum"] = priority, quantum
    return schedules


def unrouted_wires(fabric: Fabric) -> list[int]:
    """Return the wires that no route uses."""
    if all(link.routed == (True, True) for link in fabric.links):
        return []
    routed = np.array([link.routed for link in fabric.links], bool).reshape(-1, 2)
    used = np.repeat(routed, [link.count for link in fabric.links], axis=0).ravel()
    result: list[int] = np.flatnonzero(~used).tolist()
    return result
