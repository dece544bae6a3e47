"""The engines under test: every gate test runs on all of them."""

from __future__ import annotations

import pytest

from support.engines import CHOSEN, COMPILED, maker


@pytest.fixture(params=CHOSEN)
def engine(request):
    """What makes a `clusim.engine.abi.Engine`; CLUSIM_ENGINES=reference leaves C out."""
    return maker(request.param)


@pytest.fixture(params=COMPILED, scope="session")
def compiled(request):
    """The C engine: with an event for every packet, with windows where the image allows it, and with threads."""
    return maker(request.param)


@pytest.fixture(scope="session")
def every_compiled():
    """The C engine in all these ways, by name: for tests that run the slow reference once for all of them."""
    return {name: maker(name) for name in COMPILED}
