"""The image as plain Python objects: the part of the state that is constant during a run."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from clusim.engine.abi import NONE, ConnKind, NodeFlag, PrimFlag, SourceFlag
from clusim.engine.image import Image
from clusim.engine.reference.specs import (
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


def _index(value: Any) -> int | None:
    return None if int(value) == NONE else int(value)


def _indices(row: Any, *names: str) -> dict[str, Any]:
    return {name: _index(row[name]) for name in names}


def _row(array: Any, position: int, *names: str) -> dict[str, int]:
    return {name: int(array[name][position]) for name in names}


def _plain(array: Any, position: int, *without: str) -> dict[str, int]:
    return _row(array, position, *(n for n in array.dtype.names if n not in without))


def _numbers(array: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in array)


def _ragged(off: Any, flat: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(_numbers(flat[off[i] : off[i + 1]]) for i in range(len(off) - 1))


class Model:
    """Every constant of a run, as tuples of the objects above."""

    def __init__(self, image: Image) -> None:
        self.nvc = int(image.nvc)
        self.seed = int(image.seed)
        self.groups = _ragged(image.group_off, image.group_wires)
        self._paths = dict(enumerate(_ragged(image.path_off, image.path_wires)))
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
            wire: Fraction(self.wires[wire].rate_num, self.wires[wire].rate_den) for wire in group
        }
        return min(group, key=lambda wire: (-rates[wire], wire))

    def _read_fabric(self, image: Image) -> None:
        self.endpoints = tuple(
            EndpointSpec(**_plain(image.endpoints, i)) for i in range(len(image.endpoints))
        )
        self.formats = tuple(
            ImageFormat(
                int(row["flit_bytes"]), *(_numbers(row[n]) for n in ImageFormat.__slots__[1:])
            )
            for row in image.formats
        )
        self.targets = tuple(
            TargetSpec(**_plain(image.targets, i)) for i in range(len(image.targets))
        )
        self._routes = tuple(_index(group) for group in image.routes)
        self.units = tuple(UnitSpec(**_plain(image.units, i)) for i in range(len(image.units)))
        wires = image.wires
        incoming: list[list[int]] = [[] for _ in image.nodes]
        outgoing: list[list[int]] = [[] for _ in image.nodes]
        specs = []
        for i in range(len(wires)):
            dst = int(wires["dst"][i])
            plain = _plain(wires, i, "reverse", "format")
            specs.append(
                WireSpec(
                    **plain,
                    reverse=_index(wires["reverse"][i]),
                    format=self.formats[int(wires["format"][i])],
                    in_local=len(incoming[dst]),
                )
            )
            incoming[dst].append(i)
            outgoing[plain["src"]].append(i)
        self.wires = tuple(specs)
        self.nodes = tuple(
            ImageNode(
                latency_ps=int(row["latency_ps"]),
                store_and_forward=bool(int(row["flags"]) & NodeFlag.STORE_FORWARD),
                bridge=bool(int(row["flags"]) & NodeFlag.BRIDGE),
                endpoint=_index(row["endpoint"]),
                unit=_index(row["unit"]),
                **_row(image.nodes, i, "zone", "route_lo", "wide_lo", "wide_stride"),
                incoming=tuple(incoming[i]),
                outgoing=tuple(outgoing[i]),
            )
            for i, row in enumerate(image.nodes)
        )

    def _read_vertices(self, image: Image) -> None:
        self.vertices = tuple(
            VertexSpec(
                **_indices(row, "parent", "unit", "endpoint"),
                path_up=self._paths.get(int(row["path_up"]), ()),
                path_down=self._paths.get(int(row["path_down"]), ()),
                children=tuple(range(int(row["child_lo"]), int(row["child_hi"]))),
                slots=int(row["slots"]),
            )
            for row in image.vertices
        )
        self._controls = dict(
            enumerate(ControlSpec(**_plain(image.controls, i)) for i in range(len(image.controls)))
        )
        self._spreads = {
            i: SpreadSpec(
                **_plain(image.spreads, i, "detour_lo", "detour_hi", "pad"),
                detours=(int(row["detour_lo"]), int(row["detour_hi"])),
            )
            for i, row in enumerate(image.spreads)
        }

    def _read_connections(self, image: Image) -> None:
        mgroups = _ragged(image.mgroup_off, image.mgroup_members)
        conns = image.conns
        indices = ("first_group", "via_first", "via_last", "stage", "vertex")
        special = (
            *indices,
            "path",
            "path_back",
            "mgroup",
            "control",
            "queue_lo",
            "queue_hi",
            "split",
            "spread",
            "pad",
        )
        self.conns = tuple(
            ConnSpec(
                **_plain(conns, i, *special),
                **_indices(row, *indices),
                path=self._paths.get(int(row["path"])),
                path_back=self._paths.get(int(row["path_back"])),
                members=mgroups[int(row["mgroup"])]
                if int(row["kind"]) == ConnKind.MULTIMEM
                else (),
                control=self._controls.get(int(row["control"])),
                queue_keys=_numbers(image.queue_keys[int(row["queue_lo"]) : int(row["queue_hi"])]),
                split=bool(row["split"]),
                spread=self._spreads.get(int(row["spread"])),
            )
            for i, row in enumerate(conns)
        )

    def _read_programs(self, image: Image) -> None:
        costs = tuple(
            CostSpec(int(r["fixed_ps"]), int(r["after_ps"]), _numbers(r["op_cost16"]))
            for r in image.costs
        )
        prims = tuple(
            PrimSpec(
                **_row(image.prims, i, "opcode", "base", "coef", "step", "repeat"),
                recv=_index(row["recv"]),
                send=_index(row["send"]),
                sync=bool(int(row["flags"]) & PrimFlag.SYNC),
            )
            for i, row in enumerate(image.prims)
        )
        templates = tuple(
            TemplateSpec(prims[lo:hi], lo, nchunks, mode)
            for lo, hi, nchunks, mode in (_numbers(row) for row in image.templates)
        )
        self.instances = tuple(
            InstanceSpec(
                **_plain(image.instances, i, "template", "cost", "thread", "pad"),
                thread=_index(row["thread"]),
                template=templates[int(row["template"])],
                cost=costs[int(row["cost"])],
            )
            for i, row in enumerate(image.instances)
        )
        self.inst_conns = _numbers(image.inst_conns)

    def _read_tasks(self, image: Image) -> None:
        self.tasks = tuple(
            TaskSpec(
                **_plain(image.tasks, i, "succ_lo", "succ_hi"),
                successors=_numbers(image.succ[row["succ_lo"] : row["succ_hi"]]),
            )
            for i, row in enumerate(image.tasks)
        )
        self.sources = tuple(
            SourceSpec(
                **_plain(image.sources, i, "flags", "control", "spread"),
                serial=bool(int(row["flags"]) & SourceFlag.SERIAL),
                control=self._controls.get(int(row["control"])),
                spread=self._spreads.get(int(row["spread"])),
            )
            for i, row in enumerate(image.sources)
        )
        self.messages = tuple(
            MessageSpec(
                **_plain(image.messages, i, "via_first", "via_last"),
                **_indices(row, "via_first", "via_last"),
            )
            for i, row in enumerate(image.messages)
        )
        self.faults = tuple(FaultSpec(**_plain(image.faults, i)) for i in range(len(image.faults)))
