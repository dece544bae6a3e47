"""RCCC: receivers of Ultra Ethernet grant credit to their senders at the rate of their link.

**Hardware** Receiver-credit congestion control of Ultra Ethernet NICs (UEC specification 1.0).

**Model** The pull pacer of the authors' simulator (uet-htsim, ``UecPullPacer`` and ``UecSink`` of ``sim/uec.cpp``).
Flows send a window before they have credit. A receiver grants one unit after another, at the rate of its link, to the
flows with payload left in turn; then to the others, so that each has a window for its next transfer. Payload in flight
and credit of a flow are at most its window, so the queue before the receiver is at most the windows of its senders.

**Not modelled** The loss of credit of the first window at the first grant, a slower rate after congestion inside the
network or on PCIe, NSCC at the same time. Requests and credit are delays without bytes.

**Parameters** Constants of the class, each *published* or *assumed*.
"""

from __future__ import annotations

from typing import Final

from clusim.policies.kinds import TRIM
from clusim.policies.sender import ReceiverFlows

ACTIVE = 0
IDLE = 1


class Rccc(ReceiverFlows):
    """RCCC.

    *published* in uet-htsim: grants of 8 units of 512 B (``_credit_per_pull``), each at the time of a packet with a
    header of 64 B (``_hdr_size``), a first window of 1.5 products of rate and round trip (``initRccc``), and its round
    trip of 12 us (``_reference_network_rtt``); *assumed*: all of the link, of which uet-htsim grants 0.99.
    """

    pull_bytes: Final = 4096
    header_bytes: Final = 64
    base_ps: Final = 12_000_000
    share_65536: Final = 65536

    largest_bytes: int = 0
    free_ps: int = 0
    first: list[int] = [0] * 2
    last: list[int] = [0] * 2

    class Flow:
        """Payload requested and not granted, and granted and not arrived; its places in the two lists."""

        demand: int = 0
        open: int = 0
        listed: list[int] = [0] * 2
        following: list[int] = [0] * 2

    def start(self, now_ps: int, flows: list[Rccc.Flow], flow: int) -> None:
        """Let a flow begin with its window."""
        self.credit = window(self)
        flows[flow].open = self.credit
        flows[flow].demand = -self.credit

    def requested(
        self,
        now_ps: int,
        flows: list[Rccc.Flow],
        flow: int,
        size_bytes: int,
        lost: int,
    ) -> None:
        """Count the payload; lost payload will not arrive."""
        flows[flow].demand += size_bytes
        if lost:
            flows[flow].open = max(0, flows[flow].open - size_bytes)
        enlist(self, flows, flow)
        pull(self, now_ps, flows)

    def arrived(
        self,
        now_ps: int,
        flows: list[Rccc.Flow],
        flow: int,
        size_bytes: int,
        mark: int,
    ) -> None:
        """Count payload that arrived; headers of trimmed packets are requested again."""
        self.largest_bytes = max(self.largest_bytes, size_bytes)
        if mark != TRIM:
            flows[flow].open = max(0, flows[flow].open - size_bytes)
        enlist(self, flows, flow)
        pull(self, now_ps, flows)

    def timer(self, now_ps: int, flows: list[Rccc.Flow]) -> None:
        """Grant the next unit."""
        pull(self, now_ps, flows)


def unit(receiver: Rccc) -> int:
    """Return the bytes of a grant: of a packet, or of a burst."""
    return max(receiver.pull_bytes, receiver.largest_bytes)


def window(receiver: Rccc) -> int:
    """Return the bytes of a window: 1.5 products of rate and round trip, at least two grants."""
    product_bytes = (receiver.line_rate * receiver.base_ps) >> 30
    return max(product_bytes * 3 // 2, 2 * unit(receiver))


def enlist(receiver: Rccc, flows: list[Rccc.Flow], flow: int) -> None:
    """Put a flow that may have credit at the end of its list: with payload left, or without."""
    if flows[flow].open + unit(receiver) > window(receiver):
        return
    kind = ACTIVE if flows[flow].demand > 0 else IDLE
    if flows[flow].listed[kind]:
        return
    flows[flow].listed[kind] = 1
    flows[flow].following[kind] = 0
    if receiver.first[kind] == 0:
        receiver.first[kind] = flow + 1
    else:
        flows[receiver.last[kind] - 1].following[kind] = flow + 1
    receiver.last[kind] = flow + 1


def delist(receiver: Rccc, flows: list[Rccc.Flow], kind: int) -> int:
    """Remove and return the first flow of a list that may have credit; -1 without one."""
    while receiver.first[kind] > 0:
        flow = receiver.first[kind] - 1
        receiver.first[kind] = flows[flow].following[kind]
        flows[flow].listed[kind] = 0
        fits = flows[flow].open + unit(receiver) <= window(receiver)
        if fits and (flows[flow].demand > 0) == (kind == ACTIVE):
            return flow
    return -1


def pull(receiver: Rccc, now_ps: int, flows: list[Rccc.Flow]) -> None:
    """Grant a unit to the next flow, unless the last grant was just now; set the time of the next one."""
    if now_ps >= receiver.free_ps:
        flow = delist(receiver, flows, ACTIVE)
        if flow < 0:
            flow = delist(receiver, flows, IDLE)
        if flow >= 0:
            receiver.flow = flow
            receiver.credit = unit(receiver)
            flows[flow].demand -= receiver.credit
            flows[flow].open += receiver.credit
            enlist(receiver, flows, flow)
            packets = -(-receiver.credit // receiver.pull_bytes)
            wire_bytes = receiver.credit + packets * receiver.header_bytes
            rate = max(1, (receiver.line_rate * receiver.share_65536) >> 16)
            receiver.free_ps = now_ps + max(1, (wire_bytes << 30) // rate)
    if (
        receiver.free_ps > now_ps
        and receiver.first[ACTIVE] + receiver.first[IDLE] > 0
    ):
        receiver.timer_ps = receiver.free_ps
