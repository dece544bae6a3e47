"""Files of a Chakra recording: traces of ranks, their numbers, and the file of groups."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError
from clusim.base.limits import MOST_RANKS, natural
from clusim.formats.recordings.chakra_schema import is_printed
from clusim.formats.recordings.jsonstream import integers, read_items
from clusim.formats.recordings.model import Recording
from clusim.formats.recordings.source import FileStream, streams

_FILE = re.compile(
    r"(?P<job>.*?)[._-]?(?:rank|npu)?[._-]?(?P<rank>\d+)\.(?:et|json)(?:\.gz|\.bz2|\.xz)?",
    re.I,
)


@dataclass(slots=True)
class _Files:
    """Files of a job: traces of the ranks, PyTorch's host traces, and tables of groups.

    Attributes
    ----------
    siblings : int
        Ranks of the job, from the names of files in the directory of a single given file; 0 if several were given.
    tables : dict
        Name of a group -> its ranks.
    skipped : list of str
        Files that were not read.
    """

    traces: list[FileStream] = field(default_factory=list)
    hosts: list[FileStream] = field(default_factory=list)
    siblings: int = 0
    tables: dict[str, tuple[int, ...]] = field(default_factory=dict)
    table_file: str = ""
    skipped: list[str] = field(default_factory=list)


def find_files(excerpt: str, names: list[str]) -> _Files:
    """Return the files of a job.

    They are given as files, directories, archives, or a common prefix of names before ``.0.et``.

    Raises
    ------
    InputError
        There is no such file, or one cannot be read.
    """
    result = _Files()
    expanded = _expand_names(names)
    for name in expanded:
        for file in streams(name, _is_trace_name):
            _sort(result, file)
    if len(result.traces) == 1 and Path(result.traces[0].name).is_file():
        result.siblings = _siblings(result.traces[0].name)
    if not result.tables:
        _read_group_table(result, expanded[0])
    if result.traces and result.hosts:
        result.skipped += ["JSON of PyTorch beside .et files"] * len(result.hosts)
        result.hosts = []
    if not result.traces and not result.hosts:
        raise InputError(
            f"{excerpt}: contains no Chakra trace; expected files like job.0.et, one per rank"
        )
    return result


def _sort(sorted_files: _Files, file: FileStream) -> None:
    is_json = ".json" in file.name.rsplit("/", 1)[-1].lower()
    first = file.head(1 << 13).lstrip()[:1]
    if first in (b"{", b"[") and is_printed(file):
        sorted_files.traces.append(file)
        return
    if first != b"{":
        if is_json:
            sorted_files.skipped.append(
                f"{Path(file.name).name}: JSON of another kind"
            )
        else:
            sorted_files.traces.append(file)
        return
    try:
        data, listed = read_items(file, "nodes", lambda node: None)
    except InputError:
        (sorted_files.hosts if is_json else sorted_files.traces).append(file)
        return
    table = None if listed else _table(data)
    if listed and data is not None and "schema" in data:
        sorted_files.hosts.append(file)
    elif table:
        sorted_files.tables.update(table)
        sorted_files.table_file = file.name
    else:
        sorted_files.skipped.append(f"{Path(file.name).name}: JSON of another kind")


def _is_trace_name(name: str) -> bool:
    return bool(
        re.fullmatch(r".*\.(?:et|json)(?:\.gz|\.bz2|\.xz)?", name, re.I | re.S)
    )


def _expand_names(names: list[str]) -> list[str]:
    """Return files and directories, with prefixes replaced by the matching files."""
    result: list[str] = []
    for name in names:
        path = Path(name)
        inside = (
            [] if "\0" in name or path.exists() else _of_job(path.parent, path.name)
        )
        result += inside or [name]
    return result


def _of_job(directory: Path, job: str) -> list[str]:
    if not directory.is_dir():
        return []
    names = [p for p in directory.iterdir() if ".et" in p.name and p.is_file()]
    return sorted(
        (str(p) for p in names if _place(p.name)[0] == job.rstrip("._-")),
        key=natural,
    )


def _siblings(name: str) -> int:
    """Return the number of ranks by the files in the directory of a trace."""
    job, number = _place(Path(name).name)
    if number is None:
        return 0
    return (
        max(
            (_place(Path(n).name)[1] or 0 for n in _of_job(Path(name).parent, job)),
            default=0,
        )
        + 1
    )


def _place(name: str) -> tuple[str, int | None]:
    """Return the job and the rank in the name of a file."""
    match = _FILE.fullmatch(name)
    if match is None or len(match["rank"]) > 7:
        return name, None
    return match["job"], int(match["rank"])


def number_files(
    files: list[FileStream], recording: Recording
) -> Iterator[tuple[int, FileStream]]:
    """Return the files with the ranks in their names, otherwise numbered in order.

    Raises
    ------
    InputError
        Two files have the same rank.
    """
    places = [_place(re.split(r"[/\\]", part.name)[-1]) for part in files]
    numbers = [number for _, number in places]
    if None in numbers:
        if len(files) > 1:
            recording.assumed.append(
                "no ranks in the names of files: ranks are in the order of names"
            )
        return enumerate(files)
    if len(set(numbers)) < len(numbers):
        jobs = sorted({job for job, _ in places}, key=natural)
        listing = ", ".join(jobs[:8]) + (", ..." if len(jobs) > 8 else "")
        raise InputError(
            f"{recording.name}: traces of {len(jobs)} jobs; name the files or the prefix of one: {listing}"
            if len(jobs) > 1
            else f"{recording.name}: two traces of one rank; use one file per rank"
        )
    return zip((number or 0 for number in numbers), files, strict=True)


def _table(data: Any) -> dict[str, tuple[int, ...]] | None:
    """Return the ranks of each group in ASTRA-sim's format; None for other content."""
    if not isinstance(data, dict) or not data:
        return None
    result = {
        str(name): integers(ranks, MOST_RANKS - 1) for name, ranks in data.items()
    }
    groups = {
        name: tuple(dict.fromkeys(ranks)) for name, ranks in result.items() if ranks
    }
    return groups if len(groups) == len(result) else None


def _read_group_table(sorted_files: _Files, name: str) -> None:
    """Read the table of groups in the directory of the traces, if there is exactly one."""
    folder = Path(name).parent
    if "\0" in name or not folder.is_dir():
        return
    pattern = re.compile(r"comm[_-]?groups?.*\.json$", re.I)
    tables = [p for p in folder.iterdir() if p.is_file() and pattern.search(p.name)]
    if len(tables) == 1:
        _sort(sorted_files, next(streams(str(tables[0]), _is_trace_name)))
