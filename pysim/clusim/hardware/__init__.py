"""Hardware as data: every figure with its unit, how it is known, and its source."""

from __future__ import annotations

from clusim.hardware.chips import CHIPS
from clusim.hardware.figures import Figure, Mark, Preset, Value, lookup
from clusim.hardware.links import FORMATS, LINKS
from clusim.hardware.protocols import ARCHITECTURES, CTA_SKEW, P2P, WINDOW
from clusim.hardware.switches import SWITCHES

__all__ = [
    "ARCHITECTURES",
    "CHIPS",
    "CTA_SKEW",
    "FORMATS",
    "LINKS",
    "P2P",
    "SWITCHES",
    "WINDOW",
    "Figure",
    "Mark",
    "Preset",
    "Value",
    "lookup",
]
