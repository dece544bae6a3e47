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
    order = list(OPERATIONS)
    entries = sorted(
        ENTRIES.values(),
        key=lambda item: (order.index(item.operation), not item.default, item.name),
    )
    return {(entry.operation, entry.name): entry for entry in entries}


REGISTRY = _found()
"""Every algorithm by (operation, name); the first of an operation is its default."""
