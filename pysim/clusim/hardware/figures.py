"""Figures with provenance: the value as people write it, how it is known, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from clusim.errors import InputError

__all__ = [
    "Figure",
    "Mark",
    "Preset",
    "Value",
    "assumed",
    "calibrated",
    "lookup",
    "measured",
    "published",
]

Mark = Literal["published", "measured", "calibrated"]
"""published: the vendor says so. measured: somebody measured it. calibrated: fitted or assumed by us, and why."""

Value = str | int | float | bool | Mapping[str, str | int | float]
"""A value as in a topology file: quantities are strings with units."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a preset.

    Attributes
    ----------
    value : str, int, float, bool or dict
        The value, written as in a topology file.
    mark : str
        ``published``, ``measured`` or ``calibrated``.
    source : str
        Document, measurement or the reasoning behind an assumption.
    """

    value: Value
    mark: Mark
    source: str

    def __str__(self) -> str:
        """Write value, mark and source on one line."""
        return f"{self.value} ({self.mark}: {self.source})"


Preset = Mapping[str, Figure]
"""The figures of one chip, switch, link or protocol, by the key a topology file would use."""


def published(value: Value, source: str) -> Figure:
    """Return a figure a vendor document states."""
    return Figure(value, "published", source)


def measured(value: Value, source: str) -> Figure:
    """Return a figure somebody measured on hardware."""
    return Figure(value, "measured", source)


def calibrated(value: Value, source: str) -> Figure:
    """Return a figure fitted to a measurement; agreement with that measurement is by construction."""
    return Figure(value, "calibrated", source)


def assumed(value: Value, reason: str) -> Figure:
    """Return a figure nobody has published; the reason says why this value."""
    return Figure(value, "calibrated", f"assumed, no published figure: {reason}")


def lookup(presets: Mapping[str, Preset], what: str, name: str) -> Preset:
    """Return the preset called `name`; the error lists what there is."""
    if name not in presets:
        raise InputError(f"{what} {name!r}: unknown; the presets are {', '.join(presets)}")
    return presets[name]
