"""Programs and tasks on a fabric: instances, templates, costs, kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.errors import ScheduleError
from clusim.fabric.arrays import FabricArrays
from clusim.fabric.model import Fabric, Protocol
from clusim.image import NONE, OPCODES, empty
from clusim.schedule.ir import ABSENT, Schedule, Task

__all__ = ["ProgramLowering", "protocol_of"]

Array = NDArray[Any]

_TASK_KINDS = {"program": 0, "kernel": 1, "delay": 2, "marker": 3}
_MODES = {"interleaved": 0, "blocked": 1}


def protocol_of(fabric: Fabric, name: str) -> Protocol:
    """Return the fabric's protocol called `name`."""
    found = fabric.protocols.get(name)
    if found is None:
        known = ", ".join(fabric.protocols) or "none"
        raise ScheduleError(f"{fabric.name}: has no protocol {name!r}; it has {known}")
    return found


class ProgramLowering:
    """Lowers the instances, templates and tasks of a schedule."""

    def __init__(self, fabric: Fabric, schedule: Schedule) -> None:
        self.fabric = fabric
        self.schedule = schedule
        self.arrays: FabricArrays = fabric.lower()
        self._costs: dict[tuple[str, int], int] = {}

    def program_arrays(self) -> dict[str, Array]:
        """Return templates, instances, costs and tasks."""
        found: dict[str, Array] = {}
        found["instances"], found["inst_conns"] = self.instances()
        found["templates"], found["prims"] = self.programs()
        found["tasks"], found["succ"] = self.tasks()
        found["costs"] = self.costs()
        return found

    def instances(self) -> tuple[Array, Array]:
        """Return the instances and the connections they name."""
        rows: list[tuple[int, ...]] = []
        conns: list[int] = []
        per_task: dict[int, int] = {}
        for item in self.schedule.instances:
            endpoint = int(self.arrays.rank_endpoint[item.rank])
            per_task[item.task] = per_task.get(item.task, 0) + 1
            sizes = (
                item.channel * self.fabric.cta_skew_ps,
                item.offset,
                item.length,
                item.chunk_bytes,
                item.stride,
                item.limit,
                item.slice_min,
            )
            where = (item.task, endpoint, item.template, item.rotation, len(conns), item.align)
            cost = self._cost(item.protocol, item.fixed_div)
            rows.append((*sizes, *where, item.slices, item.slots_per_slice, cost, item.sm))
            conns.extend(item.connections)
            slots = int(self.arrays.endpoints["cta_slots"][endpoint])
            if per_task[item.task] > slots:
                raise ScheduleError(
                    f"{self.schedule.name}: rank {item.rank} runs more than its {slots} CTAs at once;"
                    " use fewer channels"
                )
        layout = empty("instances").dtype
        return np.array(rows, layout), np.array(conns, empty("inst_conns").dtype)

    def _cost(self, protocol: str, fixed_div: int) -> int:
        return self._costs.setdefault((protocol, fixed_div), len(self._costs))

    def costs(self) -> Array:
        """Return the cost rows that the instances named."""
        rows = empty("costs", len(self._costs))
        for (name, fixed_div), index in self._costs.items():
            protocol = protocol_of(self.fabric, name)
            rows[index]["fixed_ps"] = protocol.fixed_ps // fixed_div
            for opcode in OPCODES.values():
                if opcode.name not in ("signal", "waitSignal"):
                    rows[index]["op_cost16"][opcode.number] = protocol.cost16(opcode.name)
        return rows

    def programs(self) -> tuple[Array, Array]:
        """Return templates and primitives."""
        templates: list[tuple[int, ...]] = []
        prims: list[tuple[int, ...]] = []
        for item in self.schedule.templates:
            templates.append(
                (len(prims), len(prims) + len(item.prims), item.nchunks, _MODES[item.mode])
            )
            for prim in item.prims:
                recv, send = (NONE if slot == ABSENT else slot for slot in (prim.recv, prim.send))
                chunk = (prim.base, prim.coef, prim.step, prim.repeat)
                prims.append((OPCODES[prim.op].number, recv, send, int(prim.sync), *chunk))
        return np.array(templates, empty("templates").dtype), np.array(prims, empty("prims").dtype)

    def tasks(self) -> tuple[Array, Array]:
        """Return the tasks and their successors."""
        schedule = self.schedule
        rows = empty("tasks", len(schedule.tasks))
        successors: list[list[int]] = [[] for _ in schedule.tasks]
        for index, task in enumerate(schedule.tasks):
            for dep in sorted(set(task.deps)):
                successors[dep].append(index)
        owner = np.array([item.task for item in schedule.instances], np.int64)
        bounds = np.searchsorted(owner, np.arange(len(schedule.tasks) + 1))
        offsets = np.cumsum([0, *map(len, successors)])
        for index, task in enumerate(schedule.tasks):
            row = rows[index]
            row["kind"], row["delay_ps"] = _TASK_KINDS[task.kind], task.delay_ps
            row["endpoint"] = self.arrays.rank_endpoint[task.rank]
            row["num_deps"] = len(set(task.deps))
            row["inst_lo"], row["inst_hi"] = bounds[index], bounds[index + 1]
            row["succ_lo"], row["succ_hi"] = offsets[index], offsets[index + 1]
            if task.kind == "kernel":
                row["sms"], row["compute_ps"] = self._kernel(task)
                row["mem_bytes"] = task.mem_bytes
        flat = [successor for own in successors for successor in own]
        return rows, np.array(flat, empty("succ").dtype)

    def _kernel(self, task: Task) -> tuple[int, int]:
        """Return the SMs of a kernel and its time with all of them [ps]."""
        endpoint = self.fabric.nodes[self.arrays.node_of(task.rank)].endpoint
        assert endpoint is not None
        sms = min(task.sms or endpoint.sms, endpoint.sms)
        if not task.flops:
            return sms, task.compute_ps
        peak = endpoint.peak_flops.get(task.precision)
        if peak is None:
            known = ", ".join(endpoint.peak_flops) or "none"
            raise ScheduleError(
                f"task {task.name!r}: {self.fabric.name} has no peak rate for {task.precision!r}; it has {known}"
            )
        return sms, -(-task.flops * 10**12 * endpoint.sms // (int(peak) * sms))
