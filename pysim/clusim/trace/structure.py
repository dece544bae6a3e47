"""What a trace may consist of, checked when it is opened: nothing in it is read, and little is allocated, before.

A trace may come from anybody. HDF5 can point into other files, declare a terabyte that no byte stands for, and
unpack small chunks into large ones; traces do none of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py

from clusim.errors import TraceError

__all__ = ["MEMORY_BYTES", "Opened", "check_structure"]

MEMORY_BYTES = 768 << 20
"""Most that all columns of a trace but those of completed slices may take in memory [bytes]..."""

MEMORY_FACTOR = 8
"""... or so many times the size of the file, if that is more."""

_SLICES = "/primitives/"
_MOST_OBJECTS = 4096
_MOST_DEPTH = 4
_MOST_NAME_BYTES = 256
_CHUNK_BYTES = 4 << 20
_PACKING = 1100
"""Deflate makes data at most 1032 times smaller."""

_SMALL_BYTES = 1 << 16
_TEXT_COST_BYTES = 64
"""What a text takes in memory beyond its letters [bytes]."""

_KINDS = (h5py.h5t.TypeIntegerID, h5py.h5t.TypeFloatID, h5py.h5t.TypeCompoundID)
_FILTERS = (h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32)


@dataclass(frozen=True, slots=True)
class Opened:
    """A trace open for reading, whose structure is that of one.

    Attributes
    ----------
    filename : str
        Its name in errors.
    items : dict
        Columns and groups by their full names, as h5py has them.
    """

    filename: str
    items: dict[str, Any]

    def __contains__(self, name: object) -> bool:
        """Return whether there is such a column or group."""
        return name in self.items

    def __getitem__(self, name: str) -> Any:
        """Return a column or group; raises `TraceError` if there is none."""
        if name not in self.items:
            raise TraceError(f"{self.filename}: has no {name}; is the file whole?")
        return self.items[name]

    def columns(self, group: str) -> list[str]:
        """Return the names of the columns in a group and below it, without the group's own name."""
        return [
            name.removeprefix(f"{group}/")
            for name, item in self.items.items()
            if name.startswith(f"{group}/") and isinstance(item, h5py.Dataset)
        ]


def check_structure(file: Any, path: Path) -> Opened:
    """Return what is in an open file.

    Raises
    ------
    TraceError
        It has what no trace has: links elsewhere, sizes out of all proportion.
    """
    allowed = max(MEMORY_BYTES, MEMORY_FACTOR * os.path.getsize(path))
    needed = 0
    found: dict[str, Any] = {"/": file}
    pending: list[tuple[str, Any, int]] = [("", file, 0)]
    while pending:
        where, group, depth = pending.pop()
        for name in group:
            below = f"{where}/{name}"
            if len(found) > _MOST_OBJECTS or len(below) > _MOST_NAME_BYTES:
                raise TraceError(f"{path}: more than {_MOST_OBJECTS} columns, or too long a name")
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise TraceError(
                    f"{path}: {below}: points to somewhere else; a trace holds its data"
                )
            item = found[below] = group[name]
            if isinstance(item, h5py.Dataset):
                size = _checked_bytes(item, f"{path}: {below}")
                needed += 0 if below.startswith(_SLICES) else size
            elif isinstance(item, h5py.Group) and depth < _MOST_DEPTH:
                pending.append((below, item, depth + 1))
            else:
                raise TraceError(f"{path}: {below}: neither a column nor a group of columns")
    if needed > allowed:
        raise TraceError(
            f"{path}: its columns would take {needed >> 20} MiB of memory; at most {allowed >> 20} MiB for a file of"
            " this size"
        )
    return Opened(str(path), found)


def _checked_bytes(column: Any, where: str) -> int:
    """Return the memory a column takes [bytes]; raises `TraceError` if it is none that a trace has."""
    kind = column.id.get_type()
    if isinstance(kind, h5py.h5t.TypeStringID):
        if kind.is_variable_str():
            raise TraceError(f"{where}: texts of any length; a trace has texts of one width")
    elif not isinstance(kind, _KINDS):
        raise TraceError(f"{where}: values that are neither numbers nor texts")
    if column.ndim > 2:
        raise TraceError(f"{where}: {column.ndim} dimensions; at most 2")
    _check_storage(column, where)
    text = isinstance(kind, h5py.h5t.TypeStringID)
    return int(column.size) * int(kind.get_size() + (_TEXT_COST_BYTES if text else 0))


def _check_storage(column: Any, where: str) -> None:
    """Check how the values of a column lie in the file."""
    plist = column.id.get_create_plist()
    layout = plist.get_layout()
    if layout not in (h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED) or (
        layout == h5py.h5d.CONTIGUOUS and plist.get_external_count()
    ):
        raise TraceError(f"{where}: its values lie in another file; a trace holds its data")
    if column.size * column.id.get_type().get_size() > max(
        _SMALL_BYTES, _PACKING * column.id.get_storage_size()
    ):
        raise TraceError(f"{where}: {column.shape} values, which the file is too small for")
    if layout != h5py.h5d.CHUNKED:
        return
    filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    if len(set(filters)) < len(filters) or not set(filters) <= set(_FILTERS):
        raise TraceError(f"{where}: packed in another way than traces are")
    bytes_each = column.id.get_type().get_size()
    for length in column.chunks:
        bytes_each *= int(length)
    if bytes_each > _CHUNK_BYTES:
        raise TraceError(
            f"{where}: chunks of {bytes_each >> 20} MiB; at most {_CHUNK_BYTES >> 20} MiB"
        )
    large = [0]

    def look(chunk: Any) -> None:
        large[0] = max(large[0], int(chunk.size))

    column.id.chunk_iter(look)
    if large[0] > bytes_each + bytes_each // 8 + 1024:
        raise TraceError(f"{where}: a chunk with more bytes in the file than it has in memory")
