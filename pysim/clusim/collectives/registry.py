"""All algorithms of collectives, found in `clusim.collectives.algorithms`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from clusim.base.terms.operations import OPERATIONS
from clusim.collectives import algorithms
from clusim.collectives.entry import ENTRIES, AlgorithmEntry


def _found() -> dict[tuple[str, str], AlgorithmEntry]:
    for module in iter_modules(algorithms.__path__):
        import_module(f"{algorithms.__name__}.{module.name}")
    places = {operation: place for place, operation in enumerate(OPERATIONS)}
    result = ENTRIES.values()
    entries = sorted(result, key=lambda e: (places[e.operation], not e.default, e.name))
    return {(entry.operation, entry.name): entry for entry in entries}


REGISTRY = _found()
"""Every algorithm by (operation, name); the first of an operation is its default."""
