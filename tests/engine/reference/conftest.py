"""The engines under test: every gate test runs on all of them."""

from __future__ import annotations

import importlib
import os
from functools import partial
from typing import Any

import pytest

ENGINES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "reference": ("clusim.engine.reference", "ReferenceSimulation", {}),
    "c": ("clusim.engine.simulation", "Simulation", {"windows": False}),
    "windows": ("clusim.engine.simulation", "Simulation", {"windows": True}),
    "threads": (
        "clusim.engine.simulation",
        "Simulation",
        {"windows": True, "threads": 3, "least_shared": 0},
    ),
}
CHOSEN = os.environ.get("CLUSIM_ENGINES", "reference,c,windows,threads").split(",")
COMPILED = ["c", "windows", "threads"]


def _maker(name: str) -> Any:
    module, of, options = ENGINES[name]
    return partial(getattr(importlib.import_module(module), of), **options)


@pytest.fixture(params=CHOSEN)
def engine(request):
    """What makes a `clusim.engine.abi.Engine`; CLUSIM_ENGINES=reference leaves C out."""
    return _maker(request.param)


@pytest.fixture(params=COMPILED, scope="session")
def compiled(request):
    """The C engine: with an event for every packet, with windows where the image allows it, and with threads."""
    return _maker(request.param)


@pytest.fixture(scope="session")
def every_compiled():
    """The C engine in all these ways, by name: for tests that run the slow reference once for all of them."""
    return {name: _maker(name) for name in COMPILED}
