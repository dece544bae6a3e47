"""Opener of files of jobs, also compressed ones: logs and recordings.

Two megabytes of gzip can be two gigabytes of lines. Compressed files are therefore read up to a ratio of expansion,
unless the environment variable `TRUST` is set (``clusim --trust``).
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, cast

from clusim.base.errors import InputError, suggest
from clusim.base.files import note_input
from clusim.base.resources import or_shipped, shipped_recordings

LINE_LIMIT = 1 << 20
"""Most bytes of a line."""

DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, tarfile.TarError)
"""Errors of damaged compressed data."""

TRUST = "CLUSIM_TRUST"
"""Environment variable that disables the limit of expansion."""

MOST_EXPANSION = 100
"""Largest ratio of decompressed to compressed bytes, after `FREE_BYTES`; logs of NCCL have 10 to 40."""

FREE_BYTES = 64 << 20
"""Decompressed bytes without a limit [bytes]."""

_STEP = 1 << 20
"""Bytes per read of a complete file."""

_PACKERS: tuple[tuple[bytes, Callable[[Any], Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
)


@contextmanager
def open_file(name: str) -> Iterator[IO[bytes]]:
    """Open a file through its decompressor, if it has one.

    Raises
    ------
    InputError
        No file, or a compression that is not read.
    """
    if "\0" in name:
        raise InputError(f"{name!r}: not a file name")
    path = Path(or_shipped(name))
    if path.is_dir():
        raise InputError(f"{name}: is a directory; use the files in it")
    if not path.exists():
        likely = "" if os.sep in name else suggest(name, shipped_recordings())
        raise InputError(
            f"{name}: no such file{likely if 'did you mean' in likely else ''}"
        )
    note_input(path)
    try:
        raw = path.open("rb")
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}") from None
    with raw, closing(unpack_stream(raw, name)) as stream:
        yield stream


def unpack_stream(raw: IO[bytes], name: str) -> IO[bytes]:
    """Return a stream, decompressed if necessary; errors name the file."""
    peek = getattr(raw, "peek", None)
    magic = peek(6)[:6] if peek is not None else b""
    for start, unpack in _PACKERS:
        if magic.startswith(start):
            counted = _CountedInput(raw)
            return cast(IO[bytes], _BoundedStream(unpack(counted), counted, name))
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        raise InputError(
            f"{name}: is compressed with zstd; unpack it with `zstd -d {name}`"
        )
    return raw


class _CountedInput(io.RawIOBase):
    """Compressed input that counts its bytes; pipes lack a position."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.size = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; return the number of bytes."""
        data = self._raw.read(len(buffer))
        buffer[: len(data)] = data
        self.size += len(data)
        return len(data)


class _BoundedStream:
    """Decompressed data, which raise `InputError` above the limit of expansion."""

    def __init__(self, stream: IO[bytes], source: _CountedInput, name: str) -> None:
        self._stream, self._source, self._name = stream, source, name
        self._trusted = bool(os.environ.get(TRUST))
        self.close = stream.close

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; all for a negative size."""
        if size < 0:
            return b"".join(iter(lambda: self.read(_STEP), b""))
        return self._check_size(self._stream.read(size))

    def read1(self, size: int) -> bytes:
        """Return bytes that are available, at most `size`."""
        some: Callable[[int], bytes] = getattr(
            self._stream, "read1", self._stream.read
        )
        return self._check_size(some(size))

    def readline(self, size: int = -1) -> bytes:
        """Return the next line."""
        return self._check_size(self._stream.readline(size))

    def _check_size(self, data: bytes) -> bytes:
        position = self._stream.tell()
        if (
            position > FREE_BYTES + MOST_EXPANSION * self._source.size
            and not self._trusted
        ):
            raise InputError(
                f"{self._name}: expands to more than {MOST_EXPANSION} times its size; if you trust its origin, "
                f"use `clusim --trust ...` (or set {TRUST}=1), or unpack it first"
            )
        return data
