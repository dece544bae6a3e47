"""Rings and trees: link-disjoint on meshes, complementary on crossbars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from clusim.base.errors import InputError
from clusim.collectives import build
from clusim.collectives.rings_and_trees import (
    double_binary_trees,
    find_rings,
    find_trees,
    hamiltonian_cycles,
)
from clusim.schedule.semantics import verify
from clusim.topology.model import Fabric, Link
from clusim.topology.node import Endpoint, Node
from clusim.topology.packets import Format, Protocol

HYBRID_CUBE_MESH = (
    *((0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2)),
    *((2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)),
)
"""Links between the GPUs of a DGX-1 with V100 (``nvidia-smi topo -m``)."""

PROTOCOLS = {name: Protocol(name) for name in ("simple",)}


def mesh(links: Sequence[tuple[int, int, int]], **more: Any) -> Fabric:
    """Return a fabric of GPUs that are joined directly."""
    size = 1 + max(max(a, b) for a, b, _ in links)
    return Fabric(
        "mesh",
        tuple(Node(f"gpu{index}", "gpu", endpoint=Endpoint()) for index in range(size)),
        tuple(Link(f"gpu{a}", f"gpu{b}", count) for a, b, count in links),
        {"nvlink": Format("nvlink")},
        protocols=PROTOCOLS,
        **more,
    )


def used_links(rings: Sequence[Any]) -> Counter[tuple[int, int, int]]:
    """Count how often each directed parallel link is used."""
    used: Counter[tuple[int, int, int]] = Counter()
    for ring in rings:
        hops = zip(ring.order, (*ring.order[1:], ring.order[0]), ring.links, strict=True)
        used.update(hops)
    return used


def test_the_hybrid_cube_mesh_has_three_cycles_in_two_directions() -> None:
    assert len(hamiltonian_cycles(8, HYBRID_CUBE_MESH)) == 3
    rings = find_rings(mesh(HYBRID_CUBE_MESH), range(8), 12)
    assert rings[:6] == rings[6:]
    used = used_links(rings[:6])
    assert set(used.values()) == {1}
    assert len(used) == 6 * 8
    counts = {(a, b): count for a, b, count in HYBRID_CUBE_MESH}
    assert all(link < counts[min(a, b), max(a, b)] for a, b, link in used)


def test_the_single_link_cube_mesh_has_two_cycles() -> None:
    links = [(a, b, 1) for a, b, _ in HYBRID_CUBE_MESH]
    assert len(hamiltonian_cycles(8, tuple(links))) == 2


def test_two_ranks_use_every_link_in_both_directions() -> None:
    rings = find_rings(mesh([(0, 1, 4)]), (0, 1), 4)
    assert used_links(rings) == {(a, b, link): 1 for link in range(4) for a, b in ((0, 1), (1, 0))}


def test_a_group_without_a_cycle_falls_back_to_its_order() -> None:
    rings = find_rings(mesh([(0, 1, 1), (1, 2, 1)]), (2, 0, 1), 2)
    assert [ring.order for ring in rings] == [(0, 1, 2)] * 2
    assert rings[0].links is None


def test_given_orders_win() -> None:
    orders = ((0, 2, 1, 3), (3, 1, 2, 0))
    links = [(a, b, 1) for a in range(4) for b in range(a + 1, 4)]
    rings = find_rings(mesh(links, ring_orders=orders), range(4), 2)
    assert [ring.order for ring in rings] == list(orders)
    assert rings[0].links == (0, 0, 0, 0)
    with pytest.raises(InputError, match="ring_orders"):
        find_rings(mesh(links, ring_orders=((0, 1, 2),)), range(4), 2)


def test_without_a_fabric_rings_are_in_rank_order() -> None:
    assert [ring.order for ring in find_rings(None, (5, 1, 7), 2)] == [(0, 1, 2)] * 2


@pytest.mark.parametrize("size", range(2, 34))
def test_double_binary_trees_are_trees_of_degree_two(size: int) -> None:
    for tree in double_binary_trees(size):
        assert sorted(tree.parents).count(-1) == 1
        assert tree.depth() <= size.bit_length()
        assert all(len(tree.children(position)) <= 2 for position in range(size))


@pytest.mark.parametrize("size", [4, 6, 8, 9, 15, 16, 32])
def test_nobody_is_inside_both_trees(size: int) -> None:
    first, second = double_binary_trees(size)
    inner = [p for p in range(size) if first.children(p) and second.children(p)]
    assert len(inner) <= 1


def test_channels_are_split_between_the_trees() -> None:
    trees = find_trees(None, range(8), 5)
    assert [tree == trees[0] for tree in trees] == [True, True, True, False, False]
    rooted = find_trees(None, range(6), 4, root=4)
    assert [tree.root for tree in rooted] == [4] * 4


def test_trees_on_meshes_are_chains_over_links() -> None:
    fabric = mesh(HYBRID_CUBE_MESH)
    joined = {(a, b) for a, b, _ in HYBRID_CUBE_MESH}
    for tree in find_trees(fabric, range(8), 6, root=5):
        assert tree.root == 5
        assert tree.depth() == 7
        assert tree.links is not None
        for child, parent in enumerate(tree.parents):
            assert parent < 0 or (min(child, parent), max(child, parent)) in joined


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_collectives_on_a_mesh_pin_their_links_and_are_right(algorithm: str) -> None:
    fabric = mesh(HYBRID_CUBE_MESH)
    for operation in ("allreduce", "broadcast", "reduce"):
        schedule = build(fabric, operation, algorithm, 100_000, channels=6)
        assert all(connection.policy == "pinned" for connection in schedule.connections)
        assert verify(schedule)[0].ok
    if algorithm == "ring":
        for operation in ("reduce_scatter", "all_gather"):
            assert verify(build(fabric, operation, "ring", 100_004, channels=6))[0].ok
