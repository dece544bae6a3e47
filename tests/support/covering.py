"""``pytest.mark.covering``: of the members of a parametrized test, `make test` runs as many as cover its axes.

With ``covering(1)`` every value of every axis is in a member that runs, with ``covering(2)`` every pair of values of
two axes. ``CLUSIM_THOROUGH=1`` runs all members, and draws more random cases.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest

__all__ = ["THOROUGH", "choose_rows", "examples", "few_racks", "split_items"]

THOROUGH = os.environ.get("CLUSIM_THOROUGH", "0") not in ("", "0")


def examples(count: int) -> int:
    """Return how many random examples run: ten times as many in a thorough run."""
    return 10 * count if THOROUGH else count


LARGE_RACKS = ("gb300-nvl72", "gcp-a4x-max", "vera-rubin-nvl72")


def few_racks(presets: Iterable[str]) -> list[str]:
    """Return presets with one of the racks of 72 GPUs, each of which takes as long as all others together."""
    return [name for name in presets if THOROUGH or name not in LARGE_RACKS]


def choose_rows(rows: Sequence[Mapping[Any, object]], strength: int) -> set[int]:
    """Return the numbers of rows in which every combination of so many places of a row occurs, most at once first."""
    parts = [set(combinations(row.items(), min(strength, len(row)))) for row in rows]
    missing = set().union(*parts)
    chosen = set()
    while missing:
        best = max(range(len(rows)), key=lambda number: len(parts[number] & missing))
        chosen.add(best)
        missing -= parts[best]
    return chosen


def axes_of(item: pytest.Function) -> dict[Any, object]:
    """Return which of its values a member has on every axis: of a `parametrize`, or of a fixture with parameters."""
    axes: dict[Any, object] = {}
    numbers = {name: id(value) for name, value in item.callspec.params.items()}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        words = names.replace(",", " ").split() if isinstance(names, str) else names
        axes[tuple(words)] = tuple(numbers.pop(word) for word in words)
    return {**axes, **numbers}


def split_items(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the items that run and those that are left to a thorough run."""
    members: dict[str, list[pytest.Function]] = {}
    for item in items:
        marked = item.get_closest_marker("covering") is not None
        if marked and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            members.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = set()
    for group in members.values():
        mark = group[0].get_closest_marker("covering")
        assert mark is not None
        rows = [axes_of(item) for item in group]
        chosen = choose_rows(rows, *(mark.args or (1,)))
        left_out |= {item for number, item in enumerate(group) if number not in chosen}
    return [item for item in items if item not in left_out], [*left_out]
