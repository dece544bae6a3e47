"""Grids of runs, written in YAML: every list is an axis, and all combinations are run.

``run:`` has the words of `clusim run`, ``train:`` those of `clusim train` and, below ``change``, keys of the workload
by their path (``parallel.tensor``). Each may be a list of such blocks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from clusim.base.errors import ClusimError, InputError
from clusim.base.files import note_input
from clusim.base.limits import read_text
from clusim.studies.sweep.points import Cell, SweepPoint
from clusim.studies.sweep.words import BLOCKS, run_point, train_point
from clusim.topology.problems import Problems, did_you_mean
from clusim.topology.yamltext import Document, parse

MOST_BYTES = 4 << 20
"""Largest grid file [bytes]."""

MOST_POINTS = 100_000
"""Most runs of a sweep."""

Make = Callable[[Mapping[str, Any]], SweepPoint]
_MAKE: dict[str, Make] = {"run": run_point, "train": train_point}


@dataclass(frozen=True)
class SweepGrid:
    """All points of a sweep, in the order of the file: the axis that is named last changes fastest.

    Attributes
    ----------
    axes : tuple of str
        Columns of which there is more than one value.
    """

    name: str
    points: tuple[SweepPoint, ...]
    axes: tuple[str, ...]


def read_grid(path: str | os.PathLike[str]) -> SweepGrid:
    """Read a grid.

    Raises
    ------
    InputError, TopologyError
        It cannot be read; a line for each thing that is wrong, with its place.
    """
    where = os.fspath(path)
    note_input(path)
    document = parse(read_text(where, MOST_BYTES), where)
    problems = Problems(where, document, list(document.problems))
    if not isinstance(document.data, dict):
        raise InputError(f"{where}: must be a mapping with 'run' or 'train'")
    for key in document.data.keys() - _MAKE.keys():
        problems.add((key,), f"unknown key{did_you_mean(key, _MAKE)}", key=True)
    points: dict[str, SweepPoint] = {}
    home = Path(where).resolve().parent
    for kind, at, block in _blocks(document, problems):
        if (axes := _axes(kind, at, block, problems)) is None:
            continue
        for choice in _combined(axes, where):
            try:
                point = _MAKE[kind]({"home": home, **choice})
            except ClusimError as error:
                problems.add(at, str(error))
                break
            points.setdefault(point.name, point)
    problems.raise_if_any()
    if not points:
        raise InputError(f"{where}: has no runs; write run: {{topology: ..., size: [...]}}")
    found = tuple(points.values())
    return SweepGrid(where, found, _varied(found))


def _blocks(
    document: Document, problems: Problems
) -> Iterator[tuple[str, tuple[str | int, ...], dict[str, Any]]]:
    """Yield kind, place and content of every block."""
    for kind in _MAKE:
        given = document.data.get(kind, [])
        several = given if isinstance(given, list) else [given]
        for index, block in enumerate(several):
            at = (kind, index) if isinstance(given, list) else (kind,)
            if isinstance(block, dict):
                yield kind, at, block
            else:
                problems.add(at, "must be a mapping of names and values, or of lists of values")


def _axes(
    kind: str, at: tuple[str | int, ...], block: dict[str, Any], problems: Problems
) -> dict[str, list[Any]] | None:
    """Return the values of every name of a block; None if something is wrong with it."""
    known, before = BLOCKS[kind], len(problems.found)
    axes: dict[str, list[Any]] = {}
    for name, value in block.items():
        if name == "change" and kind == "train":
            axes |= _changes((*at, name), value, problems)
        elif name not in known.words:
            words = [*known.words, *(["change"] if kind == "train" else [])]
            problems.add((*at, name), f"unknown key{did_you_mean(name, words)}", key=True)
        else:
            axes[name] = value if isinstance(value, list) else [value]
            if not axes[name]:
                problems.add((*at, name), "an empty list; give at least one value")
            for index, item in enumerate(axes[name]):
                try:
                    axes[name][index] = known.words[name](item)
                except (ClusimError, ValueError) as error:
                    place = (*at, name, index) if isinstance(value, list) else (*at, name)
                    problems.add(place, str(error))
    for name in known.needed - block.keys():
        problems.add(at, f"{name!r} is missing")
    return axes if len(problems.found) == before else None


def _changes(
    at: tuple[str | int, ...], given: Any, problems: Problems
) -> dict[str, list[tuple[Cell, Any]]]:
    """Return the axes of changes of a workload, each value with how its column shows it."""
    if not isinstance(given, dict):
        problems.add(at, "must be a mapping of keys of the workload, such as parallel.tensor")
        return {}
    found = {}
    for name, value in given.items():
        values = value if isinstance(value, list) else [value]
        if not values:
            problems.add((*at, name), "an empty list; give at least one value")
        found[f"change.{name}"] = [(_shown(item), item) for item in values]
    return found


def _shown(value: Any) -> Cell:
    """Return a value as a column has it: mappings and lists as YAML writes them in a line."""
    return value if isinstance(value, Cell) else json.dumps(value).replace('"', "")


def _combined(axes: dict[str, list[Any]], where: str) -> Iterator[dict[str, Any]]:
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > MOST_POINTS:
        raise InputError(f"{where}: {count:,} runs; at most {MOST_POINTS:,} in one grid")
    for choice in product(*axes.values()):
        yield dict(zip(axes, choice, strict=True))


def _varied(points: tuple[SweepPoint, ...]) -> tuple[str, ...]:
    """Return the columns in which points of one kind differ."""
    seen: dict[tuple[str, str], set[Cell]] = {}
    for kind in _MAKE:
        own = [dict(point.given) for point in points if point.kind == kind]
        for name in dict.fromkeys(name for given in own for name in given):
            seen[kind, name] = {given.get(name) for given in own}
    return tuple(dict.fromkeys(name for (_, name), values in seen.items() if len(values) > 1))
