"""Prose only gets plainer and shorter: rates of mannered wording and words of user pages may fall, and not rise."""

from __future__ import annotations

import pytest

from support.prose import REFERENCE, REPORTS, ROOT, limits, rates, user_pages


def test_every_rate_has_a_limit() -> None:
    new, gone = rates().keys() - limits().keys(), limits().keys() - rates().keys()
    assert not new, f"{new} are new: add them to tests/prose.json"
    assert not gone, f"{gone} are gone: take them out of tests/prose.json"


@pytest.mark.parametrize("name", sorted(limits()))
def test_wording_does_not_get_worse(name: str) -> None:
    """`python tests/support/prose.py` shows the rates, and with --write lowers limits that were undercut."""
    assert rates()[name] <= limits()[name]


def test_user_pages_are_those_of_tasks() -> None:
    names = {page.name for page in user_pages()}
    assert {"start.md", "training.md", "nccl-tests.md", "README.md"} <= names
    assert not names & {
        "accuracy.md",
        "accuracy-training.md",
        "papers.md",
        "cli.md",
        "add-a-chip.md",
    }
    for pattern in (*REPORTS, *REFERENCE):
        assert [*(ROOT / "docs").glob(pattern)], pattern
