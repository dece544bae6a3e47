"""Links of meshes and tori one by one: neighbours, twists, dimensions found from rectangles, and datelines."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest

from clusim.base.errors import TopologyError
from clusim.topology import load
from clusim.topology.model import Link
from clusim.topology.tori import check_twist, neighbours, order_links

LINK: Link = next(iter(load("ring:4").links))


def links_of(shape: tuple[int, ...], *, wrap: bool = True, dims: bool = False) -> list[Link]:
    """Return the links of a mesh or torus of named places, without datelines."""
    return [
        link(".".join(map(str, a)), ".".join(map(str, b)), dim=(axis + 1) * dims)
        for a, b, axis, _ in neighbours(shape, wrap=wrap)
    ]


def link(a: str, b: str, **changes: Any) -> Link:
    fields = {name: getattr(LINK, name) for name in LINK.__dataclass_fields__}
    return Link(**{**fields, "dim": 0, "dateline": (False, False), "a": a, "b": b, **changes})


def test_a_mesh_has_a_link_between_places_one_apart() -> None:
    found = {(a, b, axis) for a, b, axis, around in neighbours((2, 3), wrap=False) if not around}
    assert found == {
        *(((0, y), (1, y), 0) for y in range(3)),
        *(((x, y), (x, y + 1), 1) for x, y in product(range(2), range(2))),
    }
    assert not any(around for *_, around in neighbours((2, 3), wrap=False))


def test_a_torus_wraps_around_where_a_ring_has_three_places() -> None:
    around = {(a, b, axis) for a, b, axis, last in neighbours((2, 3), wrap=True) if last}
    assert around == {((x, 2), (x, 0), 1) for x in range(2)}
    assert len(list(neighbours((3, 4, 5), wrap=True))) == 3 * 60


def test_a_twist_shifts_wraps_of_short_dimensions_by_half_of_the_longest() -> None:
    around = {
        (a, b, axis) for a, b, axis, last in neighbours((2, 4), wrap=True, twist=True) if last
    }
    assert around == {
        *(((1, y), (0, (y + 2) % 4), 0) for y in range(4)),
        *(((x, 3), (x, 0), 1) for x in range(2)),
    }
    shifted = {
        b
        for a, b, _, last in neighbours((1, 4, 8, 8), wrap=True, twist=True)
        if last and a == (0, 3, 0, 0)
    }
    assert (0, 0, 4, 4) in shifted
    assert not any(axis == 0 for _, _, axis, _ in neighbours((1, 4), wrap=True, twist=True))


@pytest.mark.parametrize(("shape", "works"), [
    ((2, 4), True), ((4, 4, 8), True), ((1, 2, 4), True), ((4, 4), False), ((3, 5), False), ((1, 4), False),
])  # fmt: skip
def test_a_twist_needs_an_even_longest_size_and_a_shorter_one(
    shape: tuple[int, ...], works: bool
) -> None:
    if works:
        check_twist(shape)
    else:
        with pytest.raises(TopologyError, match="needs an even longest size"):
            check_twist(shape)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3, 6), (3, 2), (2, 2)])
@pytest.mark.parametrize("wrap", [True, False])
def test_dimensions_found_are_those_of_the_axes(shape: tuple[int, ...], wrap: bool) -> None:
    links = links_of(shape, wrap=wrap)
    dims = [one.dim for one in order_links(links)]
    axes = [axis for *_, axis, _ in neighbours(shape, wrap=wrap)]
    assert len(set(zip(axes, dims, strict=True))) == len(set(axes)) == len(set(dims))
    assert set(dims) == set(range(1, len(set(axes)) + 1))


def test_ends_of_a_line_are_taken_for_hosts() -> None:
    assert [one.dim for one in order_links(links_of((5,), wrap=False))] == [0, 1, 1, 0]
    assert [one.dim for one in order_links(links_of((5,)))] == [1, 1, 1, 1, 1]


def test_links_to_hosts_have_no_dimension() -> None:
    links = [*links_of((3, 3)), *(link(f"host{n}", f"{n}.0") for n in range(3))]
    assert [one.dim for one in order_links(links)[-3:]] == [0, 0, 0]
    assert all(one.dim for one in order_links(links)[:-3])


def test_a_star_is_no_mesh() -> None:
    links = [
        link("a", "b"),
        link("a", "c"),
        link("a", "d"),
        link("b", "e"),
        link("c", "f"),
        link("d", "g"),
    ]
    with pytest.raises(TopologyError, match="around a they do not form a mesh or torus"):
        order_links(links)


def test_every_ring_gets_one_dateline_between_its_first_node_and_its_last_neighbour() -> None:
    ordered = order_links(links_of((3, 4), dims=True))
    dated = [(one.a, one.b) for one in ordered if one.dateline == (True, True)]
    assert {one.dateline for one in ordered} == {(True, True), (False, False)}
    rings = Counter(one.dim for one in ordered if any(one.dateline))
    assert rings == {1: 4, 2: 3}
    assert ("2.0", "0.0") in dated
    assert ("0.3", "0.0") in dated
    assert [one.dateline for one in order_links(links_of((3, 4), wrap=False))].count(
        (True, True)
    ) == 0


def test_a_ring_with_a_dateline_gets_no_other() -> None:
    links = links_of((5,), dims=True)
    marked = [*links[:2], link("2", "3", dim=1, dateline=(True, False)), *links[3:]]
    assert [one.dateline for one in order_links(marked)] == [one.dateline for one in marked]


def test_dimensions_of_a_file_are_kept() -> None:
    """Of two rings only that with dimensions is one for the routing."""
    links = [*links_of((3,), dims=True), *(link(f"x{a}", f"x{(a + 1) % 3}") for a in range(3))]
    ordered = order_links(links)
    assert [one.dim for one in ordered] == [1, 1, 1, 0, 0, 0]
    assert [any(one.dateline) for one in ordered] == [False, False, True, False, False, False]
