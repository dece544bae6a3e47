"""Bytes that ranks of a group send together, by algorithm, and legs of exchanges, by hand."""

from __future__ import annotations

import pytest

from clusim.workload.layers import Comm
from clusim.workload.parallel.volumes import (
    ExchangeLeg,
    SpannedMachines,
    Switched,
    Volume,
    legs_of,
    sent_bytes,
    spread,
)

TWO, APART = SpannedMachines(2), SpannedMachines(2, adding=False)
EIGHT_NODES = SpannedMachines(8)


@pytest.mark.parametrize(
    ("algorithm", "machines", "times"),
    [
        ("ring", SpannedMachines(), 14),
        ("tree", TWO, 14),
        ("nvls", SpannedMachines(), 9),
        ("multimem", SpannedMachines(), 9),
        ("oneshot", SpannedMachines(), 56),
        ("oneshot-ll", SpannedMachines(), 56),
        ("naive", TWO, 56),
        ("nvlstree", SpannedMachines(), 9),
        ("nvlstree", TWO, 12),  # 5 of each node, and both ways between two
        ("nvls", TWO, 12),  # 4 into the switch, a copy out, and into the network
        ("collnetdirect", APART, 14),
        ("collnetchain", EIGHT_NODES, 8),  # one rank of each node sends
        ("sharp", SpannedMachines(4), 16),
    ],
)
def test_an_all_reduce_of_eight_ranks_sends_so_many_times_its_size(
    algorithm: str, machines: SpannedMachines, times: int
) -> None:
    assert sent_bytes("allreduce", algorithm, 1000, 8, machines) == times * 1000


@pytest.mark.parametrize(
    ("operation", "algorithm", "size"),
    [
        ("all_gather", "ring", 3000),
        ("all_gather", "nvls", 1000),
        ("reduce_scatter", "ring", 3000),
        ("reduce_scatter", "nvls", 4000),
        ("alltoall", "p2p", 3000),
        ("broadcast", "ring", 3000),
        ("sendrecv", "p2p", 4000),
        ("send", "p2p", 1000),
    ],
)
def test_other_operations_of_four_ranks(operation: str, algorithm: str, size: int) -> None:
    assert sent_bytes(operation, algorithm, 1000, 4) == size


def test_volumes_count_calls_and_those_in_switches_by_kind() -> None:
    ring, switch = (Switched("allreduce", name, 1000, 4) for name in ("ring", "nvls"))
    volume = Volume()
    for kind, group in ((ring, (0, 1, 2, 3)), (switch, (4, 5, 6, 7)), (switch, (0, 1, 2, 3))):
        volume.call(kind, group, SpannedMachines())
    assert (volume.calls, volume.sent_bytes) == (3, 16_000)
    assert volume.switched == {switch: (2, (4, 5, 6, 7))}
    total = Volume()
    total.add(volume)
    total.add(volume, 3)
    assert (total.calls, total.sent_bytes) == (12, 64_000)
    assert total.switched == {switch: (8, (4, 5, 6, 7))}


def test_ranks_by_node_keep_the_order_of_the_group() -> None:
    assert spread((3, 0, 2, 1), (0, 0, 1, 1)) == [(3, 2), (0, 1)]


def comm(across: int, *, flags: bool, channels: int) -> Comm:
    return Comm("expert", "alltoall", 900, across=across, flags=flags, channels=channels)


def test_an_exchange_in_one_leg_is_of_the_complete_group() -> None:
    zones = (0, 0, 1, 1)
    one = legs_of(comm(0, flags=True, channels=3), (0, 1, 2, 3), zones)
    assert one == [ExchangeLeg(900, (0, 1, 2, 3), "", "ll128", 3)]
    one = legs_of(comm(0, flags=False, channels=0), (0, 1, 2, 3), zones)
    assert one == [ExchangeLeg(900, (0, 1, 2, 3), "", "simple", 0)]


@pytest.mark.parametrize(
    ("flags", "channels", "rails"),
    [(True, 24, 8), (True, 8, 8), (True, 4, 4), (False, 24, 24)],
)
def test_legs_are_along_rails_and_inside_nodes(flags: bool, channels: int, rails: int) -> None:
    found = legs_of(comm(500, flags=flags, channels=channels), (0, 1, 2, 3), (0, 0, 1, 1))
    inside = "ll128" if flags else "simple"
    assert found == [
        ExchangeLeg(500, (0, 2), "expert rails", "simple", rails),
        ExchangeLeg(500, (1, 3), "expert rails", "simple", rails),
        ExchangeLeg(900, (0, 1), "", inside, channels),
        ExchangeLeg(900, (2, 3), "", inside, channels),
    ]


def test_a_single_rank_of_a_node_has_no_leg_inside() -> None:
    found = legs_of(comm(500, flags=False, channels=0), (0, 1), (0, 1))
    assert found == [ExchangeLeg(500, (0, 1), "expert rails", "simple", 0)]
