"""Samples of counters at given times of a run (`clusim.engine.abi.Engine.sample`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.engine.abi import FLOW_SAMPLE, WIRE_SAMPLE, Beyond
from clusim.engine.reference.machine import Machine

Row = tuple[int, ...]


class Samples:
    """Counters of wires and endpoints, and the state of some flows, at given times.

    Attributes
    ----------
    times_ps : list of int
        Future times [ps].
    """

    def __init__(
        self, machine: Machine, times_ps: Sequence[int], flows: Sequence[int]
    ) -> None:
        self._machine, self.times_ps = machine, list(times_ps)
        connections = len(machine.model.conns)
        self._controls = []
        for flow in flows:
            who = Beyond.CONNECTION, flow
            if flow >= connections:
                who = Beyond.SOURCE, flow - connections
            self._controls.append(machine.controls[who])
        self._rows: list[tuple[list[Row], list[int], list[Row]]] = []

    def flows(self) -> list[Row]:
        """Return the present state of the flows."""
        return [control.sample() for control in self._controls]

    def record_until(self, end_ps: int) -> None:
        """Record the times before `end_ps`."""
        while self.times_ps and self.times_ps[0] < end_ps:
            time_ps = self.times_ps.pop(0)
            wires = []
            for wire in self._machine.wires:
                counters = wire.read(time_ps)
                wires.append(
                    tuple(counters[name] for name in WIRE_SAMPLE.names or ())
                )
            memory = [memory.bytes_256 for memory in self._machine.memories]
            self._rows.append((wires, memory, self.flows()))

    def read(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the samples of times passed, one row per time."""
        count, machine = len(self._rows), self._machine
        wires = np.array([row[0] for row in self._rows], WIRE_SAMPLE)
        memory = np.array([row[1] for row in self._rows], np.uint64)
        flows = np.array([row[2] for row in self._rows], FLOW_SAMPLE)
        return (
            wires.reshape(count, len(machine.wires)),
            memory.reshape(count, len(machine.memories)),
            flows.reshape(count, len(self._controls)),
        )
