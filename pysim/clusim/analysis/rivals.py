"""Share of a wire's traffic that belongs to other concurrent collectives."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np

from clusim.analysis.network import Network
from clusim.analysis.walk import Walk
from clusim.results.trace.held import Inputs

MOST_INSTANCES = 8192
"""Instances of a call up to which its bytes are put on wires."""


class Rivals:
    """Collectives of a run that share wires.

    A call is assumed to send evenly from its first start to its last end, and over the wires that its packets may
    cross.
    """

    def __init__(self, walk: Walk, network: Network, inputs: Inputs) -> None:
        self._walk, self._network, self._inputs = walk, network, inputs
        self.call_of = self._calls()
        self._spans = self._call_spans()
        self._loads: dict[int, dict[int, float]] = {}
        ordered = sorted(self._spans.values())
        self.any = any(later[0] < before[1] for before, later in pairwise(ordered))

    def share(
        self, task: int, wire: int, start_ps: int, end_ps: int
    ) -> tuple[float, set[int]]:
        """Return the share of other calls in a wire's bytes between two times, and these calls."""
        own_call = int(self.call_of[task]) if task < len(self.call_of) else -1
        if not self.any or own_call < 0:
            return 0.0, set()
        mine, rival_rate, who = self._rate(own_call, wire), 0.0, set()
        for call, (low, high) in self._spans.items():
            part = (min(high, end_ps) - max(low, start_ps)) / max(
                1, end_ps - start_ps
            )
            if (
                call != own_call
                and part > 0
                and (rate := self._rate(call, wire)) > 0
            ):
                rival_rate += part * rate
                who.add(call)
        return rival_rate / (
            mine + rival_rate
        ) if mine + rival_rate > 0 else 0.0, who

    def name(self, call: int) -> str:
        """Return the name of a call."""
        operations, off = (
            self._inputs.texts("calls/operation"),
            self._inputs.numbers("calls/ranks_off"),
        )
        streams = self._inputs.texts("tasks/stream")
        stream = streams[int(np.flatnonzero(self.call_of == call)[0])]
        return f"{operations[call]} of {int(off[call + 1] - off[call])} ranks on stream {stream}"

    def tasks_of(self, calls: frozenset[int]) -> frozenset[int]:
        """Return the tasks of calls, proxies with them."""
        return frozenset(np.flatnonzero(np.isin(self.call_of, list(calls))).tolist())

    def _calls(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the call of every task of the image, or -1; a proxy has the call of its sender."""
        image = self._network.image
        result = np.full(len(image["tasks"]), -1, np.int64)
        call_of = self._inputs.numbers("tasks/call")
        result[: len(call_of)] = call_of
        task_of, slices = image["instances"]["task"], self._walk.slices
        for instance in range(self._network.num_programs, len(task_of)):
            template = image["templates"][image["instances"]["template"][instance]]
            prim = int(template["prim_lo"])
            if prim < int(template["prim_hi"]):
                connection = slices.connection(instance, prim, send=False)
                for sender in slices.users(connection, send=True)[:1]:
                    result[task_of[instance]] = result[task_of[sender]]
        return result

    def _call_spans(self) -> dict[int, tuple[int, int]]:
        spans: dict[int, tuple[int, int]] = {}
        for task in np.flatnonzero(self.call_of >= 0).tolist():
            call, span = int(self.call_of[task]), self._walk.task_span(task)
            low, high = zip(span, spans.get(call, span), strict=True)
            spans[call] = min(low), max(high)
        return spans

    def _rate(self, call: int, wire: int) -> float:
        """Return the mean rate at which a call sends over a wire [bytes/ps]."""
        if call not in self._loads:
            self._loads[call] = self._load(call)
        low, high = self._spans[call]
        return self._loads[call].get(wire, 0.0) / max(1, high - low)

    def _load(self, call: int) -> dict[int, float]:
        """Return the bytes that a call sends over each wire."""
        image, slices = self._network.image, self._walk.slices
        instances = np.flatnonzero(self.call_of[image["instances"]["task"]] == call)
        if len(instances) > MOST_INSTANCES:
            return {}
        moved: dict[tuple[int, int, int], float] = defaultdict(float)
        for instance in instances.tolist():
            table = slices.table(instance)
            endpoint = int(image["instances"]["endpoint"][instance])
            for prim in np.unique(table.prim).tolist():
                connection = self._walk.transfer_connection(instance, prim)
                if 0 <= connection < len(image["conns"]):
                    size = float(table.bytes[table.prim == prim].sum())
                    moved[connection, endpoint, slices.flags(prim)] += size
        load: dict[int, float] = defaultdict(float)
        for (connection, endpoint, flags), size in moved.items():
            for stage in self._network.stages_of(connection, endpoint, flags):
                for lane in stage.lanes:
                    load[lane] += size / len(stage.lanes)
        return load
