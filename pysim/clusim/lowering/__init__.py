"""Lowering: a fabric and a schedule become an image, the flat arrays both engines take.

What is decided here and nowhere else: packets and bursts, read or write connections, the flight
times of head and tail counters, CTA costs, and how many bursts buffers hold at least.
``docs/model/contract.md`` says what the engines do with it.
"""

from __future__ import annotations

from clusim.lowering.api import Lowered, arriving_ps, lower
from clusim.lowering.faults import Fault, describe_faults, known_at_start, plan_change
from clusim.lowering.faulttext import Broken, parse_fault, parse_faults
from clusim.lowering.grain import (
    EXACT_HOPS,
    MOST_HOPS,
    QUICK,
    QUICK_HOPS,
    SLICE_SHARE,
    TARGET_HOPS,
    Grain,
)

__all__ = [
    "EXACT_HOPS",
    "MOST_HOPS",
    "QUICK",
    "QUICK_HOPS",
    "SLICE_SHARE",
    "TARGET_HOPS",
    "Broken",
    "Fault",
    "Grain",
    "Lowered",
    "arriving_ps",
    "describe_faults",
    "known_at_start",
    "lower",
    "parse_fault",
    "parse_faults",
    "plan_change",
]
