"""Numbers in texts: ends of a range are part of it, the next numbers are not."""

from __future__ import annotations

import pytest

from clusim.base.limits import integer, real


@pytest.mark.parametrize(
    ("text", "found"),
    [("2", None), ("3", 3), ("7", 7), ("8", None), ("-3", None), ("3.0", None), ("", None)],
)
def test_an_integer_is_within_its_range(text: str, found: int | None) -> None:
    assert integer(text, 3, 7) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [("0.49", None), ("0.5", 0.5), ("2e0", 2.0), ("2.01", None), ("nan", None), ("inf", None)],
)
def test_a_number_is_within_its_range(text: str, found: float | None) -> None:
    assert real(text, 0.5, 2.0) == found
