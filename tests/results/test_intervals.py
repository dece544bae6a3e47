"""Sets of time against counting every picosecond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusim.results.bins import COLUMNS, Bins, Usage
from clusim.results.intervals import Union, first_come, spread

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=8)


def columns(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.array([low for low, _ in spans], np.int64)
    return start, start + np.array([length for _, length in spans], np.int64)


@given(SPANS, SPANS)
def test_unions_count_every_moment_once(
    spans: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    covered = {t for low, length in spans for t in range(low, low + length)}
    union = Union(*columns(spans))
    assert union.length_ps == len(covered)
    start, end = columns(others)
    expected = [len(covered & set(range(low, low + length))) for low, length in others]
    assert union.within(start, end).tolist() == expected


@given(SPANS)
def test_first_come_gives_a_moment_to_the_span_that_began_first(
    spans: list[tuple[int, int]],
) -> None:
    start, end = first_come(*columns(spans))
    owners: dict[int, int] = {}
    for index in sorted(range(len(spans)), key=lambda i: (spans[i][0], i)):
        for moment in range(spans[index][0], sum(spans[index])):
            owners.setdefault(moment, index)
    expected = [sum(owner == index for owner in owners.values()) for index in range(len(spans))]
    assert (end - start).tolist() == expected


@given(st.lists(st.integers(0, 10), min_size=1, max_size=8), st.integers(0, 80), st.integers(1, 80))
def test_usage_is_the_mean_over_the_span(busy: list[int], low: int, length: int) -> None:
    edges = np.arange(len(busy) + 1) * 10
    table = {name: np.array([busy], np.int64) for name in COLUMNS}
    usage = Usage(Bins(edges, table, np.zeros((1, len(busy)), np.int64)), np.array([65536]))
    moments = [busy[t // 10] / 10 if t < edges[-1] else 0.0 for t in range(low, low + length)]
    found = usage.of("wire", [0], low, low + length)[0]
    assert abs(found - sum(moments) / length) < 1e-9


def test_weights_spread_over_bins_by_hand() -> None:
    edges = np.array([0, 10, 20, 40])
    start, end, weight = np.array([5, 0, 30]), np.array([25, 10, 30]), np.array([20.0, 3.0, 7.0])
    # 20 over 5 to 25: 5, 10, 5; 3 in the first bin; an empty span is 1 ps long.
    assert spread(start, end, weight, edges).tolist() == pytest.approx([8, 10, 12])
    none = np.zeros(0, np.int64)
    assert spread(none, none, none, edges).tolist() == [0, 0, 0]
