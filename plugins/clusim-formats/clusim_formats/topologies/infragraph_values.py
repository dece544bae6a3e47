"""Values of InfraGraph files, with errors that name file, line and key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from clusim.base.errors import TopologyError
from clusim.base.limits import fail, number, printable
from clusim.formats.topologies.common import MAX_NODES
from clusim.topology.yamltext import Document, Path

_PART = re.compile(r"([A-Za-z_][A-Za-z0-9_ -]{0,99})(?:\[([^\]]{0,40})\])?")
_SLICE = re.compile(r"(-?[0-9]{0,7})(?:(:)(-?[0-9]{0,7})(?::([0-9]{1,7}))?)?")


class InfraGraphValues:
    """Values of the document of a file."""

    def __init__(self, document: Document, where: str) -> None:
        self.document, self.where = document, where

    def fail(self, path: Path, message: str) -> TopologyError:
        """Return the error about the value at a path."""
        key = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in path
        )
        line = self.document.place(path)[0]
        return fail(
            self.where, line, f"{key.removeprefix('.') or 'the file'}: {message}"
        )

    # Values.

    def text(
        self, data: Mapping[str, Any], path: Path, key: str, usual: str | None = None
    ) -> str:
        """Return the text of a key; `usual` if it is missing."""
        value = data.get(key, usual)
        if value is None and usual is not None:
            return usual
        if not isinstance(value, str) or (not value and usual is None):
            raise self.fail(
                (*path, key) if key in data else path, f"{key} must be a text"
            )
        return value

    def rows(
        self, data: Mapping[str, Any], path: Path, key: str
    ) -> Iterator[tuple[Path, Any]]:
        """Yield the mappings of a list, each with its path."""
        value = data.get(key)
        if value is not None and not isinstance(value, list):
            raise self.fail((*path, key), "must be a list")
        for at, row in enumerate(value or []):
            if not isinstance(row, dict):
                raise self.fail((*path, key, at), "must be a mapping")
            yield (*path, key, at), row

    def count(self, data: Mapping[str, Any], path: Path) -> int:
        """Return the count of a device or component."""
        value = data.get("count", 1)
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or not 0 <= value <= MAX_NODES
        ):
            raise self.fail(
                (*path, "count"), f"must be a number from 0 to {MAX_NODES}"
            )
        return value

    # The file.

    def quantity(
        self, data: Mapping[str, Any], path: Path, key: str
    ) -> tuple[str, float, Path]:
        """Return unit and value of a choice of units; ('', 0) if it is missing."""
        values = data.get(key)
        if values is None:
            return "", 0.0, path
        path = (*path, key)
        if not isinstance(values, dict):
            raise self.fail(path, "must be a mapping with choice and a value")
        units = [name for name in values if name != "choice"]
        unit = str(values.get("choice") or (units[0] if len(units) == 1 else ""))
        if unit not in values:
            raise self.fail(
                path, f"choice {printable(unit)!r} needs a value of this name"
            )
        value = number(values[unit])
        if value is None or not 0 < value < 1e9:
            raise self.fail((*path, unit), "must be a number above 0")
        return unit, value, (*path, unit)

    def part(self, text: str, place: Path) -> tuple[str, str]:
        """Return the name of a component or instance, and its slice."""
        match = _PART.fullmatch(text)
        if match is None:
            raise self.fail(
                place,
                f"{printable(text)!r}: must be a name with a slice, as xpu[0:4]",
            )
        return match[1], match[2] or ""

    def chosen(self, text: str, count: int, place: Path) -> range:
        """Return the numbers that an index or a slice selects."""
        match = _SLICE.fullmatch(text)
        if match is None:
            raise self.fail(
                place, f"[{printable(text)}]: must be an index or a slice"
            )
        if match[1] and not match[2]:
            index = int(match[1])
            if not 0 <= index < count:
                raise self.fail(
                    place, f"index {index} is not below the count of {count}"
                )
            return range(index, index + 1)
        first, last = (int(word) if word else None for word in (match[1], match[3]))
        if (last or 0) > count:
            raise self.fail(
                place, f"[{printable(text)}] exceeds the count of {count}"
            )
        return range(count)[slice(first, last, int(match[4] or 1))]

    def pattern(self, text: str, place: Path) -> re.Pattern[str]:
        """Return a pattern of the labels of ``host[0:2]xpu[0]`` or ``host.0.xpu.0`` and below."""
        if "[" not in text:
            return re.compile(re.escape(text) + r"(?=\.|$)")
        parts = []
        for name, chosen in re.findall(
            r"(?<![^\[\].])([^\[\].]+)\[([^\[\]]*)\]", text
        ):
            numbers = "|".join(
                map(str, self.chosen(chosen, MAX_NODES, place)[:4096])
            )
            parts.append(rf"{re.escape(name)}\.(?:{numbers})")
        return re.compile(r"\.".join(parts) + r"(?=\.|$)")

    def attributes(self, row: Mapping[str, Any], at: Path) -> dict[str, str]:
        """Return the attributes of an annotation."""
        return {
            self.text(item, place, "attribute"): str(item.get("value", ""))
            for place, item in self.rows(row, at, "attributes")
        }
