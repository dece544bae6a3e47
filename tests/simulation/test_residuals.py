"""Told errors and limits hold for sources that they omit: coverage of the shipped residuals."""

from __future__ import annotations

from math import exp, log

import pytest

from clusim.base.terms.times import ONE, SEVERAL
from clusim.simulation.residuals import (
    DATA,
    FEWEST_ROWS,
    MOST_TOLD,
    Asked,
    Campaign,
    LeftOut,
    Scale,
    SystemClass,
    inside_share,
    known_campaigns,
    left_out,
    residuals_of,
    scale_of,
)

ABOUT = SystemClass("NCCL", "hopper", "NVSwitch", "verbs")


def campaign(source: str, *errors_pct: float, system: str = "one") -> Campaign:
    words = "NCCL", "hopper", "NVSwitch", "verbs", "one node", "collective", "independent"
    rows = [[1024.0 + at, error] for at, error in enumerate(errors_pct)]
    return Campaign(source, system, *words, 1024, 2048, rows)


PLACES = pytest.mark.parametrize("place", [ONE, SEVERAL])


def told_of(place: str) -> list[LeftOut]:
    return [one for one in left_out(known_campaigns(DATA, Campaign)) if one.campaign.place == place]


@pytest.mark.parametrize(("place", "rows"), [(ONE, 250), (SEVERAL, 40)])
def test_eighty_to_ninety_five_percent_of_left_out_rows_lie_within_the_told_limits(
    place: str, rows: int
) -> None:
    told = told_of(place)
    assert sum(len(one.found) for one in told) >= rows
    assert 0.8 <= inside_share(told, scale_of(DATA, place).limits) <= 0.95


@pytest.mark.parametrize(("place", "classes"), [(ONE, 12), (SEVERAL, 4)])
def test_no_class_is_told_less_than_half_of_the_error_that_is_found(
    place: str, classes: int
) -> None:
    told = [one for one in told_of(place) if one.enough]
    assert len(told) >= classes
    for one in told:
        expected_pct = scale_of(DATA, place).error * one.residuals.error_pct
        assert expected_pct >= MOST_TOLD * one.found_pct, one.campaign


@PLACES
def test_the_shipped_factors_are_those_of_the_shipped_rows(place: str) -> None:
    assert Scale.of(known_campaigns(DATA, Campaign), place) == scale_of(DATA, place)


@PLACES
def test_limits_that_are_a_third_as_wide_do_not_hold(place: str) -> None:
    """The check itself: narrower limits miss rows."""
    assert inside_share(told_of(place), scale_of(DATA, place).limits / 3) < 0.8


def test_limits_are_weighted_quantiles_widened_about_the_median() -> None:
    errors = [-10.0, *[0.0] * 18, 10.0]
    found = residuals_of(Asked("one", ABOUT, 1, "collective", 1030), [campaign("x", *errors)])
    assert found is not None
    low, high = found.limits(1.0)
    # 5% of the rows are below the lower limit: the row that is predicted 10% too long.
    assert (low, high) == (pytest.approx(1 / 1.1), pytest.approx(1.0))
    assert found.limits(2.0)[0] == pytest.approx(exp(-2 * log(1.1)))


def test_fewer_rows_than_four_tell_nothing() -> None:
    asked = Asked("one", ABOUT, 1, "collective", 1024)
    assert residuals_of(asked, [campaign("x", *[1.0] * (FEWEST_ROWS - 1))]) is None
    assert residuals_of(asked, [campaign("x", *[1.0] * FEWEST_ROWS)]) is not None


def test_scale_makes_told_errors_hold() -> None:
    """Sources of 2% and 30% tell little about each other: 2% must be told as at least 15%."""
    some = [campaign("x", *[2.0] * 8), campaign("y", *[30.0] * 8, system="two")]
    scale = Scale.of(some, ONE)
    assert scale.error * 2.0 == pytest.approx(15.0, rel=0.02)
