"""Figures with provenance: value with unit, mark, source and bounds; objects of figures from files.

A figure of a file is ``{value: 80GiB, mark: published, source: ..., rows: [...], bounds: ...}``. Its source may contain
``{name}``, a text of the section ``sources`` of the file or of `SOURCES`. Bounds are ``[low, high]`` in the form of the
value, or ``10%`` of the value in both directions; they follow from the source. Without bounds, the mark decides: see
`Figure.limits`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from clusim.base.datafiles import Entry, mapping, read
from clusim.base.errors import InputError, UnitError, suggest
from clusim.base.records import dataclass
from clusim.base.units import (
    parse_rate,
    parse_size,
    parse_time,
)
from clusim.hardware.bounds import (
    Value,
    bounds_words,
    is_number,
    relative_bounds,
    scale_value,
)
from clusim.hardware.calibration import ROW_SETS

T = TypeVar("T")

Mark = Literal["published", "calibrated", "assumed"]
"""Origin of a figure.

``published``: stated by the vendor, a standard or the library, or printed by their tools.
``calibrated``: taken from or fitted to the measurement named in the source. ``assumed``: not measured;
the source gives the basis and reason.
"""

MARKS: tuple[Mark, ...] = get_args(Mark)


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
    bounds : (float, float) or None
        Lowest and highest value that the source allows, as factors of the value.
    """

    value: Value
    mark: Mark
    source: str
    rows: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None

    def __str__(self) -> str:
        """Write value, mark, bounds and source on one line."""
        bounds = f", {bounds_words(self.value, self.bounds)}" if self.bounds else ""
        return f"{self.value} ({self.mark}{bounds}: {self.source})"

    @property
    def limits(self) -> tuple[float, float] | None:
        """Bounds as factors of the value; None if unknown.

        Without bounds, published figures, words and truth values are exact. The relative errors of the rows that
        calibrated a figure bound it: with errors that are uniform within the bounds, the median error is half of the
        bound, so that bounds are twice the `RowSet.spread`, the largest of several sets.
        """
        if self.bounds is not None:
            return self.bounds
        if self.mark == "published" or not is_number(self.value):
            return 1.0, 1.0
        half = 2 * max((ROW_SETS[name].spread for name in self.rows), default=0.0)
        return (1 - half, 1 + half) if half else None

    def assumed_as(self, origin: str) -> Figure:
        """Return the figure as an assumption for hardware without measurements, with equal bounds."""
        bounds = None if self.limits == (1.0, 1.0) else self.limits
        return Figure(
            self.value, "assumed", f"as {origin}: {self.source}", bounds=bounds
        )


class Sourced:
    """Dataclass with figures, or presets of figures, as fields."""

    __slots__ = ()

    def named_figures(self) -> Iterator[tuple[str, Figure]]:
        """Yield the names and figures of fields."""
        for item in fields(cast("Any", self)):
            value = getattr(self, item.name)
            if isinstance(value, Figure):
                yield item.name, value

    def all_figures(self) -> Iterator[Figure]:
        """Yield every figure, including preset figures."""
        yield from (figure for _, figure in self.named_figures())
        for item in fields(cast("Any", self)):
            value = getattr(self, item.name)
            values = value.values() if isinstance(value, dict) else ()
            yield from (part for part in values if isinstance(part, Figure))


Preset = Mapping[str, Figure]
"""The figures of one chip, switch, link or protocol, by the key a topology file would use."""


def published(value: Value, source: str, bounds: object = None) -> Figure:
    """Return a figure stated by a document or tool of the vendor, or by a standard."""
    return Figure(value, "published", source, bounds=relative_bounds(value, bounds))


def calibrated(
    value: Value, source: str, *rows: str, bounds: object = None
) -> Figure:
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
    return Figure(value, "calibrated", source, rows, relative_bounds(value, bounds))


def assumed(value: Value, reason: str, bounds: object = None) -> Figure:
    """Return an unpublished, unmeasured figure; `reason` gives its basis."""
    return Figure(value, "assumed", reason, bounds=relative_bounds(value, bounds))


_QUANTITIES = {"s": parse_time, "B/s": parse_rate, "B": parse_size}

_FACTORS: ContextVar[Mapping[str, float] | None] = ContextVar(
    "factors", default=None
)


@contextmanager
def scaled_figures(factors: Mapping[str, float]) -> Iterator[None]:
    """Scale figures in topologies and programs that are created within the context.

    Parameters
    ----------
    factors : mapping
        Text of a figure (`str`) -> factor. Figures with equal texts are one variable: they share their origin.
    """
    token = _FACTORS.set(factors)
    try:
        yield
    finally:
        _FACTORS.reset(token)


_OVERLAID: ContextVar[Mapping[str, Figure] | None] = ContextVar(
    "overlaid", default=None
)


@contextmanager
def overlaid_figures(figures: Mapping[str, Figure]) -> Iterator[None]:
    """Replace figures in topologies that are created within the context.

    Parameters
    ----------
    figures : mapping
        Text of a figure (`str`) -> the figure in its place. Contexts in this one replace its figures.
    """
    outer = _OVERLAID.get() or {}
    token = _OVERLAID.set({**figures, **outer})
    try:
        yield
    finally:
        _OVERLAID.reset(token)


def current_figure(figure: Figure) -> Figure:
    """Return a figure, or the one in its place within `overlaid_figures`."""
    overlaid = _OVERLAID.get()
    return overlaid.get(str(figure), figure) if overlaid else figure


def value_of(figure: Figure) -> Value:
    """Return the value of a figure, replaced and scaled as by `overlaid_figures` and `scaled_figures`."""
    figure, factors = current_figure(figure), _FACTORS.get()
    factor = factors.get(str(figure)) if factors else None
    return figure.value if factor is None else scale_value(figure.value, factor)


def any_scaled(figures: Iterable[Figure] | None = None) -> bool:
    """Return True if one of the figures is scaled or replaced in this context; None: any figure."""
    changes = {**(_FACTORS.get() or {}), **(_OVERLAID.get() or {})}
    if figures is None or not changes:
        return bool(changes)
    return any(
        text in changes
        for figure in figures
        for text in (str(figure), str(current_figure(figure)))
    )


def check_figures(
    figures: Preset, units: Mapping[str, str], optional: Iterable[str] = ()
) -> None:
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
    missing = [
        key for key in units if key not in figures and key not in set(optional)
    ]
    if missing:
        raise InputError(f"figure {missing[0]!r} [{units[missing[0]]}] is missing")


def _check(key: str, figure: Figure, unit: str) -> None:
    if not figure.source.strip():
        raise InputError(f"{key}: {figure.value!r} is without source; add it")
    parse = _QUANTITIES.get(unit)
    if parse is None:
        if isinstance(figure.value, str) and unit != "word":
            raise InputError(
                f"{key}: {figure.value!r} is a text; write a number [{unit}]"
            )
        return
    text = str(figure.value)
    if text.isdecimal() and int(text):
        raise InputError(
            f"{key}: {text!r} is without unit; write it with the number [{unit}]"
        )
    try:
        parse(text)
    except UnitError as error:
        raise InputError(f"{key}: {error}") from error


def count_marks(figures: Iterable[Figure]) -> dict[Mark, int]:
    """Return the number of parameters with each mark."""
    result = Counter(figure.mark for figure in figures)
    return {mark: result[mark] for mark in MARKS}


_MAKERS: dict[Mark, Callable[..., Figure]] = {
    "published": published,
    "calibrated": calibrated,
    "assumed": assumed,
}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (int, float),
    "Figure": Figure,
    "Preset": dict,
}

UNITS: dict[str, dict[str, str]] = read(Path(__file__).with_name("units.yaml"))
"""Units of figures by kind of hardware and key, in the order of printed presets."""

OPTIONAL: dict[str, list[str]] = cast("Any", UNITS.pop("optional"))
"""Figures that may be missing, by kind of hardware."""

SOURCES: dict[str, str] = read(Path(__file__).with_name("sources.yaml"))
"""Sources that several files share."""


def figure(entry: Any, sources: Mapping[str, Any] | None = None) -> Figure:
    """Return the figure of an entry; a ``{name}`` is replaced: in its source by that text, in its value by that value.

    Raises
    ------
    InputError
        Unknown or missing keys, marks, names of sources or of measurements.
    """
    if not isinstance(entry, dict) or not {"value", "mark"} <= set(entry):
        raise InputError(
            f"{entry!r} is not a figure; write {{value: ..., mark: published, source: ...}}"
        )
    for key in entry:
        if key not in {"value", "mark", "source", "rows", "bounds"}:
            raise InputError(f"no key of a figure is called {key!r}")
    mark, rows = entry["mark"], entry.get("rows", ())
    value = _fill_value(entry["value"], sources) if sources else entry["value"]
    parts = list(value.values()) if isinstance(value, dict) else [value]
    if not all(isinstance(part, (str, int, float)) for part in parts):
        raise InputError(
            f"value is {value!r}; it must be a number, a word, or numbers by name"
        )
    if not isinstance(rows, (list, tuple)) or not all(
        isinstance(row, str) for row in rows
    ):
        raise InputError(f"rows is {rows!r}; it must be a list of names")
    if mark not in MARKS:
        raise InputError(f"mark is {mark!r}; it must be one of {', '.join(MARKS)}")
    if bool(rows) and mark != "calibrated":
        raise InputError(
            f"rows belong to calibrated figures, and this one is {mark}"
        )
    source = expand_source(entry, sources or {})
    return _MAKERS[mark](value, source, *rows, bounds=entry.get("bounds"))


def _fill_value(value: Any, values: Mapping[str, Any]) -> Any:
    """Return a value of a file with the named values; one that is only ``{name}`` keeps the type."""
    if isinstance(value, dict):
        return {key: _fill_value(part, values) for key, part in value.items()}
    if not isinstance(value, str) or "{" not in value:
        return value
    alone = values.get(value[1:-1])
    return value.format_map(values) if alone is None else alone


def expand_source(entry: Entry, sources: Mapping[str, Any]) -> str:
    """Return the source of an entry; every ``{name}`` in it is replaced by that text."""
    if "{" not in (text := str(entry.get("source") or "")):
        return text
    texts = {**SOURCES, **sources}

    def replace_name(match: re.Match[str]) -> str:
        if match[1] not in texts:
            raise InputError(
                f"no source is called {match[1]!r}{suggest(match[1], texts)}"
            )
        return str(texts[match[1]])

    before, after = "", text
    while after != before:
        before, after = after, re.sub(r"\{(\w+)\}", replace_name, after)
    return after


def figures(
    entry: Entry, sources: Mapping[str, Any] | None = None
) -> dict[str, Figure]:
    """Return the figures of a section by key, filled as by `figure`; errors name the key."""
    result = {}
    for key, value in mapping("figures", entry).items():
        try:
            result[key] = figure(value, sources)
        except InputError as error:
            raise InputError(f"{key}: {error}") from None
    return result


def presets(section: Entry) -> dict[str, Preset]:
    """Return the presets of a section of a file by name."""
    return {name: figures(entry) for name, entry in section.items()}


def plain(value: Any) -> Any:
    """Return data with figures as `Figure`, lists as tuples."""
    if isinstance(value, dict):
        if "mark" in value:
            return figure(value)
        return {key: plain(item) for key, item in value.items()}
    return tuple(map(plain, value)) if isinstance(value, list) else value


def build(kind: type[T], entry: Entry, **given: Any) -> T:
    """Build a dataclass from an entry with its fields as keys.

    `given` sets the fields that the entry omits.

    Raises
    ------
    InputError
        Unknown and missing keys, values of another type.
    """
    declared = {item.name: item for item in fields(cast("Any", kind)) if item.init}
    values: dict[str, Any] = {
        **{key: plain(value) for key, value in entry.items()},
        **given,
    }
    for key, value in values.items():
        if key not in declared:
            raise InputError(f"no key is called {key!r}{suggest(key, declared)}")
        typed = str(declared[key].type)
        expected_type = (
            tuple if typed.startswith("tuple") else _TYPES.get(typed, object)
        )
        if not isinstance(value, expected_type) or (
            expected_type is int and isinstance(value, bool)
        ):
            raise InputError(f"{key} is {value!r}; it must be {_word(typed)}")
        sequence = re.match(r"tuple\[(int|str), \.\.\.\]", typed)
        parts = list(value) if isinstance(value, tuple) else []
        if sequence and not all(
            isinstance(part, _TYPES[sequence[1]]) for part in parts
        ):
            raise InputError(
                f"{key} is {parts!r}; it must be a list of {'integers' if sequence[1] == 'int' else 'words'}"
            )
    for key, item in declared.items():
        if (
            key not in values
            and item.default is MISSING
            and item.default_factory is MISSING
        ):
            raise InputError(f"key {key!r} is missing")
    return kind(**values)


def _word(typed: str) -> str:
    if typed.startswith("tuple"):
        return "a list"
    return {"bool": "true or false", "int": "an integer", "str": "a word"}.get(
        typed, "a number"
    )
