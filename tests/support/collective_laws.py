"""What the laws of collectives are about: messages that wait for messages, payload per wire, busy bottlenecks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

import clusim
from clusim.collectives import build
from clusim.collectives.api import REGISTRY
from clusim.engine.abi import Op
from clusim.engine.image import OPCODES
from clusim.results.result import Result
from clusim.schedule import ABSENT, Schedule
from clusim.schedule.iteration import Slice, iter_slices
from clusim.topology import Fabric, load

__all__ = ["busy", "fitting", "machine", "moved", "moved_by_class", "run", "sequential_steps"]


def fitting(pair: tuple[str, str], *counts: int) -> tuple[int, ...]:
    """Return the numbers of ranks for which an algorithm is defined; a message has two ends."""
    if pair[0] == "send":
        return (2,)
    return tuple(count for count in counts if REGISTRY[pair].fits(count))


BY_SWITCH = Op.MCAST | Op.REDUCE | Op.AGGREGATE


class _Steps:
    """Counts, slice by slice in any legal order, the messages that had to arrive one after the other before each."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.work = [
            list(iter_slices(item, schedule.templates[item.template]))
            for item in schedule.instances
        ]
        self.at = [0] * len(self.work)
        self.steps = [0] * len(self.work)
        self.posted: dict[int, list[int]] = defaultdict(list)
        self.consumed: dict[int, list[int]] = defaultdict(list)
        self.arrived: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
        self.round: dict[int, int] = defaultdict(int)

    def run(self) -> int:
        """Return the most messages of a chain; fails where nothing can go on."""
        left = sum(map(len, self.work))
        while left:
            before = left
            for index in range(len(self.work)):
                while self.at[index] < len(self.work[index]) and self._advance(index):
                    left -= 1
            assert left < before, "nothing can go on"
        return max(self.steps)

    def _flight(self, connection: int) -> int:
        """Return what crossing a connection counts: nothing from a rank to itself."""
        ends = self.schedule.connections[connection]
        return int(ends.src != ends.dst)

    def _advance(self, index: int) -> bool:
        """Perform the next slice of an instance, if its gate is open."""
        instance, item = self.schedule.instances[index], self.work[index][self.at[index]]
        flags, depth = OPCODES[item.prim.op].flags, self.steps[index]
        waits = [depth]
        into = out = ABSENT
        if flags & Op.RECV:
            into = instance.connections[item.prim.recv]
            if len(self.posted[into]) <= len(self.consumed[into]):
                return False
            waits.append(self.posted[into][len(self.consumed[into])] + self._flight(into))
        if flags & Op.SEND:
            out = instance.connections[item.prim.send]
            held = self.schedule.connections[out].slots // instance.slots_per_slice
            freed = len(self.posted[out]) - held
            if freed >= 0:
                if len(self.consumed[out]) <= freed:
                    return False
                waits.append(self.consumed[out][freed] + self._flight(out))
        if flags & Op.AGGREGATE and not self._all_there(index, instance.connections, item, waits):
            return False
        done = max(waits) + bool(flags & BY_SWITCH)
        if into != ABSENT:
            self.consumed[into].append(done)
        if out != ABSENT:
            self.posted[out].append(done)
        self.steps[index] = done
        self.at[index] += 1
        return True

    def _all_there(
        self, index: int, connections: tuple[int, ...], item: Slice, waits: list[int]
    ) -> bool:
        """Return whether all members have come to an aggregation, and add what they waited for."""
        own = self.schedule.connections[connections[item.prim.send]]
        here = self.arrived[own.key, own.members, self.round[index]]
        if index not in [other for other, _ in here]:
            here.append((index, self.steps[index]))
        if len(here) < len(own.members):
            return False
        self.round[index] += 1
        waits += [depth for _, depth in here]
        return True


def sequential_steps(schedule: Schedule) -> int:
    """Return how many messages (or operations of a switch) follow each other on the longest chain of a schedule.

    A message follows another if its sender had to receive that one, or had to be told that a slot is free, first. What
    a rank tells itself is no message.
    """
    return _Steps(schedule).run()


@lru_cache(maxsize=64)
def machine(name: str, nodes: int = 1) -> Fabric:
    """Return a preset or generated fabric, or several of them joined by their network.

    Its CTAs are as fast together as alone: what they take from each other has laws of its own (`test_crowd`).
    """
    fabric = load(name, nodes=nodes) if nodes > 1 else load(name)
    alone = {key: replace(item, crowding=0.0) for key, item in fabric.protocols.items()}
    return replace(fabric, protocols=alone)


@lru_cache(maxsize=256)
def run(
    fabric: tuple[str, int],
    operation: str,
    algorithm: str,
    size_bytes: int,
    burst: int | str = "auto",
    channels: int | None = None,
) -> Result:
    """Return what happens when all ranks of a machine do a collective."""
    schedule = build(machine(*fabric), operation, algorithm, size_bytes, channels=channels)
    return clusim.simulate(machine(*fabric), schedule, granularity=burst)


def moved(result: Result) -> dict[tuple[str, str], int]:
    """Return the payload over all parallel wires between two nodes [bytes]."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    for name, payload in zip(result.wires.names, result.wires.counters["payload"], strict=True):
        src, dst = name.rsplit(".", 1)[0].split("->")
        if payload:
            found[src, dst] += int(payload)
    return dict(found)


def moved_by_class(result: Result) -> dict[str, int]:
    """Return the payload over all wires of a class [bytes]."""
    found: dict[str, int] = defaultdict(int)
    for kind, payload in zip(result.wires.classes, result.wires.counters["payload"], strict=True):
        if payload:
            found[kind] += int(payload)
    return dict(found)


def busy(result: Result) -> float:
    """Return the share of the time in which the busiest wire carries something."""
    return float(np.max(result.wires.counters["busy_ps"]) / result.time_ps)


Sent = dict[tuple[int, int], float]
"""Payload per ordered pair of ranks, as a part of the collective's size."""


PULLED = ("oneshot-pull", "twoshot-pull")


def _pairs(n: int, part: float) -> Sent:
    return {(a, b): part for a in range(n) for b in range(n) if a != b}


def _butterfly(n: int, channels: int) -> Sent:
    """Halving sends S/2 over one dimension, S/4 over the next, ...; doubling the same; channels turn the dimensions."""
    bits = n.bit_length() - 1
    sent: Sent = defaultdict(float)
    for channel in range(channels):
        for bit in range(bits):
            for a in range(n):
                partner = a ^ (1 << (bit + channel) % bits)
                sent[a, partner] += 2 * (1 << bit) / n / channels
    return dict(sent)


def sent_by_pair(operation: str, algorithm: str, n: int, channels: int) -> Sent:
    """Return what every rank sends to every other in exchanges of one machine with `n` ranks, as derived by hand.

    - a block of S/n from everybody to everybody: all-to-all, direct all-gather and reduce-scatter; two-shot does the
      latter two one after the other, and so does the hierarchy in one machine
    - the whole vector from everybody to everybody: one-shot, naive
    - LL doubles the bytes: every 8 carry 4 of flags
    - what is loaded is sent by its owner: the pulled ones are as the others, and stores of sums as a two-shot's
    - a block between the root, rank 0, and everybody: gather, scatter; the whole vector there and back: driver
    """
    lined = 2 if algorithm.endswith("ll") and algorithm not in PULLED else 1
    if algorithm == "butterfly":
        return _butterfly(n, channels)
    if algorithm == "driver":
        return {ends: 1.0 for a in range(1, n) for ends in ((a, 0), (0, a))}
    if operation in ("gather", "scatter"):
        into = operation == "gather"
        return {((a, 0) if into else (0, a)): 1 / n for a in range(1, n)}
    if operation == "sendrecv":
        return {(a, (a + 1) % n): 1.0 for a in range(n)}
    if algorithm.startswith("oneshot") or algorithm == "naive":
        return _pairs(n, lined)
    rounds = 2 if operation == "allreduce" else 1
    return _pairs(n, lined * rounds / n)
