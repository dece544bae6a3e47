"""Kernels: progress at the lesser of compute and memory share, epochs of memory (section 9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clusim.engine.abi import Beyond
from clusim.engine.reference.arithmetic import ceil_div
from clusim.engine.reference.machine import Machine
from clusim.engine.reference.specs import TaskSpec

_WHOLE = 2**48


@dataclass(slots=True, eq=False)
class _Kernel:
    """A running kernel: `done` of 2^48, speed in 2^-16 of these per ps, since when."""

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
        SMs held by instances; whoever changes it calls nothing, `settle` compares.
    """

    def __init__(self, machine: Machine, endpoint: int, ended: Callable[[int], None]) -> None:
        self.busy = 0
        self._machine, self._endpoint, self._ended = machine, endpoint, ended
        self._spec = machine.model.endpoints[endpoint]
        self._running: list[_Kernel] = []
        self._set_changed = False
        self._busy_before = 0
        self._epoch: int | None = None  # number of the present epoch, None without one
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
        """Phase A, step 6: set the speeds anew if anything they depend on changed."""
        changed = self._set_changed or self._epoch_due or self.busy != self._busy_before
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
        n, cap, quantum_ps = len(self._running), self._capacity, self._spec.mem_quantum_ps
        want = sum(
            k.spec.mem_bytes * quantum_ps // max(1, k.spec.compute_ps) for k in self._running
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
        """Return the present speed of a kernel, in 2^-64 of it per ps."""
        n, quantum_ps = len(self._running), self._spec.mem_quantum_ps
        free = max(1, self._spec.sms - self.busy)
        share = min(spec.sms, max(1, free // n))
        slow_1024 = self._machine.slow_1024[self._endpoint]
        speed = (2**64 * share * 1024) // (spec.sms * max(1, spec.compute_ps) * slow_1024)
        if spec.mem_bytes:
            speed = min(speed, (2**64 * (self._available // n)) // (spec.mem_bytes * quantum_ps))
        return min(max(1, speed), 2**62)
