"""Figures with provenance: value with unit, mark and source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from clusim.base.errors import InputError, UnitError, suggest
from clusim.base.units import parse_rate, parse_size, parse_time
from clusim.hardware.calibration import ROW_SETS

Mark = Literal["published", "calibrated", "assumed"]
"""Origin of a figure.

``published``: stated by the vendor, a standard or the library, or printed by their tools.
``calibrated``: taken from or fitted to the measurement named in the source. ``assumed``: not measured;
the source gives the basis and reason.
"""

MARKS: tuple[Mark, ...] = get_args(Mark)

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
        ``published``, ``calibrated`` or ``assumed``.
    source : str
        Document, measurement or the reasoning behind an assumption.
    rows : tuple of str
        Measurement sets of a calibrated figure (`clusim.hardware.calibration`).
    """

    value: Value
    mark: Mark
    source: str
    rows: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Write value, mark and source on one line."""
        return f"{self.value} ({self.mark}: {self.source})"


Preset = Mapping[str, Figure]
"""The figures of one chip, switch, link or protocol, by the key a topology file would use."""


def published(value: Value, source: str) -> Figure:
    """Return a figure stated by a document or tool of the vendor, or by a standard."""
    return Figure(value, "published", source)


def calibrated(value: Value, source: str, *rows: str) -> Figure:
    """Return a figure taken from or fitted to measurements.

    Agreement with its rows is by construction.

    Parameters
    ----------
    rows : str
        Names of the sets of measurements, as `clusim.hardware.calibration` has them.
    """
    unknown = [name for name in rows if name not in ROW_SETS]
    if unknown:
        raise InputError(
            f"no set of measurements is called {unknown[0]!r}{suggest(unknown[0], ROW_SETS)}"
        )
    return Figure(value, "calibrated", source, rows)


def assumed(value: Value, reason: str) -> Figure:
    """Return an unpublished, unmeasured figure; `reason` gives its basis."""
    return Figure(value, "assumed", reason)


_QUANTITIES = {"s": parse_time, "B/s": parse_rate, "B": parse_size}


def check_figures(figures: Preset, units: Mapping[str, str], optional: Iterable[str] = ()) -> None:
    """Check keys, units and sources of figures.

    Parameters
    ----------
    figures : Preset
        Content of a file.
    units : mapping
        Unit of every valid key; ``B``, ``B/s`` and ``s`` are written with the number, ``1`` is a plain one.
    optional : iterable of str
        Keys that may be missing.

    Raises
    ------
    InputError
        Unknown and missing keys, values without the unit of their key, empty sources.
    """
    for key, figure in figures.items():
        if key not in units:
            raise InputError(f"no figure is called {key!r}{suggest(key, units)}")
        _check(key, figure, units[key])
    missing = [key for key in units if key not in figures and key not in set(optional)]
    if missing:
        raise InputError(f"figure {missing[0]!r} [{units[missing[0]]}] is missing")


def _check(key: str, figure: Figure, unit: str) -> None:
    if not figure.source.strip():
        raise InputError(f"{key}: {figure.value!r} is without source; add it")
    parse = _QUANTITIES.get(unit)
    if parse is None:
        if isinstance(figure.value, str) and unit != "word":
            raise InputError(f"{key}: {figure.value!r} is a text; write a number [{unit}]")
        return
    text = str(figure.value)
    if text.isdecimal() and int(text):
        raise InputError(f"{key}: {text!r} is without unit; write it with the number [{unit}]")
    try:
        parse(text)
    except UnitError as error:
        raise InputError(f"{key}: {error}") from error


def count_marks(figures: Iterable[Figure]) -> dict[Mark, int]:
    """Return the number of parameters with each mark."""
    result = Counter(figure.mark for figure in figures)
    return {mark: result[mark] for mark in MARKS}
