"""Tasks, CTA slots, completions and kernels (sections 7 and 9).

Kernels progress at the lesser of compute and memory share, in epochs of memory (section 9).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clusim.engine.abi import Beyond, State, TaskKind
from clusim.engine.reference.connections import ConnectionState
from clusim.engine.reference.instances import InstanceHost, InstanceState
from clusim.engine.reference.machine import Machine
from clusim.engine.reference.specs import TaskSpec, ceil_div, mix

_WHOLE = 2**48


@dataclass(slots=True, eq=False)
class _Kernel:
    """A running kernel: `done` of 2^48 at `since_ps`, `speed` in 2^-16 of these per ps."""

    task: int
    spec: TaskSpec
    done: int = 0
    speed: int = 0
    since_ps: int = 0
    setting: int = 0


class Kernels:
    """The kernels of one endpoint.

    Attributes
    ----------
    busy : int
        SMs held by instances; writers need not notify, as `settle` compares.
    """

    def __init__(
        self, machine: Machine, endpoint: int, ended: Callable[[int], None]
    ) -> None:
        self.busy = 0
        self._machine, self._endpoint, self._ended = machine, endpoint, ended
        self._spec = machine.model.endpoints[endpoint]
        self._running: list[_Kernel] = []
        self._set_changed = False
        self._busy_before = 0
        self._epoch: int | None = None  # number of the present epoch
        self._epochs = 0
        self._epoch_due = False
        self._mark_bytes = 0
        self._available = 0

    def start(self, task: int) -> None:
        """Start the kernel of a task; the first one starts an epoch."""
        if not self._running:
            self._epoch_due = True
        self._running.append(_Kernel(task, self._machine.model.tasks[task]))
        self._set_changed = True

    def settle(self) -> None:
        """Set the speeds again if any of their inputs changed (phase A, step 6)."""
        changed = (
            self._set_changed or self._epoch_due or self.busy != self._busy_before
        )
        if not changed:
            return
        self._busy_before = self.busy
        memory = self._machine.memories[self._endpoint]
        if not self._running:
            memory.cost16 = self._spec.mem_cost16
        else:
            if self._epoch_due:
                self._start_epoch()
            self._set_speeds()
            memory.cost16 = (self._spec.mem_cost16 * self._capacity) // self._left()
        self._set_changed = self._epoch_due = False

    @property
    def _capacity(self) -> int:
        """Bytes the memory moves in an epoch, `cap`."""
        return (self._spec.mem_quantum_ps << 16) // self._spec.mem_cost16

    def _start_epoch(self) -> None:
        n, cap = len(self._running), self._capacity
        bytes_now = self._machine.memories[self._endpoint].bytes_256 >> 8
        used = bytes_now - self._mark_bytes if self._epoch is not None else 0
        self._mark_bytes = bytes_now
        self._available = max(cap - used, cap * n // (n + 1), 1)
        self._epochs += 1
        self._epoch = number = self._epochs
        self._machine.at(
            self._machine.now_ps + self._spec.mem_quantum_ps,
            lambda: self._epoch_ends(number),
            (Beyond.ENDPOINT, self._endpoint),
        )

    def _epoch_ends(self, number: int) -> None:
        if self._epoch == number:
            self._epoch_due = True

    def _left(self) -> int:
        """Bytes of an epoch left to communication."""
        n, cap, quantum_ps = (
            len(self._running),
            self._capacity,
            self._spec.mem_quantum_ps,
        )
        want = sum(
            k.spec.mem_bytes * quantum_ps // max(1, k.spec.compute_ps)
            for k in self._running
        )
        return max(cap - want, cap // (n + 1), 1)

    def _set_speeds(self) -> None:
        now_ps = self._machine.now_ps
        for kernel in self._running:
            kernel.done += (kernel.speed * (now_ps - kernel.since_ps)) >> 16
            kernel.since_ps = now_ps
            kernel.speed = self._speed(kernel.spec)
            kernel.setting += 1
            left_ps = max(1, ceil_div((_WHOLE - kernel.done) << 16, kernel.speed))
            self._plan_end(kernel, now_ps + left_ps)

    def _plan_end(self, kernel: _Kernel, time_ps: int) -> None:
        setting = kernel.setting

        def end() -> None:
            if kernel.setting == setting and kernel in self._running:
                self._end(kernel)

        self._machine.at(time_ps, end, (Beyond.TASK, kernel.task))

    def _end(self, kernel: _Kernel) -> None:
        self._running.remove(kernel)
        self._set_changed = True
        if not self._running:
            self._epoch = None
            self._epoch_due = False
        self._ended(kernel.task)

    def _speed(self, spec: TaskSpec) -> int:
        """Return the present speed of a kernel, in 2^-64 of its work per ps."""
        n, quantum_ps = len(self._running), self._spec.mem_quantum_ps
        free = max(1, self._spec.sms - self.busy)
        share = min(spec.sms, max(1, free // n))
        slow_1024 = self._machine.slow_1024[self._endpoint]
        speed = (2**64 * share * 1024) // (
            spec.sms * max(1, spec.compute_ps) * slow_1024
        )
        if spec.mem_bytes:
            speed = min(
                speed,
                (2**64 * (self._available // n)) // (spec.mem_bytes * quantum_ps),
            )
        return min(max(1, speed), 2**62)


class ScheduleState(InstanceHost):
    """Start of tasks and instances, and counts of completions.

    Attributes
    ----------
    starts_ps, ends_ps : list of int
        Start and end of every task, -1 before it.
    records : list
        Completion records not yet returned, as `clusim.engine.abi.RECORD`.
    fingerprint : int
        Sum of the completions so far (section 12).
    """

    def __init__(self, machine: Machine, keep_records: bool) -> None:
        model = machine.model
        self.machine = machine
        self.starts_ps = [-1] * len(model.tasks)
        self.ends_ps = [-1] * len(model.tasks)
        self.tasks_left = len(model.tasks)
        self.records: list[tuple[int, ...]] = []
        self.fingerprint = 0
        self._keep_records = keep_records
        self._missing = [task.num_deps for task in model.tasks]
        self._instances_left = [task.inst_hi - task.inst_lo for task in model.tasks]
        self.connections = [
            ConnectionState(i, spec, machine) for i, spec in enumerate(model.conns)
        ]
        self.instances = [
            InstanceState(i, spec, machine, self)
            for i, spec in enumerate(model.instances)
        ]
        self.kernels = [
            Kernels(machine, i, self._task_done) for i in range(len(model.endpoints))
        ]
        self._free_slots = [set(range(spec.cta_slots)) for spec in model.endpoints]
        self._waiting: list[list[tuple[int, int]]] = [[] for _ in model.endpoints]
        machine.waves.tasks = {
            i for i, missing in enumerate(self._missing) if missing == 0
        }

    def take_slot(self, endpoint: int) -> int:
        """Allocate and return the lowest free CTA slot of an endpoint."""
        slot = min(self._free_slots[endpoint])
        self._free_slots[endpoint].remove(slot)
        return slot

    def start_task(self, task: int) -> None:
        """Start a task after the end of its predecessors (section 9)."""
        now_ps, spec = self.machine.now_ps, self.machine.model.tasks[task]
        self.starts_ps[task] = now_ps
        if spec.kind == TaskKind.KERNEL:
            self.kernels[spec.endpoint].start(task)
        elif spec.kind == TaskKind.DELAY and spec.delay_ps == 0:
            self.machine.waves.later(lambda: self._task_done(task))
        elif spec.kind == TaskKind.DELAY:
            who = (Beyond.TASK, task)
            self.machine.at(
                now_ps + spec.delay_ps, lambda: self._task_done(task), who
            )
        elif spec.kind == TaskKind.MARKER or spec.inst_lo == spec.inst_hi:
            self._task_done(task)
        else:
            for instance in self.instances[spec.inst_lo : spec.inst_hi]:
                self._launch(instance)

    def _launch(self, instance: InstanceState) -> None:
        """Start an instance `start_ps` from now (section 7)."""
        delay_ps = instance.spec.start_ps
        if delay_ps == 0:
            self._begin_waiting(instance)
        else:
            self.machine.at(
                self.machine.now_ps + delay_ps,
                lambda: self._begin_waiting(instance),
                (Beyond.INSTANCE, instance.index),
            )

    def _begin_waiting(self, instance: InstanceState) -> None:
        instance.state = State.WAIT_CTA_SLOT
        self._waiting[instance.spec.endpoint].append(
            (self.machine.now_ps, instance.index)
        )
        self.machine.waves.slots_changed = True

    def start_instances(self) -> None:
        """Assign free CTA slots to waiting instances, by start time, then id (section 7)."""
        for endpoint, waiting in enumerate(self._waiting):
            waiting.sort()
            while waiting and self._free_slots[endpoint]:
                _, index = waiting.pop(0)
                instance = self.instances[index]
                instance.slot = self.take_slot(endpoint)
                instance.state = State.BUSY
                self.kernels[endpoint].busy += instance.spec.sm
                instance.resume_at(self.machine.now_ps)

    def advance(self, instance: int) -> None:
        """Advance an instance until it must wait."""
        self.instances[instance].advance()

    def record(self, instance: int, sequence: int) -> None:
        """Record the completion of a slice, now."""
        now_ps = self.machine.now_ps
        self._add_to_fingerprint(mix(mix(mix(1, now_ps), instance), sequence))
        if self._keep_records:
            done = self.instances[instance]
            row = (
                now_ps,
                done.gate_ps,
                instance,
                sequence,
                done.wire,
                int(done.cause),
            )
            self.records.append(row)

    def free_slot(self, instance: InstanceState) -> None:
        """Free the slot and the SMs of an instance that is done; its task counts down."""
        endpoint, task = instance.spec.endpoint, instance.spec.task
        self._free_slots[endpoint].add(instance.slot)
        instance.slot = -1
        self.kernels[endpoint].busy -= instance.spec.sm
        self.machine.waves.slots_changed |= bool(self._waiting[endpoint])
        self._instances_left[task] -= 1
        if self._instances_left[task] == 0:
            self._task_done(task)

    def _task_done(self, task: int) -> None:
        self.ends_ps[task] = self.machine.now_ps
        self.tasks_left -= 1
        self._add_to_fingerprint(mix(mix(mix(2, self.machine.now_ps), task), 0))
        for successor in self.machine.model.tasks[task].successors:
            self._missing[successor] -= 1
            if self._missing[successor] == 0:
                self.machine.waves.tasks.add(successor)

    def message_done(self, message: int) -> None:
        """Count the completion of a message, now."""
        self._add_to_fingerprint(mix(mix(mix(3, self.machine.now_ps), message), 0))

    def _add_to_fingerprint(self, value: int) -> None:
        self.fingerprint = (self.fingerprint + value) % 2**64
