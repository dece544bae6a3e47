"""When host threads handed slices on: a thread does one after the other, so the wait of one is the work of others."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from clusim.analysis.network import Network
from clusim.analysis.slices import Slices
from clusim.engine.abi import NONE
from clusim.results.trace.held import Records

Array = NDArray[Any]

MOST_RECORDS = 1 << 22
"""Records up to which the slices of threads are looked for."""


class ThreadClocks:
    """The host threads of a run, followed by the contract (section 7) from the gates of their slices.

    Parameters
    ----------
    records : Records
        All completed slices.
    """

    def __init__(self, records: Records, slices: Slices, network: Network) -> None:
        self._records, self._slices, self._network = records, slices, network
        self._thread = network.image["instances"]["thread"]
        self._began: dict[tuple[int, int], int] | None = None

    def serves(self, instance: int) -> bool:
        """Return whether a thread does the work of an instance."""
        return int(self._thread[instance]) != NONE

    def began_ps(self, instance: int, seq: int) -> int | None:
        """Return when a thread had handed a slice on [ps]; None where there are too many to tell."""
        return self.handed().get((instance, seq))

    def handed(self) -> dict[tuple[int, int], int]:
        """Return when threads had handed on each slice (instance, number) [ps]; none where there are too many."""
        if self._began is None:
            self._began = self._follow() if self._records.count <= MOST_RECORDS else {}
        return self._began

    def _follow(self) -> dict[tuple[int, int], int]:
        rows: list[tuple[int, int, int]] = []
        for block in self._records.blocks():
            own = self._thread[block["instance"]] != NONE
            columns = (block[name][own].tolist() for name in ("gate", "instance", "seq"))
            rows += zip(*columns, strict=True)
        free: dict[int, int] = {}
        began: dict[tuple[int, int], int] = {}
        for gate_ps, instance, seq in sorted(rows):
            thread = int(self._thread[instance])
            own_ps, after_ps = self._costs(instance, seq, gate_ps)
            done_ps = max(gate_ps, free.get(thread, 0)) + own_ps
            free[thread] = done_ps + after_ps
            began[instance, seq] = done_ps
        return began

    def _costs(self, instance: int, seq: int, time_ps: int) -> tuple[int, int]:
        """Return what a thread does with a slice before and after it hands it on [ps]."""
        image = self._network.image
        row, table = image["instances"][instance], self._slices.table(instance)
        cost = image["costs"][int(row["cost"])]
        slow = self._network.slow_1024(int(row["endpoint"]), time_ps)
        opcode = int(image["prims"]["opcode"][int(table.prims(seq))])
        q = (int(cost["op_cost16"][opcode]) * slow) >> 10
        fixed_ps = (int(cost["fixed_ps"]) * slow) >> 10
        own_ps = fixed_ps + ((int(table.bytes[seq]) * q) >> 16)
        return own_ps, (int(cost["after_ps"]) * slow) >> 10
