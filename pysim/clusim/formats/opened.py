"""Opener of files of jobs, also compressed ones: logs and recordings."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, cast

from clusim.base.errors import InputError
from clusim.base.files import note_input

LINE_LIMIT = 1 << 20
"""Most bytes of a line."""

DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, tarfile.TarError)
"""Errors of damaged compressed data."""

_PACKERS = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open))


@contextmanager
def opened(name: str) -> Iterator[IO[bytes]]:
    """Open a file through its decompressor, if it has one.

    Raises
    ------
    InputError
        No file, or a compression that is not read.
    """
    path = Path(name)
    if "\0" in name:
        raise InputError(f"{name!r}: not a file name")
    if path.is_dir():
        raise InputError(f"{name}: is a directory; use the files in it")
    if not path.exists():
        raise InputError(f"{name}: no such file")
    note_input(path)
    try:
        raw = path.open("rb")
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}") from None
    with raw, closing(unpacked(raw, name)) as stream:
        yield stream


def unpacked(raw: IO[bytes], name: str) -> IO[bytes]:
    """Return a stream, decompressed if necessary; errors name the file."""
    peek = getattr(raw, "peek", None)
    magic = peek(6)[:6] if peek is not None else b""
    for start, unpack in _PACKERS:
        if magic.startswith(start):
            return cast(IO[bytes], unpack(raw))
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        raise InputError(f"{name}: is compressed with zstd; unpack it with `zstd -d {name}`")
    return raw
