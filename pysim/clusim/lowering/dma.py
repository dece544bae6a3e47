"""Loads of CTAs from host memory beside the transfers of NICs on the PCIe link of their GPU.

**Hardware** A NIC reads and writes the memory of a GPU over the GPU's PCIe link (GPUDirect RDMA), a message at nearly
the rate of that link. A CTA that sends or receives loads the state of each step from host memory (NCCL, ``src/device/
prims_simple.h``, ``connFifo``). The request crosses the link among data to the NIC, the answer among data from it.
**Model** Of messages (`clusim.nccl.programs.messages`): a load waits in each direction for half a message if the link
is busy. With `n` programs that send or receive messages of duration `b` over the link, a step of duration `T` finds
it busy for `n b` of `T`, so that `l` loads extend `T` by ``l n b^2 / (2 T)``; at most by a message each. A NIC
with less than `NEARLY` of the rate of the link leaves gaps for loads (assumed; the witness has 0.79).
**Not modelled** Waits of collectives: their calibration contains a part; links other than PCIe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import sqrt

import numpy as np

from clusim.engine.abi import NONE
from clusim.lowering.hops import Leg
from clusim.lowering.proxies import ProxiedConnection
from clusim.schedule.ir import Schedule
from clusim.topology.arrays import FabricArrays

NEARLY = 0.7
"""Least rate of a NIC over that of the link on which loads wait; **assumed**: 400 Gb/s on PCIe 5 x16 has 0.79."""

Place = tuple[int, int]
"""Call and endpoint."""


def waits_ps(step_ps: float, loads: int, programs: int, message_ps: float) -> int:
    """Return the extension of a step by the waits of its loads [ps].

    Parameters
    ----------
    step_ps, message_ps : float
        Step without waits, and the transfer of a message over the link [ps].
    programs : int
        Programs with messages over the link, in both directions together.
    """
    load = loads * programs * message_ps * message_ps / 2
    extension = (sqrt(step_ps * step_ps + 4 * load) - step_ps) / 2
    return round(min(extension, loads * message_ps))


class NicTransfers:
    """Programs of a schedule with messages between a NIC and an endpoint's memory, and the rates of their wires.

    Parameters
    ----------
    links : mapping of int to ProxiedConnection
        Connections between nodes; `leg_of` are the legs of the image's connections.
    """

    def __init__(
        self,
        schedule: Schedule,
        links: Mapping[int, ProxiedConnection],
        leg_of: list[Leg],
        arrays: FabricArrays,
    ) -> None:
        self._arrays = arrays
        self._programs: Counter[Place] = Counter()
        self._rate: dict[Place, float] = {}
        self._lines: dict[int, float] = {}
        for item in schedule.instances if links else ():
            far = [
                number
                for number in item.connections
                if number in links and item.shared
            ]
            places = set()
            for number in far:
                link, call = links[number], schedule.tasks[item.task].call
                receives = schedule.connections[number].dst == item.rank
                endpoint = (
                    leg_of[link.second].dst if receives else link.proxy.endpoint
                )
                places.add((call, endpoint))
                if (call, endpoint) not in self._rate:
                    self._rate[call, endpoint] = self._line(leg_of[link.second])
            self._programs.update(places)

    def _line(self, leg: Leg) -> float:
        """Return the rate of a connection's NIC over all its ports [bytes per ps], 0 if it is not known."""
        if leg.line_wire == NONE:
            return 0.0
        if leg.line_wire not in self._lines:
            wires, line = self._arrays.wires, self._arrays.wire_class[leg.line_wire]
            ports = np.flatnonzero(wires["src"] == wires["src"][leg.line_wire])
            same = [
                port
                for port in ports.tolist()
                if self._arrays.wire_class[port] == line
            ]
            self._lines[leg.line_wire] = sum(
                int(wires["rate_num"][port]) / int(wires["rate_den"][port])
                for port in same
            )
        return self._lines[leg.line_wire]

    def concurrent_programs(self, call: int, endpoint: int) -> int:
        """Return the programs of a call with messages over the link of an endpoint."""
        return self._programs[call, endpoint]

    def message_ps(
        self, call: int, endpoint: int, path: tuple[int, ...], size_bytes: int
    ) -> float:
        """Return the transfer of a message over the first wire of an endpoint's way to its host memory [ps]."""
        if not path or self._arrays.wire_class[path[0]] != "pcie":
            return 0.0
        wire, line = (
            self._arrays.wires[path[0]],
            self._rate.get((call, endpoint), 0.0),
        )
        link = int(wire["rate_num"]) / int(wire["rate_den"])
        return size_bytes / min(link, line) if line >= NEARLY * link else 0.0
