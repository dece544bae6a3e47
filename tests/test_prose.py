"""Prose only gets plainer: rates of mannered wording per 1,000 words may fall, and not rise."""

from __future__ import annotations

import pytest

from support.prose import limits, rates


def test_every_rate_has_a_limit() -> None:
    new, gone = rates().keys() - limits().keys(), limits().keys() - rates().keys()
    assert not new, f"{new} are new: add them to tests/prose.json"
    assert not gone, f"{gone} are gone: take them out of tests/prose.json"


@pytest.mark.parametrize("name", sorted(limits()))
def test_wording_does_not_get_worse(name: str) -> None:
    """`python tests/support/prose.py` shows the rates, and with --write lowers limits that were undercut."""
    assert rates()[name] <= limits()[name]
