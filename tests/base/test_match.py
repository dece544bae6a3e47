"""Rules by which operations of several ranks are matched."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pytest

from clusim.base.match import (
    ANY,
    LaunchGraph,
    LiveMatcher,
    Mailbox,
    MatchCounts,
    MatchedEnd,
    by_number,
    by_order,
    by_pair,
    contradiction,
    find_cycle,
    match_rows,
    turns,
)

RANKS = range(3)


def test_the_nth_calls_of_ranks_in_a_communicator_match() -> None:
    """Communicators with equal ranks are two, and ranks may be at different calls."""
    counts = MatchCounts()
    first = [counts.add(by_order(group, 0)) for group in ("a", "b", "a")]
    second = [counts.add(by_order(group, 1)) for group in ("a", "a", "b")]
    assert (first, second) == ([0, 0, 1], [0, 1, 0])


def test_calls_with_one_number_in_the_file_match_in_any_order() -> None:
    counts = MatchCounts()
    one = [counts.number(by_number("a", number, 0)) for number in (41, 42, 43)]
    other = [counts.number(by_number("a", number, 1)) for number in (42, 43, 41)]
    assert [one.index(number) for number in other] == [1, 2, 0]
    assert counts.number(by_number("a", 41, 1)) not in one, "a rank's second call is another match"


def test_messages_of_a_pair_match_by_direction_and_tag() -> None:
    counts = MatchCounts()
    sent = [counts.add(by_pair("a", "send", 0, 1, tag)) for tag in (5, 7, 5)]
    back = counts.add(by_pair("a", "send", 1, 0, 5))
    got = [counts.add(by_pair("a", "recv", 1, 0, tag)) for tag in (5, 5, 7)]
    assert (sent, back, got) == ([0, 0, 1], 0, [0, 1, 0])
    assert by_pair("a", "send", 0, 1, 5).key == by_pair("a", "recv", 1, 0, 5).key
    assert by_pair("a", "send", 0, 1, 5).key != by_pair("a", "send", 1, 0, 5).key


def test_a_match_without_one_of_its_ends_is_lone() -> None:
    counts = MatchCounts()
    for rank in (0, 0, 1):
        counts.add(by_order("a", rank))
    assert counts.lone("a", [0, 1])
    assert not counts.lone("a", [0])
    counts.add(by_order("a", 1))
    assert not counts.lone("a", [0, 1])
    assert counts.lone("a", [0, 1, 2])


@pytest.mark.parametrize("seed", range(4))
def test_columns_and_running_ranks_have_equal_matches(seed: int) -> None:
    """Rows of ranks in any interleaving, with repeated numbers: the rule of logs is the rule of running programs."""
    rng = random.Random(seed)
    queues = {rank: [rng.randrange(4) for _ in range(30)] for rank in RANKS}
    rows = []
    while live := [rank for rank in RANKS if queues[rank]]:
        rank = rng.choice(live)
        rows.append((rank, queues[rank].pop()))
    matcher: LiveMatcher[int] = LiveMatcher()
    matches = [matcher.add(by_number("a", key, rank), at) for at, (rank, key) in enumerate(rows)]
    rank, key = np.array(rows).T
    lines = np.arange(len(rows)) if seed % 2 else np.array(rng.sample(range(1000), len(rows)))
    order, starts = match_rows((key,), rank, lines)
    found = [set(part.tolist()) for part in np.split(order, starts[1:])]
    assert sorted(map(sorted, found)) == sorted(
        sorted(match.ends.values()) for match in {m.number: m for m in matches}.values()
    )
    assert all(np.diff(lines[part]).min(initial=1) > 0 for part in np.split(order, starts[1:]))
    seen: dict[tuple[int, int], int] = defaultdict(int)
    for turn, row in zip(turns(rank, key).tolist(), rows, strict=True):
        assert turn == seen[row]
        seen[row] += 1


def test_columns_without_rows_have_no_match() -> None:
    none = np.zeros(0, np.int64)
    order, starts = match_rows((none,), none, none)
    assert len(order) == len(starts) == 0


def test_a_closed_match_is_not_reused() -> None:
    matcher: LiveMatcher[str] = LiveMatcher()
    first = matcher.add(by_order("a", 0), "x")
    assert matcher.add(by_order("a", 1), "y") is first
    assert first.ends == {0: "x", 1: "y"}
    matcher.close(first)
    assert matcher.add(by_order("a", 0), "z").number == 1


def test_launches_that_share_messages_are_joined_transitively() -> None:
    """Launch 1 exchanges with 2, and 2 with 3: they happen together once the last end is there."""
    graph: LaunchGraph[int, str] = LaunchGraph()
    for launch, message in ((1, "a"), (2, "a"), (2, "b"), (9, "c")):
        graph.add(launch, message, f"{launch}{message}")
    assert graph.complete(1) is None
    graph.add(3, "b", "3b")
    assert set(graph.component(1)) == {1, 2, 3}
    assert graph.complete(1) == [[(1, "1a"), (2, "2a")], [(2, "2b"), (3, "3b")]]
    assert set(graph.component(9)) == {9}


@pytest.mark.parametrize(
    ("asked", "taken"),
    [((0, 4), "b"), ((ANY, 4), "a"), ((0, ANY), "b"), ((ANY, ANY), "a"), ((2, 4), "any tag")],
)
def test_a_wildcard_takes_the_first_suitable_message(asked: tuple[int, int], taken: str) -> None:
    box: Mailbox[str] = Mailbox()
    for arrival, (address, end) in enumerate(
        [((1, 4), "a"), ((0, 4), "b"), ((0, 4), "c"), ((2, ANY), "any tag")]
    ):
        box.put(address, arrival, end)
    assert box.take(asked) == taken
    assert box.take(asked) != taken


def test_a_contradiction_names_both_ranks_and_places() -> None:
    text = contradiction((1, "broadcast", "b.py:3"), (0, "allreduce", "a.py:7"))
    assert text == (
        "rank 1 calls broadcast (b.py:3), rank 0 calls allreduce (a.py:7)"
        " as the same collective of their communicator"
    )


def test_a_cycle_omits_what_only_leads_to_it() -> None:
    waits = {1: [2], 2: [3], 3: [4], 4: [2]}
    assert find_cycle(1, lambda at: waits[at]) == [2, 3, 4, 2]


def test_ends_of_one_key_are_counted_separately() -> None:
    counts = MatchCounts()
    assert [counts.add(MatchedEnd("k", end)) for end in "aba"] == [0, 0, 1]
