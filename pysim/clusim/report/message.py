"""Columns as one block of bytes that a browser reads without parsing numbers.

Four bytes give the length of a JSON header; then the header; then the columns it lists, each aligned to
eight bytes. All is little-endian. The page of a report carries such messages compressed, `clusim view`
serves the same messages.
"""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

ALIGN = 8

TYPES = {"uint8": "u1", "uint16": "<u2", "uint32": "<u4", "int32": "<i4", "float64": "<f8"}
"""Column types with a JavaScript array type.

64-bit integers are sent as float64, exact to 2^53.
"""


def pack(header: dict[str, Any], columns: dict[str, Array]) -> bytes:
    """Return the message with `header` and `columns`."""
    blocks, table, offset = [], [], 0
    for name, values in columns.items():
        kind = values.dtype.name
        if kind not in TYPES:
            kind = "float64"
        data = np.ascontiguousarray(values, TYPES[kind]).tobytes()
        table.append({"name": name, "type": kind, "offset": offset, "count": values.size})
        data += bytes(-len(data) % ALIGN)
        blocks.append(data)
        offset += len(data)
    text = json.dumps({**header, "columns": table}, separators=(",", ":"), allow_nan=False)
    head = text.encode()
    head += b" " * (-(4 + len(head)) % ALIGN)
    return b"".join([len(head).to_bytes(4, "little"), head, *blocks])


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return the argument of `pack`; columns are flat."""
    start = 4 + int.from_bytes(data[:4], "little")
    header: dict[str, Any] = json.loads(data[4:start])
    columns = {
        row["name"]: np.frombuffer(data, TYPES[row["type"]], row["count"], start + row["offset"])
        for row in header.pop("columns")
    }
    return header, columns


def embed(data: bytes) -> str:
    """Return a message as text for a page: compressed, then base64."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()
