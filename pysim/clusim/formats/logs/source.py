"""Log files as blocks of complete lines, of at most two MiB.

Files are plain, gzip, bzip2 or xz, or standard input.

Damage is reported to the caller as a sentence, and the file is read up to it.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, cast

from clusim.base.errors import InputError
from clusim.base.files import note_input

BLOCK_BYTES = 1 << 20
"""Block size of reads [B]."""

LINE_LIMIT = 1 << 20
"""Maximum length of a line [B]; the rest of a longer line is skipped."""

STDIN = "-"
"""The name that means standard input."""

_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
_ZSTD = b"\x28\xb5\x2f\xfd"


@contextmanager
def _open(name: str) -> Iterator[IO[bytes]]:
    """Open a log by name, through its decompressor where it has one."""
    note_input(name)
    if name == STDIN:
        yield _decompressed(sys.stdin.buffer, "standard input")
        return
    path = Path(name)
    if path.is_dir():
        raise InputError(f"{name}: is a directory; use the log files in it, e.g. {name}/*.log")
    if not path.exists():
        raise InputError(f"{name}: no such file")
    try:
        raw = path.open("rb")
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}") from None
    with raw, closing(_decompressed(raw, name)) as stream:
        yield stream


def _decompressed(raw: IO[bytes], name: str) -> IO[bytes]:
    peek = getattr(raw, "peek", None)
    magic = peek(6)[:6] if peek is not None else b""
    if magic[:2] == b"\x1f\x8b":
        return cast(IO[bytes], gzip.GzipFile(fileobj=raw))
    if magic[:3] == b"BZh":
        return cast(IO[bytes], bz2.BZ2File(raw))
    if magic == b"\xfd7zXZ\x00":
        return cast(IO[bytes], lzma.LZMAFile(raw))
    if magic[:4] == _ZSTD:
        raise InputError(f"{name}: is compressed with zstd; run `zstd -dc {name} | clusim ... -`")
    return raw


def _read(stream: IO[bytes], report: Callable[[str], None], done: int) -> bytes:
    """Return the next bytes of a log, empty at its end or where it is damaged."""
    some = getattr(stream, "read1", stream.read)
    parts: list[bytes] = []
    size = 0
    while size < BLOCK_BYTES:
        try:
            part = some(BLOCK_BYTES - size)
        except _DAMAGED as error:
            report(f"the compressed data are damaged or cut {_after(done + size)} ({error})")
            break
        except OSError as error:
            report(f"cannot be read {_after(done + size)} ({error.strerror or error})")
            break
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _plain(data: bytes) -> bytes:
    """Replace every kind of line end by a newline, also carriage returns of progress bars."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b" \n").replace(b"\r", b"\n")
    return data


def blocks(name: str, report: Callable[[str], None]) -> Iterator[bytes]:
    """Yield the lines of the log `name`, some at a time; the last always ends with a newline.

    Parameters
    ----------
    name : str
        A path, or ``-`` for standard input.
    report : callable
        Called with one sentence for each error in the file.

    Raises
    ------
    InputError
        If the file does not exist or cannot be opened.
    """
    done, carry, skipping = 0, b"", False
    with _open(name) as stream:
        while data := _read(stream, report, done):
            done += len(data)
            if data.endswith(b"\r"):  # possibly the first half of a line end
                data += stream.read(1)
            data = _plain(data)
            if skipping:
                end = data.find(b"\n")
                if end < 0:
                    continue
                data, skipping = data[end + 1 :], False
            cut = data.rfind(b"\n") + 1
            if cut:
                yield carry + data[:cut]
                carry = data[cut:]
            else:
                carry += data
            if len(carry) > LINE_LIMIT:
                report(
                    f"a line is longer than {LINE_LIMIT >> 20} MiB, {_after(done)}; only its start is read"
                )
                yield carry[:LINE_LIMIT] + b"\n"
                carry, skipping = b"", True
    if carry:
        yield carry + b"\n"


def _after(done: int) -> str:
    return f"after {done / 1e6:.1f} MB"
