"""Collecting everything that is wrong with a description, each with its place, before giving up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusim.base.errors import TopologyError, one_line, suggest

if TYPE_CHECKING:
    from clusim.topology.yamltext import Document

Path = tuple[str | int, ...]

SYNONYMS = {
    "bandwidth": "rate",
    "speed": "rate",
    "delay": "latency",
    "gpus": "nodes",
    "lanes": "count",
}
"""Words people write, and the key that is meant."""

MOST = 20
"""So many problems are reported; more help nobody."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the nearest known word, otherwise the words there are."""
    return suggest(word, known, SYNONYMS)


def dotted(path: Path) -> str:
    """Write a path as people do: ``links[3].rate``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return _short(text, 120)


def _short(text: str, most: int) -> str:
    text = one_line(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


@dataclass(slots=True)
class Problems:
    """Problems found so far in the description called `where`."""

    where: str
    document: Document | None = None
    found: list[tuple[tuple[int, int], str]] = field(default_factory=list)

    def add(self, path: Path, message: str, *, key: bool = False) -> None:
        """Note that something is wrong with the value (or the key) at `path`."""
        name = dotted(path)
        place = self.document.place(path, key=key) if self.document is not None else (0, 0)
        self.found.append((place, f"{name}: {message}" if name else message))

    def raise_if_any(self) -> None:
        """Raise one `TopologyError` with a line per problem, in the order of the text."""
        if not self.found:
            return
        lines = []
        found = sorted(dict.fromkeys(self.found), key=lambda item: item[0])
        for (line, column), message in found[:MOST]:
            place = f"{self.where}:{line}:{column}" if line else self.where
            lines.append(_short(f"{place}: {message}", 400))
        more = len(found) - MOST
        if more > 0:
            lines.append(f"{self.where}: and {more} more")
        raise TopologyError("\n".join(lines))
