"""Tasks, CTA slots and completions (sections 7 and 9)."""

from __future__ import annotations

from clusim.engine.abi import Beyond, State, TaskKind
from clusim.engine.reference.arithmetic import mix
from clusim.engine.reference.connections import ConnectionState
from clusim.engine.reference.instances import InstanceHost, InstanceState
from clusim.engine.reference.kernels import Kernels
from clusim.engine.reference.machine import Machine


class ScheduleState(InstanceHost):
    """Starts tasks and instances, and counts what is done.

    Attributes
    ----------
    starts_ps, ends_ps : list of int
        Start and end of every task, -1 where not yet.
    records : list
        Completion records not yet taken, as `clusim.engine.outcome.RECORD`.
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
        self.connections = [ConnectionState(i, spec, machine) for i, spec in enumerate(model.conns)]
        self.instances = [
            InstanceState(i, spec, machine, self) for i, spec in enumerate(model.instances)
        ]
        self.kernels = [Kernels(machine, i, self._task_done) for i in range(len(model.endpoints))]
        self._free_slots = [set(range(spec.cta_slots)) for spec in model.endpoints]
        self._waiting: list[list[tuple[int, int]]] = [[] for _ in model.endpoints]
        machine.waves.tasks = {i for i, missing in enumerate(self._missing) if missing == 0}

    def take_slot(self, endpoint: int) -> int:
        """Take the lowest free CTA slot of an endpoint."""
        slot = min(self._free_slots[endpoint])
        self._free_slots[endpoint].remove(slot)
        return slot

    def start_task(self, task: int) -> None:
        """Start a task whose predecessors are done (section 9)."""
        now_ps, spec = self.machine.now_ps, self.machine.model.tasks[task]
        self.starts_ps[task] = now_ps
        if spec.kind == TaskKind.KERNEL:
            self.kernels[spec.endpoint].start(task)
        elif spec.kind == TaskKind.DELAY and spec.delay_ps == 0:
            self.machine.waves.later(lambda: self._task_done(task))
        elif spec.kind == TaskKind.DELAY:
            who = (Beyond.TASK, task)
            self.machine.at(now_ps + spec.delay_ps, lambda: self._task_done(task), who)
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
        self._waiting[instance.spec.endpoint].append((self.machine.now_ps, instance.index))
        self.machine.waves.slots_changed = True

    def start_instances(self) -> None:
        """Give free CTA slots to waiting instances, by start time, then id (section 7)."""
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
        """Let an instance go as far as it can."""
        self.instances[instance].advance()

    def record(self, instance: int, sequence: int) -> None:
        """Record the completion of a slice, now."""
        now_ps = self.machine.now_ps
        self._add_to_fingerprint(mix(mix(mix(1, now_ps), instance), sequence))
        if self._keep_records:
            done = self.instances[instance]
            row = (now_ps, done.gate_ps, instance, sequence, done.wire, int(done.cause))
            self.records.append(row)

    def finished(self, instance: InstanceState) -> None:
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
