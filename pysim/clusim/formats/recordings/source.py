"""Files of recordings: plain or compressed, directories, archives, with one-line errors."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import mmap
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import IO, Any, cast

from clusim.base.errors import InputError
from clusim.base.files import note_input

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""Argument of readers: one path, or the paths of one job."""

MOST_BYTES = 1 << 29
"""Largest file that is read completely into memory, decompressed [bytes]."""

LINE_LIMIT = 1 << 20
"""Longest line of a text format [bytes]."""

HEAD_BYTES = 1 << 16
"""Bytes read to detect a format."""

DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, tarfile.TarError)
_STEP = 1 << 22


def names_of(paths: Paths) -> list[str]:
    """Return the paths as a list of strings; raise `InputError` if it is empty."""
    if isinstance(paths, (str, os.PathLike)):
        return [os.fspath(paths)]
    result = [os.fspath(path) for path in paths]
    if not result:
        raise InputError("no file given; name the files of the recording")
    return result


def opened(name: str) -> IO[bytes]:
    """Open a file, decompressed if necessary."""
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
        magic = raw.peek(6)[:6]
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}") from None
    packers = (
        (b"\x1f\x8b", gzip.GzipFile),
        (b"BZh", bz2.BZ2File),
        (b"\xfd7zXZ\x00", lzma.LZMAFile),
    )
    for start, unpack in packers:
        if magic.startswith(start):
            raw.close()  # a decompressor closes only files that it opened by name
            return cast(IO[bytes], unpack(name))
    if magic[:4] == b"\x28\xb5\x2f\xfd":
        raw.close()
        raise InputError(f"{name}: is compressed with zstd; unpack it with `zstd -d {name}`")
    return raw


def head(name: str, size: int = HEAD_BYTES) -> bytes:
    """Return the first bytes of a file, decompressed; fewer if the compressed data end early."""
    with opened(name) as stream:
        result = b""
        try:
            while len(result) < size:
                data = stream.read(min(size - len(result), 1 << 12))
                if not data:
                    break
                result += data
        except DAMAGED as error:
            if not result:
                raise InputError(
                    f"{name}: the compressed data are damaged from the start ({error})"
                ) from None
        except OSError as error:
            raise InputError(f"{name}: {error.strerror or error}") from None
    return result


def read_bytes(name: str, cut: Callable[[str], None] | None = None) -> bytes:
    """Return the complete content of a file, decompressed.

    Parameters
    ----------
    cut : callable, optional
        Receives a message if compressed data end early; the data so far are returned. Without it that is an error.

    Raises
    ------
    InputError
        The file is missing, empty, damaged, or larger than `MOST_BYTES`.
    """
    held = io.BytesIO()  # `getvalue` does not copy
    size = 0
    with opened(name) as stream:
        try:
            while data := stream.read(_STEP):
                held.write(data)
                size += len(data)
                if size > MOST_BYTES:
                    raise InputError(
                        f"{name}: is larger than {MOST_BYTES >> 20} MiB; record fewer steps or cut the file"
                    )
        except DAMAGED as error:
            message = f"the compressed data are damaged or cut after {size / 1e6:.1f} MB ({error})"
            if cut is None or not size:
                raise InputError(f"{name}: {message}; copy the file again") from None
            cut(message)
        except OSError as error:
            raise InputError(f"{name}: {error.strerror or error}") from None
    if not size:
        raise InputError(f"{name}: is empty")
    return held.getvalue()


def mapped(name: str) -> memoryview:
    """Return the content of a binary file, mapped into memory or decompressed.

    Raises
    ------
    InputError
        The file is missing, empty or damaged, or compressed and larger than `MOST_BYTES`.
    """
    with opened(name) as stream:
        if isinstance(stream, io.BufferedReader) and Path(name).stat().st_size:
            try:
                return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
            except (OSError, ValueError):
                pass  # not mappable, such as a pipe
    return memoryview(read_bytes(name))


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts ``.10.`` after ``.9.``."""
    result: list[tuple[int, int, str]] = []
    text, digits = "", ""
    for letter in name + "\0":
        if letter.isdecimal() and letter.isascii():
            digits += letter
            continue
        if digits:
            result += [(0, 0, text), (1, int(digits[:18]), "")]
            text, digits = "", ""
        text += letter
    return (*result, (0, 0, text))


def kept(name: str, wanted: Callable[[str], bool]) -> bool:
    """Return True if a file of a directory or archive is read."""
    base = name.rsplit("/", 1)[-1]
    return not base.startswith(".") and wanted(base)


def lines(name: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of every line.

    Raises
    ------
    InputError
        The file is missing, empty, damaged or binary, or has a line above `LINE_LIMIT`.
    """
    result = 0
    with opened(name) as stream:
        try:
            while line := stream.readline(LINE_LIMIT + 1):
                result += 1
                line = line.removeprefix(codecs.BOM_UTF8) if result == 1 else line
                if len(line) > LINE_LIMIT:
                    raise InputError(f"{name}:{result}: a line of more than {LINE_LIMIT >> 20} MiB")
                if b"\0" in line:
                    raise InputError(f"{name}:{result}: binary data; expected text")
                yield result, line.decode("utf-8", "replace").strip("\r\n")
        except DAMAGED as error:
            raise InputError(
                f"{name}:{result}: the compressed data are damaged or cut ({error}); copy the file again"
            ) from None
        except OSError as error:
            raise InputError(f"{name}: {error.strerror or error}") from None
    if not result:
        raise InputError(f"{name}: is empty")


def exact_float(text: str) -> float | Decimal:
    """Return a JSON number, exact beyond double precision, as in times since 1970."""
    return float(text) if len(text) < 16 else Decimal(text)


def number(value: Any) -> float | None:
    """Return a finite number; None for other values."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if isfinite(result) else None


def integer(value: Any, most: int = 1 << 62) -> int | None:
    """Return an integer from 0 to `most`, also of a string of digits; None for other values."""
    if type(value) is int:  # excludes bool
        return value if 0 <= value <= most else None
    if isinstance(value, str) and len(value) < 20 and value.isdecimal() and value.isascii():
        value = int(value)
    result = number(value)
    if result is None or result < 0 or result > most or result != int(result):
        return None
    return int(value)


def time_ps(value: Any, unit_ps: int) -> int | None:
    """Return a time in `unit_ps` as integer picoseconds; None if invalid or too large."""
    result = number(value)
    if result is None or not 0 <= result < (1 << 80) / unit_ps:
        return None
    return int(value * unit_ps) if isinstance(value, (int, Decimal)) else round(result * unit_ps)
