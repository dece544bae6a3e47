"""Files of recordings as streams: what is in a file, a directory or an archive, in pieces and not whole."""

from __future__ import annotations

import codecs
import io
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from clusim.base.errors import InputError
from clusim.formats.recordings.source import (
    DAMAGED,
    Paths,
    kept,
    names_of,
    natural,
    opened,
    read_bytes,
)

STEP = 1 << 20
"""Bytes that are read at a time."""


@dataclass(frozen=True, slots=True)
class FileStream:
    """A file, or a file in an archive; `begin` opens it anew, decompressed."""

    name: str
    begin: Callable[[], Iterator[bytes]]

    def head(self, size: int = STEP) -> bytes:
        """Return the first bytes."""
        found = b""
        for piece in self.begin():
            found += piece
            if len(found) >= size:
                break
        return found[:size]

    def whole(self, most: int) -> bytes:
        """Return all of it; raises `InputError` if that is more than `most` bytes."""
        held = io.BytesIO()
        for piece in self.begin():
            if held.tell() + len(piece) > most:
                raise InputError(
                    f"{self.name}: is larger than {most >> 20} MiB; record fewer steps or cut the file"
                )
            held.write(piece)
        return held.getvalue()


def streams(paths: Paths, wanted: Callable[[str], bool]) -> Iterator[FileStream]:
    """Yield files, and those in directories and tar archives that are `wanted` by name, ``.9.`` before ``.10.``.

    Names that begin with a dot are left out. What is compressed is unpacked on the way; of a compressed archive the
    whole, up to `MOST_BYTES`.
    """
    for name in names_of(paths):
        if Path(name).is_dir():
            inside = [str(p) for p in Path(name).iterdir() if p.is_file() and kept(p.name, wanted)]
            for path in sorted(inside, key=natural):
                yield _file(path)
            if not inside:
                raise InputError(f"{name}: has no file of this kind in it")
            continue
        file = _file(name)
        if file.head(512)[257:262] == b"ustar":
            yield from _archive(name, wanted)
        else:
            yield file


def _file(name: str) -> FileStream:
    return FileStream(name, lambda: _pieces(name))


def _pieces(name: str) -> Iterator[bytes]:
    """Yield a file, decompressed; raises `InputError` if there is none, or it is empty or damaged."""
    size = 0
    with opened(name) as stream:
        try:
            while data := stream.read(STEP):
                size += len(data)
                yield data
        except DAMAGED as error:
            raise InputError(
                f"{name}: the compressed data are damaged or cut after {size / 1e6:.1f} MB ({error}); copy the file"
                " again"
            ) from None
        except OSError as error:
            raise InputError(f"{name}: {error.strerror or error}") from None
    if not size:
        raise InputError(f"{name}: is empty")


def _archive(name: str, wanted: Callable[[str], bool]) -> Iterator[FileStream]:
    """Yield the files of an archive: of a plain one from where they are, of a compressed one from memory."""
    with opened(name) as stream:
        plain = isinstance(stream, io.BufferedReader)
    packed = None if plain else read_bytes(name)
    try:
        with (
            tarfile.open(name)
            if packed is None
            else tarfile.open(fileobj=io.BytesIO(packed)) as archive
        ):
            members = [m for m in archive.getmembers() if m.isfile() and kept(m.name, wanted)]
            for member in sorted(members, key=lambda item: natural(item.name)):
                yield FileStream(f"{name}:{member.name}", _member(name, packed, member))
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise InputError(f"{name}: the archive is damaged ({error}); copy it again") from None
    if not members:
        raise InputError(f"{name}: the archive has no file of this kind in it")


def _member(
    name: str, packed: bytes | None, member: tarfile.TarInfo
) -> Callable[[], Iterator[bytes]]:
    def begin() -> Iterator[bytes]:
        with Path(name).open("rb") if packed is None else io.BytesIO(packed) as stream:
            stream.seek(member.offset_data)
            left = member.size
            while left > 0 and (data := stream.read(min(STEP, left))):
                left -= len(data)
                yield data
        if left > 0:
            raise InputError(f"{name}: the archive ends inside {member.name}; copy it again")

    return begin


class TextWindow:
    """A text of which a window is held.

    Attributes
    ----------
    text : str
        The window.
    at : int
        Where reading is, in the window; what is before it may be dropped.
    dropped : int
        Characters before the window.
    done : bool
        Whether the text ends with the window.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._lines = 1
        self._counted = 0
        self.text, self.at, self.dropped, self.done = "", 0, 0, False

    def hold(self, size: int) -> bool:
        """Let the window have so many characters from where reading is, if there are; returns whether it grew."""
        if self.done or len(self.text) - self.at >= size:
            return False
        held = [self.text[self.at :]]
        length = len(held[0])
        self._lines += self.text.count("\n", self._counted, self.at)
        self.dropped += self.at
        self.at = self._counted = 0
        while length < size and not self.done:
            piece = next(self._pieces, None)
            self.done = piece is None
            held.append(self._decoder.decode(piece or b"", final=self.done))
            length += len(held[-1])
        self.text = "".join(held)
        return True

    @property
    def line(self) -> int:
        """Line in which reading is."""
        return self.line_at(self.at)

    def line_at(self, at: int) -> int:
        """Return the line of a place in the window that is not before what was asked for last."""
        if at >= self._counted:
            self._lines += self.text.count("\n", self._counted, at)
            self._counted = at
        return self._lines

    def rest(self) -> int:
        """Read to the end and hold none of it; returns how many characters there are in all."""
        total = self.dropped + len(self.text)
        while not self.done:
            piece = next(self._pieces, None)
            self.done = piece is None
            total += len(self._decoder.decode(piece or b"", final=self.done))
        return total


class ByteWindow:
    """Bytes of which a window is held; see `TextWindow`."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.held, self.at, self.dropped, self.done = b"", 0, 0, False

    @property
    def place(self) -> int:
        """Position in the file."""
        return self.dropped + self.at

    def hold(self, size: int) -> bool:
        """Let the window have so many bytes from where reading is; returns whether there are."""
        if len(self.held) - self.at < size and not self.done:
            held = [self.held[self.at :]]
            length = len(held[0])
            self.dropped += self.at
            self.at = 0
            while length < size and not self.done:
                piece = next(self._pieces, None)
                self.done = piece is None
                held.append(piece or b"")
                length += len(held[-1])
            self.held = b"".join(held)
        return len(self.held) - self.at >= size

    def rest(self) -> int:
        """Read to the end and hold none of it; returns how many bytes there are in all."""
        return self.dropped + len(self.held) + sum(len(piece) for piece in self._pieces)
