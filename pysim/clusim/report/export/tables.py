"""Tables of a trace as CSV, or as Parquet if pyarrow is installed.

They are written in parts, so that any size fits into memory.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InputError
from clusim.base.files import replacing, text_of
from clusim.base.files import write_csv as write_rows
from clusim.results.trace.tables import iterate_table


def write_csv(path: str | Path, table: str, target: Path) -> int:
    """Write a table with a line of names and return the number of its rows."""
    rows, named = 0, False
    with replacing(target, [path]) as file, text_of(file) as out:
        for piece in iterate_table(path, table):
            if not named:
                write_rows(out, [piece])
                named = True
            write_rows(
                out,
                zip(*(column.tolist() for column in piece.values()), strict=True),
            )
            rows += _length(piece)
    return rows


def write_parquet(path: str | Path, table: str, target: Path) -> int:
    """Write a table and return the number of its rows; needs pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            "parquet: needs pyarrow; pip install pyarrow, or use --format csv"
        ) from None
    rows = 0
    with replacing(target, [path]) as out, ExitStack() as stack:
        writer = None
        for piece in iterate_table(path, table):
            block = pyarrow.table(
                {
                    n: c.tolist() if c.dtype == np.dtype(object) else c
                    for n, c in piece.items()
                }
            )
            if writer is None:
                writer = parquet.ParquetWriter(out, block.schema, compression="zstd")
                stack.enter_context(writer)
            writer.write_table(block)
            rows += _length(piece)
    return rows


def _length(piece: dict[str, Array]) -> int:
    return len(next(iter(piece.values())))
