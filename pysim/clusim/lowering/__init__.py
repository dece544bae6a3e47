"""Lowering of a topology and a schedule to an image, the flat arrays of both engines.

Only this package decides packets and bursts, read or write connections, the latencies of head and tail
counters, CTA costs, and the least number of bursts that buffers hold.
``docs/model/contract.md`` defines how the engines interpret the image.
"""

from __future__ import annotations

from clusim.lowering.api import Lowered, arriving_ps, lower
from clusim.lowering.faults import (
    Fault,
    describe_faults,
    known_at_start,
    plan_change,
)
from clusim.lowering.faulttext import Broken, parse_faults
from clusim.lowering.grain import QUICK, Grain

__all__ = [
    "QUICK",
    "Broken",
    "Fault",
    "Grain",
    "Lowered",
    "arriving_ps",
    "describe_faults",
    "known_at_start",
    "lower",
    "parse_faults",
    "plan_change",
]
