"""Laws of conservation of the reference engine: the payload of transfers (section 12 of the contract)."""

from __future__ import annotations

from dataclasses import dataclass

from clusim.base.errors import InternalError
from clusim.engine.abi import Kind
from clusim.engine.reference.packets import Transfer


def demand(holds: bool, law: str, value: int, bound: int) -> None:
    """Raise `InternalError` unless a law holds."""
    if not holds:
        raise InternalError(f"conservation: {law}: {value} against {bound}")


class Payload:
    """Payload of complete transfers out of each endpoint and into it [bytes].

    Attributes
    ----------
    relayed : bool
        True if a packet passed through an endpoint; wires of endpoints then carry more.
    begun, repeated, arrived, dropped, trimmed : int
        Payload of transfers with receivers in order; of packets that were repeated, arrived, were dropped or trimmed.
    """

    def __init__(self, endpoints: int) -> None:
        self.sent = [0] * endpoints
        self.taken = [0] * endpoints
        self.relayed = False
        self.begun = self.repeated = self.arrived = self.dropped = self.trimmed = 0

    def check_order(self) -> None:
        """Check, after the end of all transfers, that each packet arrived or was dropped."""
        sent, ended = (
            self.begun + self.repeated,
            self.arrived + self.dropped + self.trimmed,
        )
        demand(
            sent == ended,
            "bytes received and dropped of receivers in order",
            ended,
            sent,
        )

    def complete(self, transfer: Transfer) -> None:
        """Count a complete transfer, and check that all its bytes were delivered."""
        terms, size, requester = (
            transfer.terms,
            transfer.bytes,
            transfer.terms.requester,
        )
        asked = size * (transfer.deliveries // transfer.count)
        law = f"bytes delivered of a transfer of endpoint {requester}"
        demand(
            transfer.delivered_bytes == asked, law, transfer.delivered_bytes, asked
        )
        fetches = terms.kind in (Kind.READ_REQ, Kind.RED_REQ)
        if fetches or terms.kind == Kind.AGG_UP:
            self.taken[requester] += size
        if not fetches or terms.multicast_result:
            self.sent[requester] += size
        for member in terms.members:
            self.sent[member] += size if fetches else 0
            self.taken[member] += (
                size if not fetches or terms.multicast_result else 0
            )
        if terms.kind in (Kind.WRITE, Kind.FETCH):
            self.taken[terms.targets[-1]] += size
        elif terms.kind == Kind.READ_REQ:
            self.sent[terms.targets[-1]] += size


@dataclass(slots=True)
class OrderCounters:
    """Counters of a target with receivers that accept packets in order only, and its kept bytes."""

    packets: int = 0
    early: int = 0
    repeats: int = 0
    kept_max: int = 0
    repeated_bytes: int = 0
    timeouts: int = 0
    timeout_ps: int = 0
    trimmed: int = 0
    kept: int = 0
    timeout_at_ps: int = 0

    def keep(self, size: int) -> None:
        """Add kept bytes."""
        self.kept += size
        self.kept_max = max(self.kept_max, self.kept)

    def count_timeout(self, now_ps: int, timeout_ps: int) -> None:
        """Count a timeout; time in which several queue pairs waited counts once."""
        self.timeouts += 1
        self.timeout_ps += now_ps - max(now_ps - timeout_ps, self.timeout_at_ps)
        self.timeout_at_ps = now_ps
