"""Laws of RCCC on a system with NICs: flows into one NIC fill its link equally, and their queue is bounded."""

from __future__ import annotations

import pytest

import clusim
from clusim.lowering.controls import with_policy
from clusim.policies.choice import Sender, find_policy
from clusim.simulation.flows import Flow
from clusim.topology.save import to_yaml

WINDOW = 400 * 10**9 // 8 * 12 // 10**6 * 3 // 2
"""First window: 1.5 products of 400 Gb/s and 12 us [bytes]."""

HEADERS = 1.03
"""Bytes of packets on a link, relative to their payload, at most."""


SYSTEM = """
name: deep
link_types: {deep: {base: roce-400, pfc: none, ecn: none, buffer: 64MiB}}
cluster: {node: hgx-h20, nodes: NODES, network: {kind: rail, link: deep, switch: spectrum4}}
"""
"""Buffers larger than all messages, so that only senders limit the queues."""


def into_one(senders: int, size_bytes: int, policy: str) -> clusim.Result:
    """Return flows of different nodes to the first GPU."""
    flows = [Flow(8 * node, 0, size_bytes) for node in range(1, senders + 1)]
    options = {"routing": "ecmp", "granularity": "packet", "policy": policy}
    fabric = clusim.topology.loads(SYSTEM.replace("NODES", str(senders + 1)))
    return clusim.traffic(fabric, flows=flows, **options)


def test_the_window_is_that_of_the_source() -> None:
    """uet-htsim: 1.5 products of rate and round trip, units of 4096 B."""
    constants = find_policy("rccc").constants
    assert (constants["base_ps"], constants["pull_bytes"]) == (12_000_000, 4096)
    assert WINDOW == 900_000


@pytest.mark.parametrize("senders", [2, 4])
def test_flows_into_one_link_have_a_queue_of_their_windows_at_most(senders: int) -> None:
    """Without credit they are the messages, less than the link moves until the last one has left its sender."""
    size_bytes = 4 << 20
    held = into_one(senders, size_bytes, "receiver=rccc")
    free = into_one(senders, size_bytes, "sender=none")
    queues = [int(one.wires.counters["queued_max"].max()) for one in (held, free)]
    assert queues[0] <= senders * WINDOW * HEADERS
    assert queues[1] > 0.95 * (senders - 1) * size_bytes > queues[0]
    assert held.time_ps <= free.time_ps * 1.001


def test_equal_flows_end_together() -> None:
    """Round robin of grants: the ends of four flows of 4 MiB differ by their windows at most."""
    messages = into_one(4, 4 << 20, "receiver=rccc").messages
    ends = [int(messages.end_ps[messages.flow == flow].max()) for flow in range(4)]
    rates = [1e12 / end for end in ends]
    assert sum(rates) ** 2 / (len(rates) * sum(rate**2 for rate in rates)) > 0.95
    assert max(ends) - min(ends) <= 4 * WINDOW * 20  # 20 ps per byte


def test_a_topology_file_has_the_policy_of_receivers() -> None:
    fabric = with_policy(clusim.load("hgx-h20:nodes=2"), "receiver=rccc")
    again = clusim.topology.loads(to_yaml(fabric))
    (sender,) = {node.nic.rate_control.sender for node in again.nodes if node.nic is not None}
    assert sender == Sender("rccc")
    result = clusim.traffic(again, flows=[Flow(8, 0, 1 << 20)])
    assert "receiver policy: rccc" in result.provenance.notes
