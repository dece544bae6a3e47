"""Programs and tasks on a topology, with their costs, and the proxies of NICs.

Proxies follow the schedule's instances, in tasks of their own after the schedule's tasks; these start with
the tasks of their senders.

**Hardware** A CTA and the host thread of its rank exchange steps through a FIFO in host memory. Before a
slice of Simple is copied, a GPU thread loads from there the state of the step, and its offset if connections
share buffers, as for sends and receives; the fence of a sender waits until the size of the step is written
there (NCCL, ``src/device/prims_simple.h``: ``waitPeer``, ``postPeer``). Between two GPUs
through shared host memory, the receiver loads the tail of every slice from there, also of an empty one, and
the sender's fence waits for its data.
**Model** Each of these costs a slice the time in which a GPU reads host memory. The loads of a sender
that receives in the same slice from a NIC overlap its wait for the data.
**Not modelled** Loads that queue after data read by a NIC; the fences of
LL128; gdrcopy, with which counters are in GPU memory. **Parameters** The latency between GPU and host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import ScheduleError
from clusim.engine.abi import NONE, Mode, PrimFlag, TaskKind
from clusim.engine.image import OPCODES, empty
from clusim.lowering.cta_contention import (
    CROWD_ONE,
    crowd_1024,
    exchanging,
    rounds_1024,
    start_order,
    start_ps,
    stores_bytes,
)
from clusim.lowering.dma import NicTransfers, waits_ps
from clusim.lowering.hops import CarriedTraffic, protocol_of
from clusim.lowering.links import LinkLowering
from clusim.lowering.memory_traffic import MemoryTraffic
from clusim.lowering.proxies import (
    ProxiedConnection,
    Proxy,
    plan_proxies,
    proxy_connections,
    slices_of,
    whole_messages,
)
from clusim.schedule.ir import (
    ABSENT,
    CTA_WARPS,
    MOST_PROGRAMS,
    Connection,
    Instance,
    Task,
    Template,
)
from clusim.topology.node import COST_ONE

LOADS = 1
"""Loads from the FIFO per step: its state."""

SHARED_LOADS = 1
"""Further loads with shared buffers: the offset of the step."""

FENCES = 1
"""Fences of a sender after it writes the size of a step."""


def staged_trips(
    item: Instance, ends: Sequence[Connection], empty_slices: int
) -> int:
    """Return the round trips of a slice of a program to the host memory by which it sends and receives.

    Parameters
    ----------
    ends : sequence of Connection
        Its connections through host memory of its node.
    empty_slices : int
        Slices of a chunk without data, whose tail is loaded as well.
    """
    if item.protocol != "simple":
        return 0
    receives = any(connection.dst == item.rank for connection in ends)
    sends = any(connection.src == item.rank for connection in ends)
    return LOADS * (1 + empty_slices) * receives + FENCES * sends


def host_trips(
    item: Instance, connections: Sequence[Connection], proxied: Container[int]
) -> int:
    """Return the number of round trips to host memory for which a slice of a program waits.

    Parameters
    ----------
    connections : sequence of Connection
        Connections of the schedule.
    proxied : container of int
        Connections that lead to another node by a proxy.
    """
    if item.protocol != "simple":
        return 0
    far = [number for number in item.connections if number in proxied]
    if not far:
        return 0
    loads = LOADS + SHARED_LOADS * item.shared
    sends = any(connections[number].src == item.rank for number in far)
    if not sends:
        return loads
    receives = any(
        connections[number].dst == item.rank for number in item.connections
    )
    return FENCES + (0 if receives else loads)


LL_LINE_BYTES = 8
"""Data of a line of LL."""

_TASK_KINDS = {kind.name.lower(): kind for kind in TaskKind}
_MODES = {mode.name.lower(): mode for mode in Mode}


class _Cost(NamedTuple):
    """Row of costs of a protocol for `warps`, fixed cost over `fixed`, or of a thread [ps].

    `after_ps` is a thread's work after a message, or an addition to the protocol's fixed cost of a slice.
    `crowd_1024` is the cost of a byte next to the other CTAs of a kernel, in 1/1024 of the cost for a single CTA.
    """

    protocol: str
    fixed: int
    after_ps: int = 0
    look_ps: int = 0
    warps: float = CTA_WARPS
    crowd_1024: int = CROWD_ONE


class ProgramLowering:
    """Lowering of the instances, templates and tasks of a schedule."""

    def __init__(self, links: LinkLowering) -> None:
        self.links, self.schedule, self.arrays = links, links.schedule, links.arrays
        self.fabric = links.arrays.fabric
        self._costs: dict[_Cost, int] = {}
        self._slots = self._count_slots()
        room = [MOST_PROGRAMS - count for count in self._slots]
        self.proxies: list[Proxy] = plan_proxies(self.schedule, links.links, room)
        served = {
            self.schedule.instances[item.instance].task for item in self.proxies
        }
        first = len(self.schedule.tasks)
        self._proxy_tasks = {
            task: first + number for number, task in enumerate(sorted(served))
        }
        self._extra: dict[Template, int] = {}
        self._exchanging = exchanging(self.schedule)
        self._transfers = NicTransfers(
            self.schedule, links.links, links.leg_of, self.arrays
        )
        self._staged = {
            number
            for number, leg in enumerate(
                links.leg_of[: len(self.schedule.connections)]
            )
            if leg.stage != NONE and number not in links.links
        }

    def _count_slots(self) -> list[int]:
        """Return the most programs any task runs at each endpoint; too many CTAs are refused."""
        programs = Counter(item.task for item in self.schedule.instances)
        ctas = Counter(item.task for item in self.schedule.instances if item.sm > 0)
        max_slots = [0] * len(self.arrays.endpoints)
        for task, count in programs.items():
            rank = self.schedule.tasks[task].rank
            endpoint = int(self.arrays.rank_endpoint[rank])
            slots = int(self.arrays.endpoints["cta_slots"][endpoint])
            if ctas[task] > slots or count > MOST_PROGRAMS:
                raise ScheduleError(
                    f"{self.schedule.name}: rank {rank} runs more than its {slots} CTAs at once;"
                    " use fewer channels"
                )
            max_slots[endpoint] = max(max_slots[endpoint], count)
        return max_slots

    def program_arrays(self) -> dict[str, Any]:
        """Return templates, instances, costs and tasks."""
        result: dict[str, Any] = {}
        result["instances"], result["inst_conns"] = self.instances()
        result["templates"], result["prims"] = self.programs()
        result["tasks"], result["succ"] = self.tasks()
        result["costs"] = self.costs()
        return result

    def endpoints(self, traffic: Sequence[CarriedTraffic]) -> Array:
        """Return the endpoints, with CTA slots for all programs and proxies, and their memory traffic.

        `traffic` has an element for every connection of the image.
        """
        rows = self.arrays.endpoints.copy()
        by_primitive = self.arrays.l2_bytes > 0
        shares_256 = MemoryTraffic(self.links, traffic).shares_256(
            self.arrays.l2_bytes
        )
        for name in ("deliver_256", "read_256", "inject_256"):
            rows[name] = np.where(by_primitive, shares_256, rows[name])
        used = {link.proxy.endpoint for item in self.proxies for link in item.links}
        full = [
            count > int(rows["cta_slots"][index])
            for index, count in enumerate(self._slots)
        ]
        rows["cta_slots"][[*used, *np.flatnonzero(full)]] = MOST_PROGRAMS
        return rows

    def instances(self) -> tuple[Array, Array]:
        """Return the instances and the connections they name."""
        rows: list[tuple[int, ...]] = []
        conns: list[int] = []
        order = start_order(self.schedule)
        for number, item in enumerate(self.schedule.instances):
            endpoint = int(self.arrays.rank_endpoint[item.rank])
            cost = self._cost(item)
            if self.links.aggregates[item.template]:
                cost = self._posting(item)
            start = item.start_ps
            if item.protocol != "direct":
                protocol = protocol_of(self.arrays, item.protocol)
                start += start_ps(protocol, order[number], self.fabric.cta_skew_ps)
            where = (item.task, endpoint, item.template, item.rotation, len(conns))
            rows.append(_instance_row(item, start, where, cost, item.sm))
            conns.extend(self._ends(item))
        for proxy in self.proxies:
            item = self.schedule.instances[proxy.instance]
            link = proxy.links[0]
            template = len(self.schedule.templates) + self._extra.setdefault(
                proxy.template, len(self._extra)
            )
            where = (
                self._proxy_tasks[item.task],
                link.proxy.endpoint,
                template,
                item.rotation,
                len(conns),
            )
            row = _instance_row(
                whole_messages(item), 0, where, self._proxy_cost_row(item, link), 0
            )
            rows.append((*row[:-2], link.proxy.thread, 0))
            conns.extend(proxy_connections(proxy))
        layout = empty("instances").dtype
        return np.array(rows, layout), np.array(conns, empty("inst_conns").dtype)

    def _ends(self, item: Instance) -> Sequence[int]:
        """Return the image's connections of an instance; inter-node sends use the proxy's."""
        links = self.links.links
        if not links:
            return item.connections
        connections = self.schedule.connections
        return [
            links[number].first
            if number in links and connections[number].src == item.rank
            else number
            for number in item.connections
        ]

    def _posting(self, item: Instance) -> int:
        """Return the cost row of a program of a NIC's proxy; primitives share the post time."""
        post_ps = self.links.post_ps(item.rank, item.channel)
        prims = len(self.schedule.templates[item.template].prims)
        return self._row(_Cost("", post_ps // prims))

    def _cost(self, item: Instance) -> int:
        node = self.fabric.nodes[self.arrays.node_of(item.rank)]
        memory_Bps = node.endpoint.mem_Bps if node.endpoint is not None else 0.0
        protocol = protocol_of(self.arrays, item.protocol)
        connections = self.schedule.connections
        trips = host_trips(item, connections, self.links.links)
        chunk, size = slices_of(item, self.schedule.templates[item.template])
        staged = [
            connections[number]
            for number in item.connections
            if number in self._staged
        ]
        trips += staged_trips(item, staged, item.slices - -(-chunk // max(1, size)))
        more_ps = trips and trips * self.links.places.to_gpu(item.rank)
        if trips and item.shared:
            more_ps += self._waits(item, size, protocol.fixed_ps + more_ps)
        crowd = crowd_1024(protocol, self._exchanging.get(item.task, 0), memory_Bps)
        by_bytes = stores_bytes(self.schedule, item)
        crowd = crowd * rounds_1024(protocol, chunk, by_bytes=by_bytes) // CROWD_ONE
        return self._row(
            _Cost(item.protocol, item.fixed_div, more_ps, 0, item.warps, crowd)
        )

    def _waits(self, item: Instance, size_bytes: int, fixed_ps: int) -> int:
        """Return the waits of a slice's loads beside the transfers of NICs [ps]."""
        places, call = self.links.places, self.schedule.tasks[item.task].call
        endpoint = int(self.arrays.rank_endpoint[item.rank])
        memory = places.memory(item.rank)
        programs = self._transfers.concurrent_programs(call, endpoint)
        if not programs or memory == NONE:
            return 0
        path = places.path(item.rank, memory)
        message_ps = self._transfers.message_ps(call, endpoint, path, size_bytes)
        rate_Bps = protocol_of(self.arrays, item.protocol).rate_Bps("send")
        copy_ps = size_bytes * 1e12 / rate_Bps * CTA_WARPS / item.warps
        return waits_ps(
            fixed_ps + copy_ps, LOADS + SHARED_LOADS, programs, message_ps
        )

    def _row(self, cost: _Cost) -> int:
        return self._costs.setdefault(cost, len(self._costs))

    def _proxy_cost_row(self, item: Instance, link: ProxiedConnection) -> int:
        """Return the cost row of a proxy: the thread's work per message, and per byte of LL."""
        host = link.proxy.host
        look_ps = host.look_ps if item.protocol == "ll" else 0
        nic = link.proxy.nic
        after_ps = host.thread_after_ps + nic.progress_ps
        if item.protocol == "simple":
            after_ps += nic.progress_simple_ps
        return self._row(_Cost("", host.thread_ps, after_ps, look_ps))

    def costs(self) -> Array:
        """Return the cost rows of all instances; proxies have no protocol and only a fixed cost."""
        rows = empty("costs", len(self._costs))
        for cost, index in self._costs.items():
            row = rows[index]
            if not cost.protocol:
                row["fixed_ps"], row["after_ps"] = cost.fixed, cost.after_ps
                row["op_cost16"][OPCODES["recvCopySend"].number] = (
                    cost.look_ps * COST_ONE // LL_LINE_BYTES
                )
                continue
            protocol = protocol_of(self.arrays, cost.protocol)
            row["fixed_ps"] = (protocol.fixed_ps + cost.after_ps) // cost.fixed
            for opcode in OPCODES.values():
                if opcode.name not in ("signal", "waitSignal"):
                    crowded = (
                        protocol.cost16(opcode.name) * cost.crowd_1024 // CROWD_ONE
                    )
                    row["op_cost16"][opcode.number] = int(
                        crowded * CTA_WARPS / cost.warps
                    )
        return rows

    def programs(self) -> tuple[Array, Array]:
        """Return templates and primitives."""
        templates: list[tuple[int, ...]] = []
        prims: list[tuple[int, ...]] = []
        for item in (*self.schedule.templates, *self._extra):
            templates.append(
                (
                    len(prims),
                    len(prims) + len(item.prims),
                    item.nchunks,
                    _MODES[item.mode],
                )
            )
            for prim in item.prims:
                recv, send = (
                    NONE if slot == ABSENT else slot
                    for slot in (prim.recv, prim.send)
                )
                chunk = (prim.base, prim.coef, prim.step, prim.repeat)
                prims.append(
                    (
                        OPCODES[prim.op].number,
                        recv,
                        send,
                        PrimFlag.SYNC * prim.sync,
                        *chunk,
                    )
                )
        return np.array(templates, empty("templates").dtype), np.array(
            prims, empty("prims").dtype
        )

    def tasks(self) -> tuple[Array, Array]:
        """Return the tasks and their successors; the proxies of a task start when it does."""
        schedule = self.schedule
        tasks = [
            *schedule.tasks,
            *(schedule.tasks[index] for index in self._proxy_tasks),
        ]
        rows = empty("tasks", len(tasks))
        successors: list[list[int]] = [[] for _ in tasks]
        for index, task in enumerate(tasks):
            for dep in sorted(set(task.deps)):
                successors[dep].append(index)
        proxies = [
            self._proxy_tasks[schedule.instances[item.instance].task]
            for item in self.proxies
        ]
        owner = np.array(
            [*(item.task for item in schedule.instances), *proxies], np.int64
        )
        bounds = np.searchsorted(owner, np.arange(len(tasks) + 1))
        offsets = np.cumsum([0, *map(len, successors)])
        rows["kind"] = [_TASK_KINDS[task.kind] for task in tasks]
        rows["delay_ps"] = [task.delay_ps for task in tasks]
        rows["endpoint"] = self.arrays.rank_endpoint[[task.rank for task in tasks]]
        rows["num_deps"] = [len(set(task.deps)) for task in tasks]
        rows["inst_lo"], rows["inst_hi"] = bounds[:-1], bounds[1:]
        rows["succ_lo"], rows["succ_hi"] = offsets[:-1], offsets[1:]
        for row, task in zip(rows, tasks, strict=True):
            if task.kind == "kernel":
                row["sms"], row["compute_ps"] = self._kernel(task)
                row["mem_bytes"] = task.mem_bytes
        flat = [successor for of_task in successors for successor in of_task]
        return rows, np.array(flat, empty("succ").dtype)

    def _kernel(self, task: Task) -> tuple[int, int]:
        """Return the SMs of a kernel and its time with all of these [ps]."""
        endpoint = self.fabric.nodes[self.arrays.node_of(task.rank)].endpoint
        assert endpoint is not None
        sms = min(task.sms or endpoint.sms, endpoint.sms)
        if not task.flops:
            return sms, task.compute_ps
        peak = endpoint.peak_flops.get(task.precision)
        if peak is None:
            listing = ", ".join(endpoint.peak_flops) or "none"
            raise ScheduleError(
                f"task {task.name!r}: {self.fabric.name}: no peak rate for {task.precision!r}; choose {listing}"
            )
        return sms, -(-task.flops * 10**12 * endpoint.sms // (int(peak) * sms))


def _instance_row(
    item: Instance,
    start_ps: int,
    where: tuple[int, int, int, int, int],
    cost: int,
    sm: int,
) -> tuple[int, ...]:
    """Return an instance's row for `where`: task, endpoint, template, rotation, connection."""
    sizes = (
        start_ps,
        item.offset,
        item.length,
        item.chunk_bytes,
        item.stride,
        item.limit,
        item.slice_min,
    )
    return (
        *sizes,
        *where,
        item.align,
        item.slices,
        item.slots_per_slice,
        cost,
        sm,
        NONE,
        0,
    )
