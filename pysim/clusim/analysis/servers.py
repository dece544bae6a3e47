"""Busy times of the serial servers of a run.

Wires have counters. The work of threads, CTAs, reduction units and acknowledgements follows from the slices of the
image's programs, at the speed of their rank at time 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from clusim.analysis.network import Network
from clusim.analysis.slices import Slices, SliceTable
from clusim.base.arrays import Array
from clusim.base.terms.links import kind_of
from clusim.engine.abi import NONE, ConnKind, Op, TaskKind
from clusim.results.causes import AS_BUSY
from clusim.results.intervals import Union
from clusim.results.result import Result
from clusim.results.servers import FULL, ServerClass, outstanding

MOST_INSTANCES = 8192
"""Instances up to which the work of programs is summed."""

MOST_SLICES = 1 << 22
"""Slices of all instances up to which it is."""


HOST, RECORDED_HOST = "host", "cpu "
"""Stream of a rank's host threads, and start of those of recordings."""


class _Class(NamedTuple):
    name: str
    busy_ps: Mapping[str, float]
    remedies: tuple[str, ...]


class Servers:
    """Serial servers of a run and their busy times.

    Parameters
    ----------
    slices : Slices
        Slices of its image.
    streams : sequence of str
        Stream of each task of the schedule.

    Attributes
    ----------
    threads, units, ctas : mapping of str to float
        Name of a proxy thread (its rank), a reduction unit (its switch) or a rank -> busy time; for a rank
        its busiest CTA's [ps].
    """

    def __init__(
        self,
        result: Result,
        network: Network,
        slices: Slices,
        streams: Sequence[str],
    ) -> None:
        self._result, self._network, self._slices = result, network, slices
        self._streams = streams
        self._image = network.image
        self.threads: dict[str, float] = defaultdict(float)
        self.units: dict[str, float] = defaultdict(float)
        self.ctas: dict[str, float] = defaultdict(float)
        self._acks: dict[str, float] = defaultdict(float)
        if self._countable():
            self._add_programs()

    def _countable(self) -> bool:
        rows = self._image["instances"]
        if len(rows) > MOST_INSTANCES:
            return False
        slices = rows["length"] / np.maximum(1, rows["chunk_bytes"]) * rows["slices"]
        prims = (
            self._image["templates"]["prim_hi"] - self._image["templates"]["prim_lo"]
        )
        return float((slices * prims[rows["template"]]).sum()) <= 64 * MOST_SLICES

    @cached_property
    def classes(self) -> tuple[ServerClass, ...]:
        """All classes with work, the fullest first."""
        time_ps, result = max(1, self._result.time_ps), []
        for name, busy_ps, remedies in self._classes():
            shares = {place: ps / time_ps for place, ps in busy_ps.items() if ps}
            if not shares:
                continue
            top = outstanding(shares, 1, AS_BUSY)
            full = sum(bool(share >= FULL) for share in shares.values())
            highest = round(float(max(shares.values())), 6)
            mean = round(float(sum(shares.values())) / len(shares), 6)
            result.append(
                ServerClass(
                    name, len(shares), "".join(top), highest, mean, full, remedies
                )
            )
        return tuple(sorted(result, key=lambda one: (-one.busy, one.name)))

    def _classes(self) -> Iterator[_Class]:
        network, busy = (
            self._network,
            self._result.wires.counters["busy_ps"].tolist(),
        )
        of_class: dict[str, dict[str, float]] = defaultdict(dict)
        for name, wire_class, ps in zip(
            network.names, network.classes, busy, strict=True
        ):
            of_class[wire_class][name] = ps
        for wire_class, wires in of_class.items():
            yield _Class(wire_class, wires, (f"{kind_of(wire_class)} x2",))
        yield _Class("proxy threads", self.threads, ("proxy x2",))
        yield _Class("acknowledgements", self._acks, ("latency x2",))
        yield _Class("reduction units", self.units, ("unit x2",))
        yield _Class("CTAs, busiest of a rank", self.ctas, ("cta x2", "step x2"))
        yield _Class("memories", self._memories(), ("hbm x2",))
        yield _Class("CTA slots", self._slot_spans(), ("slots x2",))
        kernels = self._image["tasks"]["kind"] == TaskKind.KERNEL
        yield _Class("kernels", self._spans(kernels), ("compute x2", "hbm x2"))
        yield _Class("host threads", self._hosts(), ("host x2",))

    def least_ps(self, remedy: str, wires: frozenset[int] = frozenset()) -> float:
        """Return the least time of a run with a remedy: the busy time of its busiest server [ps].

        Servers that the remedy accelerates count half; servers on `wires`, which are repaired, do not count.
        """
        busy = np.array(self._result.wires.counters["busy_ps"], np.float64)
        kinds = [f"{kind_of(name)} x2" == remedy for name in self._network.classes]
        busy[kinds] /= 2
        busy[list(wires)] = 0
        bounds_ps = [float(busy.max(initial=0.0))]
        for one in self.classes:
            if one.name in self._network.classes or one.name == "CTA slots":
                continue
            faster = remedy in one.remedies or remedy.endswith(" repaired")
            bounds_ps.append(one.busy * self._result.time_ps / (2 if faster else 1))
        return max(bounds_ps)

    def place_of(self, endpoint: int) -> str:
        """Return the name of an endpoint: its rank, or its node."""
        network = self._network
        if endpoint in network.with_rank:
            return f"rank {network.ranks[endpoint]}"
        return network.endpoint_name(endpoint)

    def _add_programs(self) -> None:
        instances, sent = (
            self._image["instances"],
            np.zeros(len(self._image["conns"])),
        )
        reduced: dict[tuple[int, int], float] = defaultdict(float)
        for instance in range(len(instances)):
            table = self._slices.table(instance)
            if int(instances["thread"][instance]) != NONE:
                self._add_messages(instance, table)
            elif instance < self._network.num_programs:
                place = self.place_of(int(instances["endpoint"][instance]))
                self.ctas[place] = max(
                    self.ctas[place], self._work_ps(instance, table)
                )
            for prim in np.unique(table.prim).tolist():
                connection = self._slices.connection(instance, prim, send=True)
                if connection == NONE:
                    continue
                mine = table.prim == prim
                if self._slices.flags(prim) & (Op.REDUCE | Op.AGGREGATE):
                    reduced[connection, prim] += float(table.bytes[mine].sum())
                else:
                    sent[connection] += float(table.slots[mine].sum())
        self._add_acks(sent)
        self._add_units(reduced)

    def _work_ps(self, instance: int, table: SliceTable) -> float:
        """Return the time of a CTA for its slices: their fixed cost, and copying or reducing their bytes [ps]."""
        network, result = self._network, 0.0
        fixed_ps = network.cost_ps("fixed_ps", instance, 0)
        for prim in np.unique(table.prim).tolist():
            mine = table.prim == prim
            size, connection = (
                int(table.bytes[mine].sum()),
                self._carrier(instance, prim),
            )
            if connection != NONE:
                size = (
                    size * int(self._image["conns"]["expand_120"][connection]) // 120
                )
            result += int(mine.sum()) * fixed_ps + network.copy_ps(
                instance, prim, size, 0
            )
        return result

    def _carrier(self, instance: int, prim: int) -> int:
        send = self._slices.connection(instance, prim, send=True)
        return (
            send
            if send != NONE
            else self._slices.connection(instance, prim, send=False)
        )

    def _add_messages(self, instance: int, table: SliceTable) -> None:
        network, row = self._network, self._image["instances"][instance]
        each_ps = network.cost_ps("fixed_ps", instance, 0) + network.cost_ps(
            "after_ps", instance, 0
        )
        messages = int(table.slots.sum()) // max(1, int(row["slots_per_slice"]))
        copied = 0
        for prim in np.unique(table.prim).tolist():
            size = int(table.bytes[table.prim == prim].sum())
            copied += network.copy_ps(instance, prim, size, 0)
        self.threads[self.place_of(int(row["thread"]))] += (
            messages * each_ps + copied
        )

    def _add_acks(self, sent: Array) -> None:
        """Add the time in which the slots of connections between NICs wait for flags."""
        conns = self._image["conns"]
        for connection in np.flatnonzero(
            (conns["via_first"] != NONE) & (sent > 0)
        ).tolist():
            row = conns[connection]
            ends = (self.place_of(int(row[end])) for end in ("src", "dst"))
            flags_ps = int(row["tail_ps"]) + int(row["head_ps"])
            name = f"{'->'.join(ends)}.{connection}"
            self._acks[name] += (
                sent[connection] * flags_ps / max(1, int(row["slots"]))
            )

    def _add_units(self, reduced: Mapping[tuple[int, int], float]) -> None:
        image, vertices = self._image, self._image["vertices"]
        children = np.bincount(
            vertices["parent"][vertices["parent"] != NONE], minlength=len(vertices)
        )
        carried: dict[int, float] = defaultdict(float)
        for (connection, _), size in reduced.items():
            conn = image["conns"][connection]
            if int(conn["kind"]) == ConnKind.AGGREGATION:
                vertex = int(vertices["parent"][int(conn["vertex"])])
                while vertex != NONE:
                    carried[vertex] = max(carried[vertex], size)
                    vertex = int(vertices["parent"][vertex])
                continue
            off, group = image["mgroup_off"], int(conn["mgroup"])
            units = self._network.units_of(connection)
            for unit in units:
                operands = size * int(off[group + 1] - off[group]) / len(units)
                self._add_unit(unit, operands)
        for vertex, size in carried.items():
            self._add_unit(
                int(vertices["unit"][vertex]), size * int(children[vertex])
            )

    def _add_unit(self, unit: int, operand_bytes: float) -> None:
        row = self._image["units"][unit]
        name = self._network.nodes[int(row["node"])]
        self.units[name] += operand_bytes * int(row["cost16"]) / 65536

    def _memories(self) -> dict[str, float]:
        cost = self._image["endpoints"]["mem_cost16"] / 65536
        busy = self._result.bins.hbm_bytes.sum(axis=1) * cost
        return {
            self.place_of(endpoint): float(ps) for endpoint, ps in enumerate(busy)
        }

    def _slot_spans(self) -> dict[str, float]:
        """Return the time in which programs may hold CTA slots: the span of their task."""
        image, tasks = self._image, self._result.tasks
        result: dict[str, float] = defaultdict(float)
        for task in range(len(tasks.end_ps)):
            row = image["tasks"][task]
            count = int(row["inst_hi"]) - int(row["inst_lo"])
            if int(row["kind"]) == TaskKind.PROGRAM and tasks.end_ps[task] > 0:
                slots = max(1, int(image["endpoints"]["cta_slots"][row["endpoint"]]))
                span = int(tasks.end_ps[task]) - int(tasks.start_ps[task])
                result[self.place_of(int(row["endpoint"]))] += span * count / slots
        return result

    def _hosts(self) -> dict[str, float]:
        """Return the busy time of host threads [ps]: streams ``host``, and ``cpu N`` of recordings."""
        image, result = self._image["tasks"], dict[str, float]()
        for stream in sorted(set(self._streams)):
            if stream == HOST or stream.startswith(RECORDED_HOST):
                rows = np.zeros(len(image), bool)
                rows[: len(self._streams)] = [
                    name == stream for name in self._streams
                ]
                for place, ps in self._spans(rows).items():
                    result[place if stream == HOST else f"{place} {stream}"] = ps
        return result

    def _spans(self, chosen: Array) -> dict[str, float]:
        """Return the time in which the chosen tasks of each rank run [ps]."""
        tasks, image = self._result.tasks, self._image["tasks"]
        rows = image[: len(tasks.end_ps)]
        result: dict[str, float] = {}
        done = chosen[: len(tasks.end_ps)] & (tasks.end_ps >= 0)
        for endpoint in np.unique(rows["endpoint"][done]).tolist():
            mine = done & (rows["endpoint"] == endpoint)
            spans = Union(tasks.start_ps[mine], tasks.end_ps[mine])
            result[self.place_of(endpoint)] = float(spans.length_ps)
        return result
