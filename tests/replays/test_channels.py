"""Rings and trees of a log in a communicator, by hand: which are complete, their ranks, counts and NICs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clusim.nccl.choice import Members
from clusim.nccl.connect import Channel
from clusim.replays.channels import with_logged

PLANNED = [
    Channel((3, 2, 1, 0), (-1, 0, 1, 2), ((1,), (2,), (3,), ()), ((7, 7), (7, 7))),
    Channel((0, 1, 2, 3), (-1, 0, 0, 0), ((1, 2, 3), (), (), ()), ((8, 8), (8, 8))),
]


@dataclass
class Comm:
    """The parts of a communicator that a log changes, of four ranks."""

    nodes: int = 1
    adapters: int = 4
    num_channels: int = 24
    num_searched: int = 24
    nvls_channels: int = 16
    p2p_channels: int = 32
    p2p_per_peer: int = 8
    group: Any = field(init=False)
    machines: Any = field(init=False)

    def __post_init__(self) -> None:
        self.__dict__.setdefault("channels", PLANNED)
        self.group = SimpleNamespace(num_nodes=self.nodes)
        machine = SimpleNamespace(adapters=list(range(self.adapters)))
        self.machines = [machine] * self.nodes

    @property
    def machine_of(self) -> list[int]:
        return [rank * self.nodes // 4 for rank in range(4)]


def changed(
    rings: Mapping[int, Sequence[int]] | None = None,
    trees: Mapping[int, Mapping[int, tuple[int, tuple[int, ...]]]] | None = None,
    *,
    counts: Mapping[str, int] | None = None,
    position: tuple[int, ...] = (0, 1, 2, 3),
    links: Sequence[tuple[int, ...]] = (),
    comm: Comm | None = None,
) -> Any:
    """Return a communicator with what a log says; `links` are member, channel, source, target, NIC and side."""
    rows = [(*link[:4], number, link[5]) for number, link in enumerate(links)]
    names = ("member", "channel", "source", "target", "route", "side")
    columns = np.array(rows, np.int64).reshape(-1, 6).T
    log: Any = SimpleNamespace(
        rings=lambda _: dict(rings or {}),
        trees_of=lambda _: dict(trees or {}),
        members=lambda _: [SimpleNamespace(counts=dict(counts or {}))],
        connections=dict(zip(names, columns, strict=True)),
        facts=SimpleNamespace(routes=[SimpleNamespace(nic=link[4]) for link in links]),
    )
    logged: Any = SimpleNamespace(handles=[5])
    members: Any = Members(comm or Comm(), position)  # type: ignore[arg-type]
    return with_logged(members, log, logged)


RING, CHAIN = [1, 0, 3, 2], {0: (-1, (1,)), 1: (0, (2,)), 2: (1, (3,)), 3: (2, ())}


def test_a_ring_begins_with_rank_0_and_has_positions_for_ranks() -> None:
    found = changed({0: RING})
    assert [one.ring for one in found.comm.channels] == [(0, 3, 2, 1)]
    assert found.comm.channels[0].parent == PLANNED[0].parent
    assert found.used == "1 rings of the log"
    turned = changed({0: RING}, position=(2, 0, 3, 1))
    assert turned.comm.channels[0].ring == (0, 2, 1, 3)  # ranks 1, 0, 3, 2
    assert turned.position == (2, 0, 3, 1)


@pytest.mark.parametrize("ring", [[0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 4], [0, 1, 2, 3, 4]])
def test_a_ring_without_some_ranks_is_not_used(ring: list[int]) -> None:
    found = changed({0: ring})
    assert found.used == "no complete ring or tree in the log: re-planned"
    assert found.comm.channels is PLANNED
    assert found.comm.num_channels == 24


def test_a_tree_has_parents_and_children_as_positions() -> None:
    found = changed(trees={0: CHAIN}, position=(3, 2, 1, 0))
    (channel,) = found.comm.channels
    assert channel.parent == (1, 2, 3, -1)
    assert channel.children == ((), (0,), (1,), (2,))
    assert channel.ring == PLANNED[0].ring
    assert found.used == "1 trees of the log"


def test_a_tree_may_be_known_from_one_side_of_its_links() -> None:
    by_children = {0: (-1, (1, 2)), 1: (0, (3,))}
    assert changed(trees={0: by_children}).comm.channels[0].parent == (-1, 0, 0, 1)
    downwards = {3: (-1, (0, 2)), 2: (3, (1,))}
    assert changed(trees={0: downwards}).comm.channels[0].parent == (3, 2, 3, -1)
    by_parents = {1: (0, ()), 2: (0, ()), 3: (1, ())}
    assert changed(trees={0: by_parents}).comm.channels[0].parent == (-1, 0, 0, 1)


@pytest.mark.parametrize(
    "tree",
    [
        {1: (0, ()), 3: (2, ())},
        {0: (1, ()), 1: (2, ()), 2: (3, ()), 3: (0, ())},
        {0: (-1, ()), 1: (2, ()), 2: (3, ()), 3: (1, ())},
        {**CHAIN, 4: (-1, ())},
        {**CHAIN, -1: (-1, ())},
        {**CHAIN, 3: (4, ())},
        {**CHAIN, 3: (2, (4,))},
        {**CHAIN, 3: (2, (-1,))},
    ],
    ids=[
        "two roots",
        "circle",
        "root and circle",
        "rank 4",
        "rank -1",
        "up 4",
        "down 4",
        "down -1",
    ],
)
def test_what_is_no_tree_of_all_ranks_is_not_used(
    tree: dict[int, tuple[int, tuple[int, ...]]],
) -> None:
    assert "re-planned" in changed(trees={0: tree}).used


def test_channels_are_as_many_as_rings_trees_and_the_log_says() -> None:
    rings = {0: [0, 1, 2, 3], 1: [0, 3, 2, 1], 2: [0, 2, 1, 3]}
    found = changed(rings, {0: CHAIN, 1: CHAIN})
    assert [one.ring for one in found.comm.channels] == [tuple(ring) for ring in rings.values()]
    assert (found.comm.num_channels, found.comm.num_searched) == (3, 3)
    assert found.used == "3 rings and 2 trees of the log"
    assert changed(rings, counts={"coll": 2}).comm.num_channels == 3
    assert changed(rings, counts={"coll": 1000}).comm.num_channels == 64
    five = changed(rings, counts={"coll": 5}).comm
    assert [one.ring for one in five.channels] == [tuple(rings[c % 3]) for c in range(5)]
    many = changed(dict.fromkeys(range(70), RING)).comm
    assert many.num_channels == len(many.channels) == 64


def test_rings_of_a_log_are_in_the_order_of_channels() -> None:
    found = changed({1: [0, 3, 2, 1], 0: [0, 1, 2, 3]}).comm
    assert [one.ring for one in found.channels] == [(0, 1, 2, 3), (0, 3, 2, 1)]


def test_channels_whose_halves_are_equal_were_searched_once() -> None:
    first, second = [0, 1, 2, 3], [0, 3, 2, 1]
    assert changed({0: first, 1: second, 2: first, 3: second}).comm.num_searched == 2
    assert changed({0: first, 1: second, 2: second, 3: first}).comm.num_searched == 4
    assert changed({0: first, 1: second, 2: first, 3: first}).comm.num_searched == 4
    assert changed({0: first, 1: first}).comm.num_searched == 1
    assert changed({0: first, 1: first, 2: first}).comm.num_searched == 3
    assert changed({0: first}).comm.num_searched == 1


def test_other_channels_are_those_of_the_log_or_planned() -> None:
    comm = changed({0: RING}).comm
    assert (comm.nvls_channels, comm.p2p_channels, comm.p2p_per_peer) == (16, 32, 8)
    counts = {"nvls": 4, "p2p": 6, "p2p per peer": 2}
    comm = changed({0: RING}, counts=counts).comm
    assert (comm.nvls_channels, comm.p2p_channels, comm.p2p_per_peer) == (4, 6, 2)
    assert changed({0: RING}, counts=counts, comm=Comm(nvls_channels=0)).comm.nvls_channels == 0


def nics(*links: tuple[int, ...], adapters: int = 4) -> Any:
    """Return the NICs of the ring 0, 1, 2, 3 over two nodes of two ranks."""
    found = changed({0: [0, 1, 2, 3]}, links=links, comm=Comm(2, adapters))
    return found.comm.channels[0].ring_adapters


SEND, RECEIVE = 1, 2
ACROSS = (
    (5, 0, 1, 2, 3, SEND),
    (5, 0, 1, 2, 2, RECEIVE),
    (5, 0, 3, 0, 1, SEND),
    (5, 0, 3, 0, 0, RECEIVE),
)
"""Out of node 0 by NIC 3 into node 1 by NIC 2, and back by NICs 1 and 0."""


def test_nodes_are_entered_and_left_by_the_nics_of_the_log() -> None:
    assert nics(*ACROSS) == ((0, 3), (2, 1))
    assert nics(*ACROSS, adapters=2) == ((0, 1), (0, 1))
    assert nics(*ACROSS, adapters=0) == ((0, 0), (0, 0))


def test_one_side_of_a_connection_is_enough() -> None:
    assert nics(ACROSS[0], ACROSS[2]) == ((1, 3), (3, 1))
    assert nics(ACROSS[1], ACROSS[3]) == ((0, 2), (2, 0))


@pytest.mark.parametrize(
    "links",
    [
        ACROSS[:2],
        [(5, 1, *link[2:]) for link in ACROSS],
        [(6, *link[1:]) for link in ACROSS],
        [(*link[:4], -1, link[5]) for link in ACROSS],
        [(*link[:5], 0) for link in ACROSS],
    ],
    ids=["one direction", "another channel", "another communicator", "no network", "no side"],
)
def test_without_all_connections_the_nics_are_planned(links: Any) -> None:
    assert nics(*links) == PLANNED[0].ring_adapters


def test_rings_of_further_channels_use_the_nics_of_their_ring() -> None:
    comm = Comm(2, 4)
    found = changed({0: [0, 1, 2, 3]}, links=ACROSS, counts={"coll": 2}, comm=comm)
    assert [one.ring_adapters for one in found.comm.channels] == [((0, 3), (2, 1))] * 2
    alone = changed({0: [0, 1, 2, 3]}, links=ACROSS, comm=Comm(1)).comm
    assert alone.channels[0].ring_adapters == PLANNED[0].ring_adapters
