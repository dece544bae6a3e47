"""Files of recordings: plain or compressed, directories, archives, with one-line errors.

Content is read in pieces, with limits; `FileStream` is a file, or a file in an archive.
"""

from __future__ import annotations

import codecs
import io
import mmap
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from clusim.base.errors import InputError
from clusim.base.limits import natural
from clusim.base.resources import or_shipped
from clusim.formats.opened import DAMAGED, LINE_LIMIT, open_file

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""Argument of readers: one path, or the paths of one job."""

MOST_BYTES = 1 << 29
"""Largest file that is read completely into memory, decompressed [bytes]."""

HEAD_BYTES = 1 << 16
"""Bytes read to detect a format."""

_STEP = 1 << 20
"""Bytes per read."""


@dataclass(frozen=True, slots=True)
class FileStream:
    """File, or file in an archive; `begin` reopens it, decompressed."""

    name: str
    begin: Callable[[], Iterator[bytes]]

    def head(self, size: int) -> bytes:
        """Return the first bytes."""
        result = b""
        for piece in self.begin():
            result += piece
            if len(result) >= size:
                break
        return result[:size]

    def read_all(self, limit: int = MOST_BYTES) -> bytes:
        """Return the complete content; raise `InputError` above `limit` bytes."""
        buffer = io.BytesIO()  # `getvalue` does not copy
        for piece in self.begin():
            if buffer.tell() + len(piece) > limit:
                raise InputError(
                    f"{self.name}: is larger than {limit >> 20} MiB; record fewer steps or cut the file"
                )
            buffer.write(piece)
        return buffer.getvalue()


def streams(paths: Paths, accepts: Callable[[str], bool]) -> Iterator[FileStream]:
    """Yield files, and `accepts` files of directories and tar archives, in natural order.

    ``.9.`` is before ``.10.``. Names that begin with a dot are skipped. Compressed files are unpacked while they are
    read; a compressed archive is unpacked completely, up to `MOST_BYTES`.
    """
    for name in names_of(paths):
        if Path(name).is_dir():
            inside = [
                str(p)
                for p in Path(name).iterdir()
                if p.is_file() and _keeps_file(p.name, accepts)
            ]
            for path in sorted(inside, key=natural):
                yield _file(path)
            if not inside:
                raise InputError(f"{name}: contains no file of this kind")
            continue
        file = _file(name)
        if file.head(512)[257:262] == b"ustar":
            yield from _archive(file, accepts)
        else:
            yield file


def _file(name: str) -> FileStream:
    return FileStream(name, partial(_pieces, name))


def _keeps_file(name: str, accepts: Callable[[str], bool]) -> bool:
    """Return True if a file of a directory or archive is read."""
    base = name.rsplit("/", 1)[-1]
    return not base.startswith(".") and accepts(base)


def _archive(
    file: FileStream, accepts: Callable[[str], bool]
) -> Iterator[FileStream]:
    """Yield the files of an archive: from disk if it is plain, from memory if compressed."""
    name = file.name
    with open_file(name) as stream:
        packed = None if isinstance(stream, io.BufferedReader) else file.read_all()

    def again() -> IO[bytes]:
        return Path(name).open("rb") if packed is None else io.BytesIO(packed)

    try:
        with again() as stream, tarfile.open(fileobj=stream) as archive:
            members = [
                m
                for m in archive.getmembers()
                if m.isfile() and _keeps_file(m.name, accepts)
            ]
            for member in sorted(members, key=lambda item: natural(item.name)):
                yield FileStream(
                    f"{name}:{member.name}", partial(_member, name, again, member)
                )
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise InputError(
            f"{name}: the archive is damaged ({error}); copy it again"
        ) from None
    if not members:
        raise InputError(f"{name}: the archive contains no file of this kind")


def _member(
    name: str, again: Callable[[], IO[bytes]], member: tarfile.TarInfo
) -> Iterator[bytes]:
    with again() as stream:
        stream.seek(member.offset_data)
        remaining = member.size
        while remaining > 0 and (data := stream.read(min(_STEP, remaining))):
            remaining -= len(data)
            yield data
    if remaining > 0:
        raise InputError(
            f"{name}: the archive ends inside {member.name}; copy it again"
        )


def names_of(paths: Paths) -> list[str]:
    """Return the paths as a list of strings; raise `InputError` if it is empty.

    Names of shipped recordings become their paths.
    """
    if isinstance(paths, (str, os.PathLike)):
        return [or_shipped(os.fspath(paths))]
    result = [or_shipped(os.fspath(path)) for path in paths]
    if not result:
        raise InputError("no file given; name the files of the recording")
    return result


def _parts(name: str, part: Callable[[IO[bytes]], bytes]) -> Iterator[bytes]:
    """Yield parts of a file, decompressed; damaged data raise an exception of `DAMAGED`."""
    with open_file(name) as stream:
        try:
            while data := part(stream):
                yield data
        except DAMAGED:
            raise
        except OSError as error:
            raise InputError(f"{name}: {error.strerror or error}") from None


def _pieces(name: str) -> Iterator[bytes]:
    """Yield a file, decompressed; raise `InputError` if it is missing, empty or damaged."""
    size = 0
    try:
        for data in _parts(name, lambda stream: stream.read(_STEP)):
            size += len(data)
            yield data
    except DAMAGED as error:
        raise InputError(
            f"{name}: the compressed data are damaged or cut after {size / 1e6:.1f} MB ({error}); copy the file again"
        ) from None
    if not size:
        raise InputError(f"{name}: is empty")


def head(name: str, size: int = HEAD_BYTES) -> bytes:
    """Return the first bytes of a file, decompressed; fewer if the compressed data end early."""
    result = b""
    try:
        for data in _parts(name, lambda stream: stream.read(1 << 12)):
            result += data
            if len(result) >= size:
                break
    except DAMAGED as error:
        if not result:
            raise InputError(
                f"{name}: the compressed data are damaged from the start ({error})"
            ) from None
    return result[:size]


def map_file(name: str) -> memoryview:
    """Return the content of a binary file, mapped into memory or decompressed.

    Raises
    ------
    InputError
        The file is missing, empty or damaged, or compressed and larger than `MOST_BYTES`.
    """
    with open_file(name) as stream:
        if isinstance(stream, io.BufferedReader) and Path(name).stat().st_size:
            try:
                return memoryview(
                    mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
                )
            except (OSError, ValueError):
                pass  # not mappable, such as a pipe
    return memoryview(_file(name).read_all())


def only_file(paths: Paths, noun: str) -> str:
    """Return the file of a format with one file per job; raise `InputError` for several."""
    names = names_of(paths)
    if len(names) != 1:
        raise InputError(f"{names[1]}: {noun} is one file; use only {names[0]}")
    return names[0]


def lines(name: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of every line.

    Raises
    ------
    InputError
        The file is missing, empty, damaged or binary, or has a line above `LINE_LIMIT`.
    """
    result = 0
    try:
        for line in _parts(name, lambda stream: stream.readline(LINE_LIMIT + 1)):
            result += 1
            line = line.removeprefix(codecs.BOM_UTF8) if result == 1 else line
            if len(line) > LINE_LIMIT:
                raise InputError(
                    f"{name}:{result}: a line of more than {LINE_LIMIT >> 20} MiB"
                )
            if b"\0" in line:
                raise InputError(f"{name}:{result}: binary data; expected text")
            yield result, line.decode("utf-8", "replace").strip("\r\n")
    except DAMAGED as error:
        raise InputError(
            f"{name}:{result}: the compressed data are damaged or cut ({error}); copy the file again"
        ) from None
    if not result:
        raise InputError(f"{name}: is empty")
