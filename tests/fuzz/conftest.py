"""What the tests of readers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuzz.forked import Forks, forks


@pytest.fixture(scope="session")
def children() -> Iterator[Forks]:
    """Return what runs modules in processes of their own."""
    with forks() as found:
        yield found
