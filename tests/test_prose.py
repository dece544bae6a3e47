"""Prose only gets plainer: rates of mannered wording per 1,000 words may fall, and not rise."""

from __future__ import annotations

import pytest

from support.prose import limits, rates


@pytest.mark.parametrize("name", sorted({*limits(), *rates()}))
def test_wording_does_not_get_worse(name: str) -> None:
    """`python tests/support/prose.py` shows the rates, and with --write lowers limits that were undercut."""
    assert name in limits(), f"{name} is new: add it to tests/prose.json"
    assert name in rates(), f"{name} is gone: take it out of tests/prose.json"
    assert rates()[name] <= limits()[name]
