"""Flows with a policy of senders and one of receivers: both must permit a packet (section 5)."""

from __future__ import annotations

from clusim.engine.reference.packets import Packet, Transfer
from clusim.engine.reference.receivers import CreditLink
from clusim.engine.reference.senders import SenderRate
from clusim.engine.reference.specs import FlowRate


class MixedRate:
    """Rate control of a flow by its policy, for transfers to a receiver that grants credit.

    Repeats that wait are those of the flow: they continue with its notices and with credit.
    """

    def __init__(self, sender: SenderRate, credit: CreditLink) -> None:
        self._sender, self._credit = sender, credit
        self.blocked = sender.blocked
        sender.credit = credit
        credit.resumed = sender.resume

    @property
    def next_ps(self) -> int:
        """Earliest start of the next packet [ps]."""
        return max(self._sender.next_ps, self._credit.next_ps)

    def start(self, transfer: Transfer) -> None:
        """Begin a transfer."""
        self._sender.start(transfer)
        self._credit.start(transfer)

    def finish(self) -> None:
        """End the injection of the transfer."""
        self._sender.finish()
        self._credit.finish()

    def count_sent(self, packet: Packet) -> None:
        """Count a packet granted now."""
        self._credit.count_sent(packet)
        self._sender.count_sent(packet)

    def notice_delivery(self, packet: Packet) -> None:
        """Notify the sender, then the receiver, of a packet delivered now."""
        self._sender.notice_delivery(packet)
        self._credit.notice_delivery(packet)

    def notice_trimmed(self, packet: Packet) -> None:
        """Notify the receiver of a header."""
        self._credit.notice_trimmed(packet)

    def lose(self, packets: list[tuple[Transfer, int]], more_bytes: int) -> None:
        """Request credit for lost packets, and notify the policy of those in flight."""
        self._credit.lose(packets, more_bytes)
        self._sender.lose(packets, more_bytes)

    def route_key(self, key: int, wires: int) -> int:
        """Return the route key of the next packet of a pinned transfer."""
        return self._sender.route_key(key, wires)


def joint_rate(rate: FlowRate | None, credit: FlowRate | None) -> FlowRate | None:
    """Return the rate control of a transfer: that of its flow, credit of its receiver, or both."""
    if isinstance(rate, SenderRate) and isinstance(credit, CreditLink):
        return MixedRate(rate, credit)
    return credit if rate is None else rate
