"""Serial servers of a run by class: wires, proxy threads, acknowledgements, reduction units, memories, CTAs, kernels.

A serial server does one thing at a time, so that no run is shorter than the busy time of its busiest server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusim.base.json_schema import JsonObject, Round6
from clusim.base.records import dataclass

FULL = 0.9
"""Busy share of the run from which a server is full."""


@dataclass(frozen=True, slots=True)
class ServerClass(JsonObject):
    """Servers of one class, with their busy time as a share of the run.

    Attributes
    ----------
    name : str
        Link class (``nvlink gpu->switch``) or hardware (``proxy threads``).
    servers : int
        Number of servers with work.
    busiest : str
        The busiest one; empty if others are as busy.
    busy, mean : float
        Busy share of the busiest server, and of the mean.
    full : int
        Servers that are busy for at least 90% of the run.
    remedies : tuple of str
        Changes of ``clusim what-if`` that accelerate them.
    """

    name: str
    servers: int
    busiest: str
    busy: Round6
    mean: Round6
    full: int
    remedies: tuple[str, ...] = ()

    @classmethod
    def of_json(cls, row: Mapping[str, Any], text: Any) -> ServerClass:
        """Return a row of a file; `text` checks its texts."""
        return cls(
            text(row["name"]),
            int(row["servers"]),
            text(row["busiest"]),
            float(row["busy"]),
            float(row["mean"]),
            int(row["full"]),
            tuple(map(text, row["remedies"])),
        )


def outstanding(
    values: Mapping[str, float], max_names: int, fraction: float
) -> tuple[str, ...]:
    """Return at most `max_names` names with values that exceed all others by more than the spread of the others.

    They have at least `fraction` times the largest value.
    """
    largest = max(values.values(), default=0.0)
    top = [name for name, value in values.items() if value >= fraction * largest]
    lower = [value for name, value in values.items() if value < fraction * largest]
    if not largest or len(top) > max_names or not lower:
        return ()
    gap = min(values[name] for name in top) - max(lower)
    return tuple(top) if gap > max(lower) - min(lower) else ()
