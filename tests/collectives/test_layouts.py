"""Positions of a group by node, by hand: ways through a node, the GPUs at its ends, and rails of channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from clusim.base.errors import InputError
from clusim.collectives import machines as module
from clusim.collectives.machines import Layout, Passage, even_layout, find_layout


class TwoByRail:
    """Two nodes of four GPUs and two NICs: GPUs 0 and 1 of a node are nearest to rail 0, 2 and 3 to rail 1."""

    def heads(self, ranks: Sequence[int], rail: int) -> list[int]:
        return [rank for rank in ranks if rank % 4 // 2 == rail]

    def nearest_rails(self, rank: int) -> tuple[int, ...]:
        return (rank % 4 // 2,)

    def live(self, zones: Mapping[int, Any]) -> list[int]:
        return [0, 1]


RAILS: Any = TwoByRail()
RANKS = (0, 1, 2, 3, 7, 6, 5, 4)


def layout(**changes: Any) -> Layout:
    fields = {
        "machines": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "ranks": RANKS,
        "rails": RAILS,
        "live": [0, 1],
    }
    return Layout(**{**fields, **changes})


def test_a_way_that_begins_elsewhere_keeps_the_pins_of_its_hops() -> None:
    """Links 5, 6 and 7 are 0-3, 3-2 and 2-1; between 1 and 0 there is none."""
    way = Passage((0, 3, 2, 1), (5, 6, 7))
    assert way.from_position(0) is way
    assert way.from_position(3) == Passage((3, 2, 1, 0), (6, 7, -1))
    assert way.from_position(2) == Passage((2, 1, 0, 3), (7, -1, 5))
    assert way.from_position(1) == Passage((1, 0, 3, 2), (-1, 5, 6))


def test_positions_per_node_are_those_of_all_nodes_or_0() -> None:
    assert layout().local_size == layout().even("x") == 4
    uneven = layout(machines=[[0, 1, 2], [3], [4, 5]])
    assert uneven.local_size == 0
    with pytest.raises(
        InputError, match="nvls: nodes take part with 1 to 3 ranks; it needs the same"
    ):
        uneven.even("nvls")


def test_heads_are_the_positions_of_the_ranks_nearest_to_a_nic() -> None:
    assert layout().heads(0, 1) == [2, 3]
    assert layout().heads(1, 1) == [4, 5]  # ranks 7 and 6
    assert layout().heads(1, 0) == [6, 7]
    assert layout().heads(1, 2) == [4], "none is near"
    assert layout().heads(1, -1) == [4]
    assert layout(rails=None).heads(1, 1) == [4]


def test_a_way_through_a_node_leads_from_one_gpu_of_a_nic_to_the_other() -> None:
    assert layout().passage(0, 0) == Passage((0, 2, 3, 1), (-1, -1, -1))
    assert layout().passage(0, 1) == Passage((2, 0, 1, 3), (-1, -1, -1))
    assert layout(rails=None).passage(1, 1) == Passage((4, 5, 6, 7), (-1, -1, -1))
    assert layout(machines=[[3]]).passage(0, 1) == Passage((3,), ())


def test_the_fit_counts_ends_next_to_the_nic() -> None:
    fits = [
        layout().fit(0, Passage(order, ()), 1) for order in ((2, 0, 1, 3), (0, 1, 2), (1, 2, 0))
    ]
    assert fits == [2, 1, 0]
    assert layout().fit(0, Passage((3, 0), ()), 1) == 1


def test_channels_take_rails_in_turn() -> None:
    assert [layout(live=[1, 3, 4]).rail(channel) for channel in range(5)] == [1, 3, 4, 1, 3]
    assert layout(live=[]).rail(2) == -1


def test_rails_are_taken_by_fit_then_by_use_then_from_that_of_the_channel() -> None:
    one = layout(live=[4, 5, 6])
    assert one.take_rail([1, 2, 2], 0) == 5
    assert one.take_rail([1, 2, 2], 0) == 6, "used less"
    assert one.take_rail([0, 0, 0], 5) == 4, "used less"
    assert one.take_rail([0, 0, 0], 2) == 6, "all are used once: the channel's"
    assert one.take_rail([0, 0, 0], 1) == 5
    assert one.take_rail([0, 0, 0], 1) == 4
    assert one.take_rail([2, 2, 0], 4) == 5, "the next after the channel's, around"


@pytest.fixture
def fabric(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two nodes of four ranks each, of which four positions are on rails by rank."""
    arrays = SimpleNamespace(zone_of=lambda rank: rank // 4)
    monkeypatch.setattr(module, "arrays_of", lambda _: arrays)
    monkeypatch.setattr(module, "Rails", lambda _: RAILS)
    return SimpleNamespace(num_zones=2)


def test_a_layout_has_the_positions_of_each_node_in_the_order_of_the_group(fabric: Any) -> None:
    found = find_layout(fabric, (5, 0, 4, 3))
    assert found == Layout([[0, 2], [1, 3]], (5, 0, 4, 3), RAILS, [0])


@pytest.mark.parametrize(
    ("ranks", "live"),
    [((0, 4), [0]), ((2, 6), [1]), ((0, 6), [0, 1]), ((0, 2, 6), [1]), ((0, 2, 4, 6), [0, 1])],
)
def test_rails_are_those_near_a_rank_of_every_node_or_all(
    fabric: Any, ranks: tuple[int, ...], live: list[int]
) -> None:
    found = find_layout(fabric, ranks)
    assert found is not None
    assert found.live == live


def test_one_node_or_an_unknown_system_has_no_layout(fabric: Any) -> None:
    assert find_layout(fabric, (0, 1, 2)) is None
    assert find_layout(None, (0, 4)) is None
    assert find_layout(SimpleNamespace(num_zones=1), (0, 4)) is None  # type: ignore[arg-type]


def test_without_nodes_a_group_is_halves_or_single_positions(fabric: Any) -> None:
    assert even_layout(None, range(6)) == Layout([[0, 1, 2], [3, 4, 5]], (0, 1, 2, 3, 4, 5))
    assert even_layout(None, range(3)) == Layout([[0], [1], [2]], (0, 1, 2))
    assert even_layout(fabric, (1, 2)) == Layout([[0, 1]], (1, 2))
    assert even_layout(fabric, (0, 4)).machines == [[0], [1]]
