"""Check of a run's data with real numbers, and wait-for analysis of a deadlocked run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import DeadlockError, InputError
from clusim.base.units import format_time
from clusim.engine.abi import Engine, State
from clusim.lowering import Fault, Lowered
from clusim.results.bins import BinRecorder
from clusim.schedule import Schedule
from clusim.schedule.iteration import iter_slices
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric

MOST_NAMED = 3
"""Maximum broken links and cycle members that the text names individually."""


def deadlock_error(
    waits: Waits,
    fabric: Fabric,
    counters: Array,
    faults: Sequence[Fault],
    now_ps: int,
) -> DeadlockError:
    """Return the error that names the faults, and the waiting cycle or end of the wait chain."""
    head = f"deadlock at {now_ps} ps: "
    broken = _broken(fabric, counters, faults, now_ps)
    if broken:
        halted = waits.halted_programs()
        cannot = ", ".join(halted[:MOST_NAMED]) + (
            ", ..." if len(halted) > MOST_NAMED else ""
        )
        head = f"stalled at {format_time(now_ps)}: {broken}; "
        head += f"data of {cannot} cannot move; " if halted else ""
    stuck = waits.stuck()
    if not len(stuck):
        return DeadlockError(f"{head}tasks are left that no program can finish")
    chain, closed = waits.follow(int(stuck[0]))
    kind = (
        "each waits for the next, the last for the first"
        if closed
        else "each waits for the next"
    )
    if len(chain) > 2 * MOST_NAMED:
        ends = chain[:MOST_NAMED], chain[-MOST_NAMED:]
        named = [" <- ".join(map(waits.describe, part)) for part in ends]
        steps = f"{named[0]} <- ... {len(chain) - 2 * MOST_NAMED} more <- {named[1]}"
    else:
        steps = " <- ".join(waits.describe(instance) for instance in chain)
    remedy = "" if broken else _circle_remedy(fabric)
    return DeadlockError(
        f"{head}{len(stuck)} of {waits.count} programs are stuck; {kind}: {steps}{remedy}"
    )


def undelivered_error(fabric: Fabric, engine: Engine) -> DeadlockError:
    """Return the error of traffic with messages that cannot be delivered."""
    times = engine.message_times()
    count = int(np.count_nonzero(times < 0))
    return DeadlockError(
        f"deadlock at {engine.now_ps} ps: {count} of {len(times)} messages cannot be delivered; a wire they need is"
        f" down, or buffers wait for each other in a circle{_circle_remedy(fabric)}"
    )


def _circle_remedy(fabric: Fabric) -> str:
    """Return the key that breaks a circle of waiting buffers on a topology; empty without a circle."""
    from clusim.topology.deadlock import check_deadlock

    warnings = [
        item.what
        for item in check_deadlock(arrays_of(fabric))
        if item.level == "warning"
    ]
    return f"; {warnings[0]}" if warnings else ""


def _broken(
    fabric: Fabric, counters: Array, faults: Sequence[Fault], now_ps: int
) -> str:
    """Return a text of the links that are down and their waiting packets; empty if all are up."""
    arrays = arrays_of(fabric)
    since: dict[int, int] = {}
    for fault in sorted(faults, key=lambda item: item.time_ps):
        if fault.wire is None or fault.bit_errors or fault.time_ps > now_ps:
            continue
        wire = (
            fault.wire
            if isinstance(fault.wire, int)
            else arrays.wire_names.index(fault.wire)
        )
        if fault.factor == 0:
            since.setdefault(wire, fault.time_ps)
        else:
            since.pop(wire, None)
    queued = counters["queued_bytes"]
    order = sorted(since, key=lambda wire: (-int(queued[wire]), wire))
    listed = [wire for wire in order if queued[wire]] or order
    texts = []
    for wire in listed[:MOST_NAMED]:
        waiting = (
            f" with {int(queued[wire])} B waiting for it" if queued[wire] else ""
        )
        texts.append(
            f"{arrays.wire_names[wire]} is down since {format_time(since[wire])}{waiting}"
        )
    if len(since) > len(texts):
        texts.append(f"{len(since) - len(texts)} more wires are down")
    return ", ".join(texts)


class Waits:
    """The wait-for relation between program instances; proxies count as part of their sender."""

    def __init__(self, schedule: Schedule, lowered: Lowered, states: Array) -> None:
        self._schedule = schedule
        self._lowered = lowered
        self._image = lowered.image
        self.count = len(schedule.instances)
        self._states = states[: self.count]
        self._proxies: dict[int, list[int]] = {}
        for number, sender in enumerate(lowered.proxy_of):
            row = states[self.count + number]
            if row["state"] != State.DONE:
                self._proxies.setdefault(sender, []).append(self.count + number)
        self._all_states = states
        self._users: dict[int, list[int]] = {}
        for index, instance in enumerate(schedule.instances):
            for connection in instance.connections:
                self._users.setdefault(connection, []).append(index)

    def stuck(self) -> Array:
        """Return the programs that are not done."""
        return np.flatnonzero(self._states["state"] != State.DONE)

    def halted_programs(self) -> list[str]:
        """Return the programs with a transfer in progress, by them or their proxies, and its peer."""
        result = []
        for index in self.stuck().tolist():
            instance = self._schedule.instances[index]
            who = f"rank {instance.rank} channel {instance.channel}"
            if self._states["state"][index] == State.BUSY:
                result.append(who)
            for proxy in self._proxies.get(index, ()):
                if self._all_states["state"][proxy] == State.BUSY:
                    result.append(f"{who} (at its NIC)")
        return result

    def _connection(self, number: int) -> int:
        """Return the schedule's connection for a connection of the image."""
        return self._lowered.owner[number] if self._lowered.owner else number

    def follow(self, start: int) -> tuple[list[int], bool]:
        """Follow the waiting from `start`; return the cycle and True, or the chain and False."""
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
            number = self._connection(int(state["conn"]))
            connection = self._schedule.connections[number]
            peer = connection.src if kind is State.WAIT_RECV else connection.dst
            users = self._users.get(number, [])
            yield from self._unfinished_programs(
                u for u in users if u != index and self._rank(u) == peer
            )
        elif kind is State.WAIT_CTA_SLOT:
            holders = range(len(self._states))
            yield from (
                h
                for h in self._unfinished_programs(holders)
                if self._rank(h) == instance.rank
                and self._states["state"][h] >= State.WAIT_RECV
            )
        elif kind is State.NOT_STARTED:
            for task in self._schedule.tasks[instance.task].deps:
                yield from self._unfinished_programs(
                    self._schedule.instances_of(task)
                )

    def _unfinished_programs(self, candidates: Any) -> Iterator[int]:
        return (int(c) for c in candidates if self._states["state"][c] != State.DONE)

    def _rank(self, index: int) -> int:
        return self._schedule.instances[index].rank

    def describe(self, index: int) -> str:
        """Return one instance and the object of its wait: rank, channel, primitive, peer and slot."""
        state, instance = self._states[index], self._schedule.instances[index]
        kind = State(int(state["state"]))
        who = f"rank {instance.rank} channel {instance.channel}"
        if kind is State.NOT_STARTED:
            return f"{who} (not started: an earlier task is not done)"
        if kind is State.WAIT_CTA_SLOT:
            return f"{who} (no free CTA slot on the GPU)"
        if kind not in (State.WAIT_RECV, State.WAIT_SEND):
            return f"{who} (busy: its data cannot move)"
        number = self._connection(int(state["conn"]))
        connection = self._schedule.connections[number]
        operation, slot = self._primitive(index, number)
        if kind is State.WAIT_RECV:
            return f"{who} ({operation} needs slot {slot} filled by rank {connection.src})"
        return (
            f"{who} ({operation} needs slot {slot} freed by rank {connection.dst})"
        )

    def _primitive(self, index: int, connection: int) -> tuple[str, int]:
        """Return the name of the blocked primitive and the slot of `connection` it is at."""
        instance = self._schedule.instances[index]
        template = self._schedule.templates[instance.template]
        first = int(
            self._image.templates["prim_lo"][
                self._image.instances["template"][index]
            ]
        )
        prim = template.prims[int(self._states["prim"][index]) - first]
        local = instance.connections.index(connection)
        done = islice(
            iter_slices(instance, template), int(self._states["seq"][index])
        )
        before = sum(
            item.slots for item in done if local in (item.prim.recv, item.prim.send)
        )
        return prim.op, before % self._schedule.connections[connection].slots


VERIFY_LIMIT_BYTES = 4 << 30
"""Memory limit for the real numbers of a verified run."""


def require_room(schedule: Schedule) -> None:
    """Raise if the data would exceed `VERIFY_LIMIT_BYTES`."""
    need_bytes = sum(3 * call.bytes * len(call.ranks) for call in schedule.calls)
    if need_bytes > VERIFY_LIMIT_BYTES:
        raise InputError(
            f"verify: real data would need {need_bytes / 2**30:.1f} GiB of memory; the largest is "
            f"{VERIFY_LIMIT_BYTES >> 30} GiB: use a smaller size"
        )


class Checker:
    """Sink of completion records that carries real numbers through a run.

    The numbers are random, so float results may differ from the exact sums by rounding; more than one unit in
    the last place per rank is an error. The size of the difference shows the order of an algorithm's sums.
    """

    takes_proxies = False

    def __init__(self, schedule: Schedule) -> None:
        from clusim.schedule.executor import Executor

        self._most = max((len(call.ranks) for call in schedule.calls), default=1)
        self._executor = Executor(schedule, data="random")

    def records(self, records: Array) -> None:
        """Perform the slices in the order of their completion."""
        columns = (records[name].tolist() for name in ("time_ps", "instance", "seq"))
        self._executor.apply(zip(*columns, strict=True))

    def tick(self, now_ps: int, engine: Engine, recorder: BinRecorder) -> None:
        """Ignore ticks: the check needs only records."""

    def outcome(self) -> tuple[bool, str]:
        """Return True if the data are right, and a text of the result."""
        checks = self._executor.check(float(self._most))
        bad = [check for check in checks if not check.ok]
        if bad:
            return (
                False,
                f"{bad[0].operation}: {bad[0].wrong} elements wrong, first {bad[0].first}",
            )
        worst = max((check.max_ulp for check in checks), default=0.0)
        exact = "every element equals the definition"
        return (
            True,
            f"rounding differs by at most {worst:.2f} ulp" if worst else exact,
        )
