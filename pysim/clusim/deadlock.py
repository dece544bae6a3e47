"""Say who waits for whom when nothing can happen any more."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.errors import DeadlockError
from clusim.image import Image
from clusim.outcome import State
from clusim.schedule import Schedule
from clusim.schedule.iteration import iter_slices

__all__ = ["deadlock_error"]

Array = NDArray[Any]


def deadlock_error(schedule: Schedule, image: Image, states: Array, now_ps: int) -> DeadlockError:
    """Return the error that names the waiting cycle, or where the chain of waiting ends."""
    waits = _Waits(schedule, image, states)
    stuck = np.flatnonzero(states["state"] != State.DONE)
    if not len(stuck):
        return DeadlockError(f"deadlock at {now_ps} ps: tasks are left that no program can finish")
    chain, closed = waits.follow(int(stuck[0]))
    kind = (
        "each waits for the next, the last for the first" if closed else "each waits for the next"
    )
    steps = " <- ".join(waits.describe(instance) for instance in chain)
    return DeadlockError(
        f"deadlock at {now_ps} ps: {len(stuck)} of {len(states)} programs are stuck; {kind}: {steps}"
    )


class _Waits:
    """The wait-for relation between program instances."""

    def __init__(self, schedule: Schedule, image: Image, states: Array) -> None:
        self._schedule = schedule
        self._image = image
        self._states = states
        self._users: dict[int, list[int]] = {}
        for index, instance in enumerate(schedule.instances):
            for connection in instance.connections:
                self._users.setdefault(connection, []).append(index)

    def follow(self, start: int) -> tuple[list[int], bool]:
        """Follow the waiting from `start`; return the cycle and True, or the whole chain and False."""
        chain: list[int] = []
        place: dict[int, int] = {}
        current: int | None = start
        while current is not None and current not in place:
            place[current] = len(chain)
            chain.append(current)
            current = next(self._waits_for(current), None)
        return (chain, False) if current is None else (chain[place[current] :], True)

    def _waits_for(self, index: int) -> Iterator[int]:
        """Yield the unfinished instances that `index` waits for, the most direct first."""
        state, instance = self._states[index], self._schedule.instances[index]
        kind = State(int(state["state"]))
        if kind in (State.WAIT_RECV, State.WAIT_SEND):
            connection = self._schedule.connections[int(state["conn"])]
            peer = connection.src if kind is State.WAIT_RECV else connection.dst
            users = self._users.get(int(state["conn"]), [])
            yield from self._unfinished(u for u in users if u != index and self._rank(u) == peer)
        elif kind is State.WAIT_CTA_SLOT:
            holders = range(len(self._states))
            yield from (
                h
                for h in self._unfinished(holders)
                if self._rank(h) == instance.rank and self._states["state"][h] >= State.WAIT_RECV
            )
        elif kind is State.NOT_STARTED:
            for task in self._schedule.tasks[instance.task].deps:
                yield from self._unfinished(self._schedule.instances_of(task))

    def _unfinished(self, candidates: Any) -> Iterator[int]:
        return (int(c) for c in candidates if self._states["state"][c] != State.DONE)

    def _rank(self, index: int) -> int:
        return self._schedule.instances[index].rank

    def describe(self, index: int) -> str:
        """Return one instance and what it waits for: rank, channel, primitive, peer and slot."""
        state, instance = self._states[index], self._schedule.instances[index]
        kind = State(int(state["state"]))
        who = f"rank {instance.rank} channel {instance.channel}"
        if kind is State.NOT_STARTED:
            return f"{who} (not started: an earlier task of it is not done)"
        if kind is State.WAIT_CTA_SLOT:
            return f"{who} (no free CTA slot on the GPU)"
        if kind not in (State.WAIT_RECV, State.WAIT_SEND):
            return f"{who} (busy: its data cannot move)"
        number = int(state["conn"])
        connection = self._schedule.connections[number]
        operation, slot = self._primitive(index, number)
        if kind is State.WAIT_RECV:
            return f"{who} ({operation} needs slot {slot} filled by rank {connection.src})"
        return f"{who} ({operation} needs slot {slot} freed by rank {connection.dst})"

    def _primitive(self, index: int, connection: int) -> tuple[str, int]:
        """Return the name of the blocked primitive and the slot of `connection` it is at."""
        instance = self._schedule.instances[index]
        template = self._schedule.templates[instance.template]
        first = int(self._image.templates["prim_lo"][self._image.instances["template"][index]])
        prim = template.prims[int(self._states["prim"][index]) - first]
        local = instance.connections.index(connection)
        done = islice(iter_slices(instance, template), int(self._states["seq"][index]))
        before = sum(local in (item.prim.recv, item.prim.send) for item in done)
        slots = self._schedule.connections[connection].slots
        return prim.op, before * instance.slots_per_slice % slots
