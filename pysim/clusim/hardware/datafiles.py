"""Hardware as YAML: text to objects, every figure with its value, mark and source.

A figure is ``{value: 80GiB, mark: published, source: ..., rows: [...]}``. Its source may contain ``{name}``, a text of
the section ``sources`` of the file or of `SOURCES`. YAML 1.2: ``no`` is a word, ``312e12`` a number.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import yaml

from clusim.base.errors import InputError, suggest
from clusim.hardware.figures import MARKS, Figure, assumed, calibrated, published

T = TypeVar("T")
Entry = Mapping[str, Any]
"""A section of a file: plain data by key."""

FOLDER = Path(__file__).parent
"""Folder of the files that are shipped."""

_MAKERS = {"published": published, "calibrated": calibrated, "assumed": assumed}
_TYPES: dict[str, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (int, float),
    "Figure": Figure,
    "Preset": dict,
}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML 1.2 scalars; a repeated key is an error."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Return a mapping without repeated keys."""
        keys = [key.value for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.YAMLError(f"duplicate key {key!r}")
        return cast("dict[Hashable, Any]", super().construct_mapping(node, deep))


for _tag, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null|~|", ["n", "~", ""]),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first
    )


def read(path: Path) -> dict[str, Any]:
    """Read a file.

    Raises
    ------
    InputError
        A file that cannot be read, is not valid YAML or is not a mapping, with its name.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path.name}: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path.name}: not a mapping of keys to values")
    return data


SOURCES: dict[str, str] = read(FOLDER / "sources.yaml")
"""Sources that several files share."""


def figure(entry: Any, sources: Mapping[str, str] | None = None) -> Figure:
    """Return the figure of an entry; a ``{name}`` in its source is replaced by that text.

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
        if key not in {"value", "mark", "source", "rows"}:
            raise InputError(f"no key of a figure is called {key!r}")
    mark, rows, value = entry["mark"], entry.get("rows", ()), entry["value"]
    parts = list(value.values()) if isinstance(value, dict) else [value]
    if not parts or not all(isinstance(part, (str, int, float)) for part in parts):
        raise InputError(f"value is {value!r}; it must be a number, a word, or numbers by name")
    if not isinstance(rows, (list, tuple)) or not all(isinstance(row, str) for row in rows):
        raise InputError(f"rows is {rows!r}; it must be a list of names")
    if mark not in MARKS:
        raise InputError(f"mark is {mark!r}; it must be one of {', '.join(MARKS)}")
    if bool(rows) and mark != "calibrated":
        raise InputError(f"rows belong to calibrated figures, and this one is {mark}")
    return _MAKERS[mark](value, _expanded(entry.get("source"), sources or {}), *rows)


def _expanded(text: object, sources: Mapping[str, str]) -> str:
    known = {**SOURCES, **sources}

    def named(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise InputError(f"no source is called {match[1]!r}{suggest(match[1], known)}")
        return known[match[1]]

    before, after = "", str(text or "")
    while after != before:
        before, after = after, re.sub(r"\{(\w+)\}", named, after)
    return after


def figures(entry: Entry, sources: Mapping[str, str] | None = None) -> dict[str, Figure]:
    """Return the figures of a section by key; errors name the key."""
    result = {}
    for key, value in mapping("figures", entry).items():
        try:
            result[key] = figure(value, sources)
        except InputError as error:
            raise InputError(f"{key}: {error}") from None
    return result


def mapping(key: str, value: Any) -> dict[str, Any]:
    """Return a value that must be a mapping; raises `InputError` with its key otherwise."""
    if not isinstance(value, dict):
        raise InputError(f"{key} is {value!r}; it must be a mapping")
    return value


def plain(value: Any) -> Any:
    """Return data with figures as `Figure`, lists as tuples."""
    if isinstance(value, dict):
        if "mark" in value:
            return figure(value)
        return {key: plain(item) for key, item in value.items()}
    return tuple(map(plain, value)) if isinstance(value, list) else value


def pci_id(text: object) -> tuple[int, int]:
    """Return vendor and device of ``10de:20b2``."""
    match = re.fullmatch(r"([0-9a-fA-F]{4}):([0-9a-fA-F]{4})", str(text))
    if match is None:
        raise InputError(f"{text!r} is not a PCI identity; write vendor:device, as 10de:20b2")
    return int(match[1], 16), int(match[2], 16)


def build(kind: type[T], entry: Entry, **given: Any) -> T:
    """Build a dataclass from an entry with its fields as keys.

    `given` sets the fields that the entry omits.

    Raises
    ------
    InputError
        Unknown and missing keys, values of another type.
    """
    known = {item.name: item for item in fields(cast("Any", kind)) if item.init}
    values: dict[str, Any] = {**{key: plain(value) for key, value in entry.items()}, **given}
    for key, value in values.items():
        if key not in known:
            raise InputError(f"no key is called {key!r}{suggest(key, known)}")
        typed = str(known[key].type)
        wanted = tuple if typed.startswith("tuple") else _TYPES.get(typed, object)
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise InputError(f"{key} is {value!r}; it must be {_word(typed)}")
        many = re.match(r"tuple\[(int|str), \.\.\.\]", typed)
        parts = list(value) if isinstance(value, tuple) else []
        if many and not all(isinstance(part, _TYPES[many[1]]) for part in parts):
            raise InputError(
                f"{key} is {parts!r}; it must be a list of {'integers' if many[1] == 'int' else 'words'}"
            )
    for key, item in known.items():
        if key not in values and item.default is MISSING and item.default_factory is MISSING:
            raise InputError(f"key {key!r} is missing")
    return kind(**values)


def _word(typed: str) -> str:
    if typed.startswith("tuple"):
        return "a list"
    return {"bool": "true or false", "int": "an integer", "str": "a word"}.get(typed, "a number")
