"""Workload files: reading them, with errors that name file, line and column."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from clusim.base import resources
from clusim.base.errors import InputError, TopologyError
from clusim.base.limits import read_text
from clusim.topology.keys import did_you_mean
from clusim.topology.validate import Problems, validate_data
from clusim.topology.yamltext import parse
from clusim.workload.spec import Workload

MAX_FILE_BYTES = 4 << 20

Kind = TypeVar("Kind", bound=BaseModel)


def load_workload(
    name_or_path: str | os.PathLike[str], changes: Mapping[str, Any] | None = None
) -> Workload:
    """Return the workload in a file, or the shipped workload of that name.

    Parameters
    ----------
    changes : mapping or None
        Values that replace those in the file, by the paths of their keys: ``{"parallel.tensor": 4}``.
    """
    path_text = os.fspath(name_or_path)
    path = Path(path_text)
    if not path.is_file():
        shipped = resources.find_workload(path_text)
        if shipped is None and (path.suffix or path.parent != Path(".")):
            raise InputError(f"{path_text}: no such file")
        if shipped is None:
            shipped_files = resources.shipped_workloads()
            raise InputError(
                f"workload {path_text!r}: unknown{did_you_mean(path_text, shipped_files)}"
            )
        path = shipped
    text = read_text(
        path, MAX_FILE_BYTES, advice="not a workload file", where=path_text
    )
    return loads_workload(
        text, path_text, base=path.parent, name=path.stem, changes=changes
    )


def loads_workload(
    text: str,
    where: str = "workload",
    *,
    base: Path | None = None,
    name: str = "workload",
    changes: Mapping[str, Any] | None = None,
) -> Workload:
    """Return the workload that a YAML text describes; `where` is its name in errors.

    `changes` are as of `load_workload`.
    """
    result, problems = validate_text(
        Workload, text, (where, "'model' and 'batch'"), name, changes
    )
    if result.model.huggingface and base is not None:
        result.model.huggingface = os.fspath(base / result.model.huggingface)
    kernels = result.hardware.kernels
    if kernels and base is not None and (base / kernels).is_file():
        result.hardware.kernels = os.fspath(base / kernels)
    result._document = problems
    return result


def load_described(
    kind: type[Kind],
    path: str | os.PathLike[str],
    shipped: Mapping[str, Path],
    words: tuple[str, str],
    changes: Mapping[str, Any] | None = None,
) -> tuple[Kind, Path]:
    """Return the description in a YAML file, or in the shipped file of that name, and its folder.

    Parameters
    ----------
    words : (str, str)
        Name of such files, and their required keys, in errors.
    changes : mapping or None
        As of `load_workload`.

    Raises
    ------
    InputError
        A missing file, or an invalid line.
    """
    name, place = os.fspath(path), Path(path)
    if not place.is_file():
        if name not in shipped:
            raise InputError(
                f"{words[0]} file {name!r}: no such file{did_you_mean(name, shipped)}"
            )
        place = shipped[name]
    text = read_text(
        place, MAX_FILE_BYTES, advice=f"not a {words[0]} file", where=name
    )
    spec, _ = validate_text(kind, text, (name, words[1]), place.stem, changes)
    return spec, place.parent


def validate_text(
    kind: type[Kind],
    text: str,
    where: tuple[str, str],
    name: str,
    changes: Mapping[str, Any] | None = None,
) -> tuple[Kind, Problems]:
    """Return the description in a YAML text, and its problems for later errors.

    Parameters
    ----------
    where : (str, str)
        Name of the text and its required keys, in errors.
    name : str
        Its key ``name``, if it has none.
    changes : mapping or None
        As of `load_workload`.
    """
    place, needs = where[0], f"must be a mapping with {where[1]}"
    if not text.strip():
        raise InputError(f"{place}:1:1: empty file; {needs}")
    document = parse(text, place)
    problems = Problems(place, document)
    for (line, column), message in document.problems:
        problems.found.append(((line, column), message))
    if not isinstance(document.data, dict):
        problems.add((), needs)
    problems.raise_if_any()
    data = {"name": name, **document.data}
    for dotted, value in (changes or {}).items():
        _change(data, dotted, value)
    return validate_data(kind, data, problems), problems


def _change(data: dict[str, Any], dotted: str, value: Any) -> None:
    """Set the value at a path, creating missing mappings; a model's name becomes its base."""
    *above, last = dotted.split(".")
    for key in above:
        below = data.get(key)
        if below is None or (key == "model" and isinstance(below, str)):
            below = {} if below is None else {"base": below}
        if not isinstance(below, dict):
            raise InputError(f"{dotted}: {key} is {below!r}, not a mapping")
        below = dict(below)
        data[key] = below
        data = below
    data[last] = value


def complain(
    workload: Workload, path: tuple[str | int, ...], message: str
) -> TopologyError | InputError:
    """Return the error that the value at `path` of a workload conflicts with other settings."""
    problems = workload._document
    if problems is None:
        return InputError(f"{'.'.join(map(str, path))}: {message}")
    problems.add(path, message)
    try:
        problems.raise_if_any()
    except TopologyError as error:
        return error
    raise AssertionError
