"""Waits for timeouts of retransmission: by NIC of a run, and on its critical path."""

from __future__ import annotations

from collections.abc import Sequence

from clusim.analysis.charge import Charge
from clusim.analysis.network import Network
from clusim.analysis.walk import Step
from clusim.engine.abi import NONE
from clusim.results.cause_kinds import CauseKind
from clusim.results.resultjson import InOrderNic


class TimeoutWaits:
    """Waits for timeouts of the NICs of a run.

    Attributes
    ----------
    by_nic : dict
        Time in which a queue pair of a NIC waited for a timeout, by name [ps]; without NICs that never did.
    """

    def __init__(self, network: Network, nics: Sequence[InOrderNic]) -> None:
        self._image, self._nodes = network.image, network.nodes
        self.by_nic = {nic.nic: nic.timeout_ps for nic in nics if nic.timeout_ps}

    def sender_of(self, connection: int) -> str:
        """Return the NIC, or endpoint, that sends the data of a connection."""
        conn = self._image["conns"][connection]
        target = int(
            conn["src"] if int(conn["via_first"]) == NONE else conn["via_first"]
        )
        return self._nodes[int(self._image["targets"]["node"][target])]

    def _waited_ps(self, step: Step) -> int:
        """Return the timeouts of a step, at most the time of all of its sender [ps]."""
        if step.connection < 0 or not self.by_nic:
            return 0
        spread = int(self._image["conns"]["spread"][step.connection])
        timeout_ps = (
            0
            if spread == NONE
            else int(self._image["spreads"]["timeout_ps"][spread])
        )
        if timeout_ps == 0:
            return 0
        whole_ps = step.length_ps // timeout_ps * timeout_ps
        return min(whole_ps, self.by_nic.get(self.sender_of(step.connection), 0))

    def split(self, step: Step) -> tuple[list[Charge], Step]:
        """Return the charges of a step for timeouts, and the step without that time."""
        waited_ps = self._waited_ps(step)
        if not waited_ps:
            return [], step
        reason = "timeout without progress"
        charge = Charge(
            "stall", "retransmission", reason, waited_ps, CauseKind.TIMEOUT
        )
        return [charge], step._replace(start_ps=step.start_ps + waited_ps)
