"""The image as plain Python objects: the part of the state that is constant during a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Any, TypeVar, get_type_hints

from clusim.engine.abi import NONE, ConnKind, NodeFlag, PrimFlag, SourceFlag
from clusim.engine.image import Image
from clusim.engine.reference.specs import (
    ClassSchedule,
    ConnSpec,
    ControlSpec,
    CostSpec,
    EndpointSpec,
    FaultSpec,
    ImageFormat,
    ImageNode,
    InstanceSpec,
    MessageSpec,
    PrimSpec,
    SourceSpec,
    SpreadSpec,
    TargetSpec,
    TaskSpec,
    TemplateSpec,
    UnitSpec,
    VertexSpec,
    WireSpec,
)
from clusim.policies.choice import BoundSender, Sender

Spec = TypeVar("Spec")


def _index(value: Any) -> int | None:
    return None if int(value) == NONE else int(value)


def _numbers(array: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in array)


def _split_rows(off: Any, flat: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(_numbers(flat[off[i] : off[i + 1]]) for i in range(len(off) - 1))


_READ: dict[Any, Callable[[Any], Any]] = {
    int: int,
    bool: bool,
    int | None: _index,
    tuple[int, ...]: _numbers,
}
"""Conversion of a column's values by the type of a field."""


def _bound(image: Image) -> Iterator[BoundSender]:
    """Yield the policy of each rate control; without one it is DCQCN, with the row's parameters."""
    names = image.controls.dtype.names or ()
    senders = image.senders or (None,) * len(image.controls)
    for row, bound in zip(image.controls.tolist(), senders, strict=True):
        yield bound or BoundSender(
            Sender("dcqcn-policy"), tuple(zip(names, row, strict=True))
        )


def _specs(spec: type[Spec], table: Any, **made: Iterable[Any]) -> tuple[Spec, ...]:
    """Return an object for each row of a table: its columns by name, and further fields with a value for each row."""
    columns: dict[str, Iterable[Any]] = {
        name: map(_READ[hint], table[name])
        for name, hint in get_type_hints(spec).items()
        if name not in made
    }
    columns |= made
    rows = zip(*columns.values(), strict=True)
    return tuple(spec(**dict(zip(columns, row, strict=True))) for row in rows)


class Model:
    """Every constant of a run, as tuples of the objects above."""

    def __init__(self, image: Image) -> None:
        self.nvc = int(image.nvc)
        self.seed = int(image.seed)
        self.groups = _split_rows(image.group_off, image.group_wires)
        self._paths = dict(enumerate(_split_rows(image.path_off, image.path_wires)))
        controls = _specs(ControlSpec, image.controls, bound=_bound(image))
        self.controls = dict(enumerate(controls))
        self._read_fabric(image)
        self._read_vertices(image)
        self._read_connections(image)
        self._read_programs(image)
        self._read_tasks(image)

    def route(self, node: int, target: int) -> tuple[int, ...]:
        """Return the route group from `node` towards `target`, which must exist."""
        group = self.routes(node, target)
        if group is None:
            raise ValueError(f"no route from node {node} to target {target}")
        return group

    def routes(self, node: int, target: int) -> tuple[int, ...] | None:
        """Return the route group from `node` towards `target`, or None (section 6, routes)."""
        here, there = self.nodes[node], self.targets[target]
        if here.zone == there.zone:
            group = self._routes[here.route_lo + there.local]
        else:
            group = self._routes[here.wide_lo + there.wide * here.wide_stride]
        return None if group is None else self.groups[group]

    def fastest(self, group: tuple[int, ...]) -> int:
        """Return the wire with the highest rate, then the lowest id, at the rates of the image."""
        rates = {
            wire: Fraction(self.wires[wire].rate_num, self.wires[wire].rate_den)
            for wire in group
        }
        return min(group, key=lambda wire: (-rates[wire], wire))

    def _read_fabric(self, image: Image) -> None:
        self.endpoints = _specs(EndpointSpec, image.endpoints)
        self.formats = _specs(ImageFormat, image.formats)
        self.targets = _specs(TargetSpec, image.targets)
        self._routes = tuple(_index(group) for group in image.routes)
        self.units = _specs(UnitSpec, image.units)
        wires, nodes = image.wires, image.nodes
        incoming: list[list[int]] = [[] for _ in nodes]
        outgoing: list[list[int]] = [[] for _ in nodes]
        in_local = []
        for wire, (src, dst) in enumerate(
            zip(wires["src"], wires["dst"], strict=True)
        ):
            in_local.append(len(incoming[dst]))
            incoming[dst].append(wire)
            outgoing[src].append(wire)
        formats = (self.formats[number] for number in wires["format"])
        chosen = (
            self.controls.get(number - 1)
            for number in image.schedules["policy"].tolist()
        )
        rows = (None, *_specs(ClassSchedule, image.schedules, policy=chosen))
        schedules = (rows[number] for number in wires["schedule"])
        policies = (
            self.controls.get(number - 1) for number in wires["policy"].tolist()
        )
        extra = {
            "format": formats,
            "in_local": in_local,
            "schedule": schedules,
            "policy": policies,
        }
        self.wires = _specs(WireSpec, wires, **extra)
        self.nodes = _specs(
            ImageNode,
            nodes,
            store_and_forward=(
                (nodes["flags"] & NodeFlag.STORE_FORWARD) > 0
            ).tolist(),
            bridge=((nodes["flags"] & NodeFlag.BRIDGE) > 0).tolist(),
            policy=(
                self.controls.get(number - 1) for number in nodes["policy"].tolist()
            ),
            incoming=map(tuple, incoming),
            outgoing=map(tuple, outgoing),
        )

    def _read_vertices(self, image: Image) -> None:
        vertices, spreads = image.vertices, image.spreads
        self.vertices = _specs(
            VertexSpec,
            vertices,
            path_up=(
                self._paths.get(path, ()) for path in vertices["path_up"].tolist()
            ),
            path_down=(
                self._paths.get(path, ()) for path in vertices["path_down"].tolist()
            ),
            children=(
                tuple(range(low, high)) for low, high in _ends(vertices, "child")
            ),
        )
        detours = _ends(spreads, "detour")
        self._spreads = dict(enumerate(_specs(SpreadSpec, spreads, detours=detours)))

    def _read_connections(self, image: Image) -> None:
        mgroups, conns = (
            _split_rows(image.mgroup_off, image.mgroup_members),
            image.conns,
        )
        self.conns = _specs(
            ConnSpec,
            conns,
            path=map(self._paths.get, conns["path"].tolist()),
            path_back=map(self._paths.get, conns["path_back"].tolist()),
            members=(
                mgroups[group] if kind == ConnKind.MULTIMEM else ()
                for group, kind in zip(conns["mgroup"], conns["kind"], strict=True)
            ),
            control=map(self.controls.get, conns["control"].tolist()),
            queue_keys=(
                _numbers(image.queue_keys[a:b]) for a, b in _ends(conns, "queue")
            ),
            spread=map(self._spreads.get, conns["spread"].tolist()),
        )

    def _read_programs(self, image: Image) -> None:
        templates, instances = image.templates, image.instances
        costs = _specs(CostSpec, image.costs)
        sync = ((image.prims["flags"] & PrimFlag.SYNC) > 0).tolist()
        prims = _specs(PrimSpec, image.prims, sync=sync)
        parts = (prims[low:high] for low, high in _ends(templates, "prim"))
        known = _specs(TemplateSpec, templates, prims=parts)
        self.instances = _specs(
            InstanceSpec,
            instances,
            template=(known[number] for number in instances["template"]),
            cost=(costs[number] for number in instances["cost"]),
        )
        self.inst_conns = _numbers(image.inst_conns)

    def _read_tasks(self, image: Image) -> None:
        sources = image.sources
        successors = (
            _numbers(image.succ[low:high])
            for low, high in _ends(image.tasks, "succ")
        )
        self.tasks = _specs(TaskSpec, image.tasks, successors=successors)
        self.sources = _specs(
            SourceSpec,
            sources,
            serial=((sources["flags"] & SourceFlag.SERIAL) > 0).tolist(),
            control=map(self.controls.get, sources["control"].tolist()),
            spread=map(self._spreads.get, sources["spread"].tolist()),
        )
        self.messages = _specs(MessageSpec, image.messages)
        self.faults = _specs(FaultSpec, image.faults)


def _ends(table: Any, name: str) -> list[tuple[int, int]]:
    """Return the ranges of rows of another table that a table's rows have."""
    return list(
        zip(table[f"{name}_lo"].tolist(), table[f"{name}_hi"].tolist(), strict=True)
    )
