"""The engines under test, by name, and the one that the others are compared with."""

from __future__ import annotations

import importlib
import os
from functools import partial
from typing import Any

__all__ = ["CHOSEN", "COMPILED", "Wanted", "maker"]

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
"""The engines that gate tests run on; CLUSIM_ENGINES=reference leaves C out."""

COMPILED = ["c", "windows", "threads"]


def maker(name: str) -> Any:
    """Return what makes an engine."""
    module, of, options = ENGINES[name]
    return partial(getattr(importlib.import_module(module), of), **options)


Wanted: Any = maker("reference" if "reference" in CHOSEN else "c")
"""What random images are compared with: where CLUSIM_ENGINES leaves the slow reference out, as under the sanitizers,
which see nothing of it, the C engine with an event for every packet."""
