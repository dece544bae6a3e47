"""What holds for all tests."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# Background jobs of a shell ignore Ctrl-C, and so would the commands under test.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Hypothesis fails an example that takes 200 ms, or inputs that are slow to make, by the clock: a busy machine is no
# defect. A change is judged by the same examples as the one before; new ones are looked for when all is tried.
settings.register_profile(
    "clusim",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not os.environ.get("CLUSIM_THOROUGH"),
)
settings.load_profile("clusim")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep the collector of cycles from looking through all tests and modules again and again: they stay."""
    gc.freeze()
