"""Payload of transfers, recorded for the laws of section 12."""

from __future__ import annotations

from clusim.base.errors import InternalError
from clusim.engine.abi import Kind
from clusim.engine.reference.packets import Transfer


def demand(holds: bool, what: str, found: int, bound: int) -> None:
    """Raise `InternalError` unless a law holds."""
    if not holds:
        raise InternalError(f"conservation: {what}: {found} against {bound}")


class Payload:
    """Payload of complete transfers out of each endpoint and into it [bytes].

    Attributes
    ----------
    relayed : bool
        Whether a packet passed through an endpoint, whose wires then carry more.
    """

    def __init__(self, endpoints: int) -> None:
        self.sent = [0] * endpoints
        self.taken = [0] * endpoints
        self.relayed = False

    def complete(self, transfer: Transfer) -> None:
        """Count a transfer that is complete now, and check that all of it was delivered."""
        terms, size, own = transfer.terms, transfer.bytes, transfer.terms.requester
        asked = size * (transfer.deliveries // transfer.count)
        what = f"bytes delivered of a transfer of endpoint {own}"
        demand(transfer.delivered_bytes == asked, what, transfer.delivered_bytes, asked)
        fetches = terms.kind in (Kind.READ_REQ, Kind.RED_REQ)
        if fetches or terms.kind == Kind.AGG_UP:
            self.taken[own] += size
        if not fetches or terms.multicast_result:
            self.sent[own] += size
        for member in terms.members:
            self.sent[member] += size if fetches else 0
            self.taken[member] += size if not fetches or terms.multicast_result else 0
        if terms.kind in (Kind.WRITE, Kind.FETCH):
            self.taken[terms.targets[-1]] += size
        elif terms.kind == Kind.READ_REQ:
            self.sent[terms.targets[-1]] += size
