"""The engines under test: every gate test runs on both."""

from __future__ import annotations

import importlib
import os

import pytest

ENGINES = {
    "reference": ("clusim.reference", "ReferenceSimulation"),
    "c": ("clusim.engine", "Simulation"),
}
CHOSEN = os.environ.get("CLUSIM_ENGINES", "reference,c").split(",")


@pytest.fixture(params=CHOSEN)
def engine(request):
    """A class that follows `clusim.outcome.Engine`; CLUSIM_ENGINES=reference leaves C out."""
    module, name = ENGINES[request.param]
    return getattr(importlib.import_module(module), name)
