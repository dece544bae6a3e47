"""Reading of columns and attributes, each checked against its rule in `clusim.results.trace.layout`.

Callers may trust the values, no column is read twice, and a table of any size is checked block by block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import TraceError
from clusim.results.trace.layout import LATER, RULES, Rule, rule_of
from clusim.results.trace.structure import Opened, dtype_of

_KINDS = {
    **dict.fromkeys(("int", "ascending", "offsets"), ("iu", "whole numbers")),
    **dict.fromkeys(("text", "verbatim"), ("S", "texts")),
    "float": ("f", "numbers"),
    "any": ("iufSV", "values"),
}
"""Kinds of NumPy's types by kind of rule, and their name."""

_TEXT_BYTES = 1 << 16
"""Longest attribute [bytes]."""


def length(file: Opened, name: str) -> int:
    """Return the number of rows of a column; raises `TraceError` if it is missing."""
    shape = file.shape(name)
    if not shape:
        raise TraceError(
            f"{file.filename}: {name}: a single value; must be a column"
        )
    return int(shape[0])


def read(
    file: Opened,
    name: str,
    low: int = 0,
    high: int | None = None,
    *,
    bins: int | None = None,
) -> Array:
    """Return a column, or its rows from `low` to `high`; for a history the first `bins` bins.

    Raises
    ------
    TraceError
        The column is missing, or violates its rule.
    """
    if name in LATER and name not in file:
        return np.zeros(length(file, RULES[name].rows), np.int64)
    rows = length(file, name)
    rule = rule_of(name, file)
    where = f"{file.filename}: {name}"
    _check_form(file, name, rule, where, bins)
    end = rows if high is None else min(high, rows)
    if bins is not None:
        values = np.asarray(file[name][low:end, :bins])
    else:
        values = (
            file.values(name)
            if (low, end) == (0, rows)
            else np.asarray(file[name][low:end])
        )
    if values.dtype.kind == "S":
        _check_texts(values, rule, where)
    elif values.dtype.kind != "V":
        rows = length(file, rule.into) if rule.into else rule.high
        offsets = rule.kind == "offsets"
        if offsets and (not values.size or values[0] != 0 or values[-1] != rows):
            raise TraceError(f"{where}: offsets that are not from 0 to {rows}")
        _check_numbers(values, rule, rows + offsets, where)
        values = _usual(values, rule)
    return values


def read_texts(file: Opened, name: str) -> list[str]:
    """Return a column of texts; raises `TraceError` like `read`."""
    values = read(file, name)
    if values.dtype.kind != "S":
        raise TraceError(
            f"{file.filename}: {name}: values of type {values.dtype}; must be texts"
        )
    return [value.decode() for value in values.tolist()]


def attribute(file: Opened, group: str, name: str, default: Any = None) -> Any:
    """Return an attribute as int, float or str; `default`, if given, replaces a missing one."""
    where = f"{file.filename}: {group}: attribute {name}"
    stored = file.attribute(group, name)
    if stored is None:
        if default is None:
            raise TraceError(f"{where} is missing; is the file complete?")
        return default
    dtype = dtype_of(stored.get_type())
    if (
        dtype.kind not in "iufSb"
        or stored.shape != ()
        or dtype.itemsize > _TEXT_BYTES
    ):
        raise TraceError(f"{where}: must be one number or one text")
    value, rule = np.empty((), dtype), RULES.get(f"@{name}", Rule())
    stored.read(value)
    if value.dtype.kind == "b":
        value = value.astype(np.int8)
    kinds, name = _KINDS[rule.kind]
    if value.dtype.kind not in kinds:
        raise TraceError(f"{where}: of type {value.dtype}; must be one of {name}")
    if kinds == "S":
        _check_texts(value.reshape(1), rule, where)
        return bytes(value.item()).decode()
    _check_numbers(value.reshape(1), rule, rule.high, where)
    return value.item()


def _check_form(
    file: Opened, name: str, rule: Rule, where: str, bins: int | None
) -> None:
    """Check type, unit and shape of a column before it is read."""
    shape, dtype = file.shape(name), file.dtype(name)
    kinds, types = _KINDS[rule.kind]
    if dtype.kind not in kinds:
        raise TraceError(f"{where}: values of type {dtype}; must be {types}")
    unit = rule.units
    unit_in_file = (
        attribute(file, name, "units", "") if unit not in ("", "1") else unit
    )
    if unit_in_file not in ("", "1", unit):
        raise TraceError(f"{where}: in {unit_in_file!r}; must be in {unit!r}")
    dimensions = 1 if bins is None else 2
    if len(shape) != dimensions or (bins is not None and shape[1] < bins):
        sizes = " x ".join(map(str, shape))
        raise TraceError(
            f"{where}: {sizes} values; must be a column{' of bins' * (dimensions - 1)}"
        )
    if rule.rows:
        expected = length(file, rule.rows) + (rule.kind == "offsets")
        if shape[0] != expected:
            raise TraceError(
                f"{where}: {shape[0]} rows; must be {expected}, by {rule.rows}"
            )


def _usual(values: Array, rule: Rule) -> Array:
    """Return integers in a type that is safe for arithmetic; files may have narrow types."""
    usual = values.dtype.isnative and values.dtype in (np.int64, np.int32, np.uint32)
    if values.dtype.kind not in "iu" or usual or rule.high > 1 << 63:
        return values
    return values.astype(np.int64)


def _check_numbers(values: Array, rule: Rule, high: int, where: str) -> None:
    """Check that numbers are in their range, and in order."""
    if not values.size:
        return
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise TraceError(f"{where}: not a number; must be {rule.low} to {high - 1}")
    present = values if rule.absent is None else values[values != rule.absent]
    if present.size and not (rule.low <= present.min() and present.max() < high):
        wrong = present.min() if present.min() < rule.low else present.max()
        raise TraceError(
            f"{where}: a value of {wrong}; must be {rule.low} to {high - 1}"
        )
    if rule.kind in ("ascending", "offsets") and (values[1:] < values[:-1]).any():
        raise TraceError(f"{where}: a value below the one before it; must ascend")


def _check_texts(values: Array, rule: Rule, where: str) -> None:
    """Check that texts are such as a trace has."""
    if not values.size:
        return
    if rule.kind != "verbatim":
        letters = np.ascontiguousarray(values).view(np.uint8)
        if ((letters < 32) & (letters != 0)).any() or (letters == 127).any():
            raise TraceError(
                f"{where}: a text with control characters; must be without"
            )
    if rule.words:
        unknown = set(values.tolist()) - {word.encode() for word in rule.words}
        if unknown:
            raise TraceError(
                f"{where}: {min(unknown)!r}; must be one of {', '.join(rule.words)}"
            )
    else:
        try:
            for value in values.tolist():
                value.decode()
        except UnicodeDecodeError:
            raise TraceError(f"{where}: a text that is not UTF-8") from None
