"""Permitted structure of a trace, checked before data are read or memory is allocated.

A trace may have any origin. HDF5 can refer to other files, declare a terabyte without stored bytes, and decompress
small chunks into large ones; traces have no such content.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from clusim.base.errors import TraceError
from clusim.results.trace.layout import CHUNK_BYTES

MEMORY_BYTES = 768 << 20
"""Memory limit of all columns of a trace except completed slices [bytes]..."""

MEMORY_FACTOR = 8
"""... or this multiple of the file size, if that is more."""

_SLICES = "/primitives/"
_MOST_OBJECTS = 4096
_MOST_DEPTH = 4
_MOST_NAME_BYTES = 256
_PACKING = 1100
"""Limit of the compression ratio: Deflate reaches at most 1032."""

_SMALL_BYTES = 1 << 16
_TEXT_COST_BYTES = 64
"""Memory overhead of a text, without its characters [bytes]."""

_KINDS = (h5py.h5t.TypeIntegerID, h5py.h5t.TypeFloatID, h5py.h5t.TypeCompoundID)
_FILTERS = (
    h5py.h5z.FILTER_DEFLATE,
    h5py.h5z.FILTER_SHUFFLE,
    h5py.h5z.FILTER_FLETCHER32,
)


@dataclass(frozen=True, slots=True)
class Opened:
    """Trace open for reading, with a checked structure.

    Attributes
    ----------
    filename : str
        Its name in errors.
    items : dict
        Handles of columns and groups by full name: most are never used, and creating a `h5py.Dataset` for each costs
        as much as its check.
    forms : dict
        Shape and dtype of columns by full name: a query of HDF5 costs more than reading a short column.
    """

    filename: str
    items: dict[str, Any]
    forms: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]

    def __contains__(self, name: object) -> bool:
        """Return True if there is such a column or group."""
        return name in self.items

    def _item(self, name: str) -> Any:
        """Return the handle of a column or group; raises `TraceError` if it is missing."""
        if name not in self.items:
            raise TraceError(f"{self.filename}: no {name}; is the file complete?")
        return self.items[name]

    def _form(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of a column; raises `TraceError` if it is missing."""
        if name not in self.forms:
            raise TraceError(
                f"{self.filename}: no column {name}; is the file complete?"
            )
        return self.forms[name]

    def __getitem__(self, name: str) -> Any:
        """Return a column or group; raises `TraceError` if it is missing."""
        item = self._item(name)
        return (
            h5py.Dataset(item)
            if isinstance(item, h5py.h5d.DatasetID)
            else h5py.Group(item)
        )

    def values(self, name: str) -> np.ndarray[Any, Any]:
        """Return all values of a column unchecked; see `clusim.results.trace.rules.read`."""
        result = np.empty(*self._form(name))
        if result.size:
            self.items[name].read(h5py.h5s.ALL, h5py.h5s.ALL, result)
        return result

    def attribute(self, group: str, name: str) -> Any:
        """Return the handle of an attribute of a column or group, None if it is missing."""
        item, key = self._item(group), name.encode()
        return h5py.h5a.open(item, key) if h5py.h5a.exists(item, key) else None

    def columns(self, group: str) -> list[str]:
        """Return the names of the columns in a group and its subgroups, without the group's name."""
        return [
            name.removeprefix(f"{group}/")
            for name in self.forms
            if name.startswith(f"{group}/")
        ]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a column, empty for a group; raises `TraceError` if it is missing."""
        self._item(name)
        return self.forms[name][0] if name in self.forms else ()

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of a column; raises `TraceError` if it is missing."""
        return self._form(name)[1]


def check_structure(file: Any, path: Path) -> Opened:
    """Return the content of an open file.

    Raises
    ------
    TraceError
        The file has links to other places, or disproportionate sizes.
    """
    allowed = max(MEMORY_BYTES, MEMORY_FACTOR * os.path.getsize(path))
    if file.userblock_size:
        raise TraceError(
            f"{path}: begins with a block that is not of HDF5, as in no trace"
        )
    needed = 0
    root = h5py.h5g.open(file.id, b"/")
    result: dict[str, Any] = {"/": root}
    forms: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    pending: list[tuple[str, Any, int]] = [("", root, 0)]
    while pending:
        where, group, depth = pending.pop()
        for key, link in _links(group):
            below = f"{where}/{key.decode(errors='surrogateescape')}"
            if len(result) > _MOST_OBJECTS or len(below) > _MOST_NAME_BYTES:
                raise TraceError(
                    f"{path}: more than {_MOST_OBJECTS} columns, or too long a name"
                )
            if link != h5py.h5l.TYPE_HARD:
                raise TraceError(
                    f"{path}: {below}: points to somewhere else; a trace holds its data"
                )
            item = result[below] = h5py.h5o.open(group, key)
            if isinstance(item, h5py.h5d.DatasetID):
                kind, shape = item.get_type(), item.shape
                size = _checked_bytes(item, kind, shape, f"{path}: {below}")
                forms[below] = shape, dtype_of(kind)
                needed += 0 if below.startswith(_SLICES) else size
            elif isinstance(item, h5py.h5g.GroupID) and depth < _MOST_DEPTH:
                pending.append((below, item, depth + 1))
            else:
                raise TraceError(
                    f"{path}: {below}: must be a column or a group of columns"
                )
    if needed > allowed:
        raise TraceError(
            f"{path}: its columns would need {needed >> 20} MiB of memory; at most {allowed >> 20} MiB for a file of"
            " this size"
        )
    return Opened(str(path), result, forms)


def dtype_of(kind: Any) -> np.dtype[Any]:
    """Return the type of values of a type of HDF5."""
    return _decode_dtype(kind.encode())


@lru_cache(256)  # a trace has a few types and hundreds of columns
def _decode_dtype(kind: bytes) -> np.dtype[Any]:
    """Return the type of an encoded type of HDF5."""
    return h5py.h5t.decode(kind).dtype  # type: ignore[no-any-return]


def _links(group: Any) -> list[tuple[bytes, int]]:
    """Return names and link types of a group's members, up to one more than a trace may have."""
    result: list[tuple[bytes, int]] = []

    def look(name: bytes, link: Any) -> bool | None:
        result.append((name, link.type))
        return True if len(result) > _MOST_OBJECTS else None

    group.links.iterate(look, info=True)
    return result


def _checked_bytes(column: Any, kind: Any, shape: Any, where: str) -> int:
    """Return the memory that a column needs [bytes]; raises `TraceError` if not permitted."""
    text = isinstance(kind, h5py.h5t.TypeStringID)
    if text:
        if kind.is_variable_str():
            raise TraceError(
                f"{where}: texts of any length; a trace has texts of one width"
            )
    elif not isinstance(kind, _KINDS):
        raise TraceError(f"{where}: values must be numbers or texts")
    if shape is None or len(shape) > 2:
        dimensions = "no value" if shape is None else f"{len(shape)} dimensions"
        raise TraceError(f"{where}: {dimensions}; at most 2")
    _check_storage(column, shape, int(kind.get_size()), where)
    bytes_each = int(kind.get_size()) + (_TEXT_COST_BYTES if text else 0)
    return math.prod(map(int, shape)) * bytes_each


def _check_storage(
    column: Any, shape: tuple[int, ...], bytes_each: int, where: str
) -> None:
    """Check how the values of a column lie in the file."""
    plist, layout = None, h5py.h5d.CONTIGUOUS
    if (
        column.get_offset() is None
    ):  # values that do not lie in one piece, in this file
        plist = column.get_create_plist()
        layout = plist.get_layout()
        if layout not in (
            h5py.h5d.COMPACT,
            h5py.h5d.CONTIGUOUS,
            h5py.h5d.CHUNKED,
        ) or (layout == h5py.h5d.CONTIGUOUS and plist.get_external_count()):
            raise TraceError(
                f"{where}: its values lie in another file; a trace holds its data"
            )
    if math.prod(shape) * bytes_each > max(
        _SMALL_BYTES, _PACKING * column.get_storage_size()
    ):
        raise TraceError(f"{where}: {shape} values, which the file is too small for")
    if plist is None or layout != h5py.h5d.CHUNKED:
        return
    filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    if len(set(filters)) < len(filters) or not set(filters) <= set(_FILTERS):
        raise TraceError(f"{where}: packed in another way than traces are")
    chunk_bytes = bytes_each * math.prod(plist.get_chunk())
    if chunk_bytes > CHUNK_BYTES:
        raise TraceError(
            f"{where}: chunks of {chunk_bytes >> 20} MiB; at most {CHUNK_BYTES >> 20} MiB"
        )
    large = [0]

    def look(chunk: Any) -> None:
        large[0] = max(large[0], int(chunk.size))

    column.chunk_iter(look)
    if large[0] > chunk_bytes + chunk_bytes // 8 + 1024:
        raise TraceError(
            f"{where}: a chunk with more bytes in the file than it has in memory"
        )
