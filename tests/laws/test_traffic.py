"""What synthetic traffic must take, derived from the rates and latencies of generated fabrics.

Their links carry 50 GB/s, 20 ps a byte, and take 500 ns; a packet of 4,096 B has a header of 64 B, so it occupies a
wire for T = 4160 x 20 ps; switches store and forward and take 1 ps, and 1 ps later what arrived is visible.
"""

from __future__ import annotations

import pytest

import clusim
from clusim.analysis.limits import class_traffic
from clusim.results.result import Result
from clusim.simulation.preparation import job_of
from clusim.simulation.request import Setup, TrafficRequest
from clusim.simulation.traffic import Pattern, Routing
from clusim.topology.arrays import arrays_of

PACKET_BYTES = 4096
PACKET_PS = (4096 + 64) * 20
LATENCY_PS = 500_000
MIB = 1 << 20


def _run(
    topology: str, pattern: Pattern, message_bytes: int, *, routing: Routing = "auto", seed: int = 0
) -> Result:
    traffic = clusim.Traffic(pattern, message_bytes, PACKET_BYTES, routing=routing, seed=seed)
    return clusim.simulate_traffic(clusim.load(topology), traffic)


def _pipe_ps(packets: int, hops: int) -> int:
    """Time of `packets` that meet nobody on a way of `hops` wires: the last wire is busy without a gap."""
    return (hops - 1) * (PACKET_PS + 1) + hops * LATENCY_PS + packets * PACKET_PS + 1


@pytest.mark.parametrize("packets", [1, 2, 256])
def test_a_message_alone_takes_its_packets_and_one_more_for_every_switch(packets: int) -> None:
    result = _run("star:2", "permutation", packets * PACKET_BYTES)
    assert result.time_ps == _pipe_ps(packets, 2)


@pytest.mark.parametrize("endpoints", [2, 5, 16])
def test_messages_of_a_permutation_do_not_meet_in_one_switch(endpoints: int) -> None:
    assert _run(f"star:{endpoints}", "permutation", MIB).time_ps == _pipe_ps(256, 2)


@pytest.mark.parametrize("endpoints", [2, 5, 16])
def test_an_incast_takes_all_its_packets_on_one_wire(endpoints: int) -> None:
    """Round robin serves the senders packet by packet: they end within one round."""
    result = _run(f"star:{endpoints}", "incast", MIB)
    assert result.messages is not None
    senders = endpoints - 1
    assert result.time_ps == _pipe_ps(256 * senders, 2)
    assert result.time_ps - result.messages.end_ps.min() == (senders - 1) * PACKET_PS


def test_no_run_takes_less_than_what_comes_to_an_endpoint_or_until_the_last_message() -> None:
    """Four senders send 1 MiB of data each to one; headers and ways are left out. With a load the last start counts."""
    incast = clusim.Traffic("incast", MIB, PACKET_BYTES)
    job = job_of(TrafficRequest(Setup(clusim.load("star:5")), incast))
    assert job.least_ps == 4 * MIB * 20
    assert 0.98 * _run("star:5", "incast", MIB).time_ps < job.least_ps + 4 * 256 * 64 * 20
    loaded = clusim.Traffic("uniform", PACKET_BYTES, PACKET_BYTES, load=0.1, duration_ps=10**8)
    job = job_of(TrafficRequest(Setup(clusim.load("star:5")), loaded))
    assert job.least_ps == job.image.messages["start_ps"].max()


@pytest.mark.parametrize("endpoints", [2, 5, 16])
def test_an_exchange_over_one_switch_keeps_every_wire_busy(endpoints: int) -> None:
    """Everybody sends to somebody else at any time, so it takes as long as the incast and fills all wires."""
    result = _run(f"star:{endpoints}", "alltoall", MIB)
    assert result.time_ps == pytest.approx(_pipe_ps(256 * (endpoints - 1), 2), rel=0.01)
    assert result.utilisation.min() > 0.9


@pytest.mark.parametrize("endpoints", [3, 8])
def test_an_exchange_between_neighbours_uses_all_links_at_once(endpoints: int) -> None:
    result = _run(f"fully-connected:{endpoints}", "alltoall", MIB)
    assert result.time_ps == _pipe_ps(256, 1)


@pytest.mark.parametrize("routing", ["spray", "adaptive"])
def test_an_exchange_fills_a_fat_tree_without_oversubscription(routing: Routing) -> None:
    """16 hosts have one link each, over which 15 messages must leave."""
    result = _run("fat-tree:k=4", "alltoall", MIB, routing=routing)
    assert result.time_ps >= _pipe_ps(256 * 15, 2)
    assert result.time_ps < 1.05 * _pipe_ps(256 * 15, 6)


@pytest.mark.parametrize("routing", ["ecmp", "spray", "adaptive"])
@pytest.mark.parametrize("topology", ["fat-tree:k=4", "torus:4x4", "mesh:4x4", "dragonfly:h=2"])
def test_wires_carry_what_the_shortest_ways_need(topology: str, routing: Routing) -> None:
    """Routing chooses among shortest ways, so what all wires carry together is the same for all of them."""
    fabric = clusim.load(topology)
    arrays = arrays_of(fabric)
    result = _run(topology, "alltoall", 64 << 10, routing=routing)
    ranks = range(fabric.num_ranks)
    hops = sum(len(arrays.path(a, b)) for a in ranks for b in ranks if a != b)
    assert sum(row.payload_bytes for row in class_traffic(result)) == hops * (64 << 10)
