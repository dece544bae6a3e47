"""The engines under test, by name, and the one that the others are compared with."""

from __future__ import annotations

import importlib
import os
from functools import partial
from typing import Any

from clusim._engine import lib
from clusim.engine.simulation import Simulation

__all__ = ["CHOSEN", "COMPILED", "Wanted", "events_of", "maker", "slots_of"]

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


def events_of(sim: Simulation) -> int:
    """Return the events that an engine in C has handled, a measure of work."""
    return int(lib.clusim_sim_num_events(sim._sim))


def slots_of(sim: Simulation) -> int:
    """Return its allocated packets, a measure of memory."""
    return int(lib.clusim_sim_packet_slots(sim._sim))


Wanted: Any = maker("reference" if "reference" in CHOSEN else "c")
"""What random images are compared with: where CLUSIM_ENGINES leaves the slow reference out, as under the sanitizers,
which see nothing of it, the C engine with an event for every packet."""
