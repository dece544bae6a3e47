"""Streams of recorded files, directories and archives, and of the JSON objects in them.

Content is read in pieces. Objects may be in a list, one per line, or concatenated.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from clusim.base.errors import InputError
from clusim.formats.recordings.source import (
    DAMAGED,
    LINE_LIMIT,
    Paths,
    kept,
    names_of,
    natural,
    opened,
    read_bytes,
)

STEP = 1 << 20
"""Bytes per read."""


@dataclass(frozen=True, slots=True)
class FileStream:
    """File, or file in an archive; `begin` reopens it, decompressed."""

    name: str
    begin: Callable[[], Iterator[bytes]]

    def head(self, size: int = STEP) -> bytes:
        """Return the first bytes."""
        result = b""
        for piece in self.begin():
            result += piece
            if len(result) >= size:
                break
        return result[:size]

    def whole(self, most: int) -> bytes:
        """Return the complete content; raise `InputError` above `most` bytes."""
        held = io.BytesIO()
        for piece in self.begin():
            if held.tell() + len(piece) > most:
                raise InputError(
                    f"{self.name}: is larger than {most >> 20} MiB; record fewer steps or cut the file"
                )
            held.write(piece)
        return held.getvalue()


def streams(paths: Paths, wanted: Callable[[str], bool]) -> Iterator[FileStream]:
    """Yield files, and `wanted` files of directories and tar archives, in natural order.

    ``.9.`` is before ``.10.``. Names that begin with a dot are skipped. Compressed files are unpacked while they are
    read; a compressed archive is unpacked completely, up to `MOST_BYTES`.
    """
    for name in names_of(paths):
        if Path(name).is_dir():
            inside = [str(p) for p in Path(name).iterdir() if p.is_file() and kept(p.name, wanted)]
            for path in sorted(inside, key=natural):
                yield _file(path)
            if not inside:
                raise InputError(f"{name}: contains no file of this kind")
            continue
        file = _file(name)
        if file.head(512)[257:262] == b"ustar":
            yield from _archive(name, wanted)
        else:
            yield file


def _file(name: str) -> FileStream:
    return FileStream(name, lambda: _pieces(name))


def _pieces(name: str) -> Iterator[bytes]:
    """Yield a file, decompressed; raise `InputError` if it is missing, empty or damaged."""
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
    """Yield the files of an archive: from disk if it is plain, from memory if compressed."""
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
        raise InputError(f"{name}: the archive contains no file of this kind")


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
    """Text with a buffered window.

    Attributes
    ----------
    text : str
        The window.
    at : int
        Read position in the window; earlier text may be dropped.
    dropped : int
        Characters before the window.
    done : bool
        True if the text ends with the window.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._lines = 1
        self._counted = 0
        self.text, self.at, self.dropped, self.done = "", 0, 0, False

    def hold(self, size: int) -> bool:
        """Extend the window to `size` characters from the read position; return True if it grew."""
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
        """Line of the read position."""
        return self.line_at(self.at)

    def line_at(self, at: int) -> int:
        """Return the line of a position in the window; positions must not decrease between calls."""
        if at >= self._counted:
            self._lines += self.text.count("\n", self._counted, at)
            self._counted = at
        return self._lines

    def rest(self) -> int:
        """Read to the end without buffering, and return the total number of characters."""
        total = self.dropped + len(self.text)
        while not self.done:
            piece = next(self._pieces, None)
            self.done = piece is None
            total += len(self._decoder.decode(piece or b"", final=self.done))
        return total


class ByteWindow:
    """Bytes with a buffered window; see `TextWindow`."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.held, self.at, self.dropped, self.done = b"", 0, 0, False

    @property
    def place(self) -> int:
        """Read position in the file [bytes]."""
        return self.dropped + self.at

    def hold(self, size: int) -> bool:
        """Extend the window to `size` bytes from the read position; return True if available."""
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
        """Read to the end without buffering, and return the total number of bytes."""
        return self.dropped + len(self.held) + sum(len(piece) for piece in self._pieces)


_BETWEEN = re.compile(r"[\s,\[\]]*")
_NEXT = re.compile(r"\n[ \t,\[]*(?=\{)")
_END = re.compile(r"\}\s*,\s*(?=\{)|\r?\n")
_DECODER = json.JSONDecoder()

_WINDOWS: Final = (1 << 10, 1 << 16, 1 << 24)
"""Window sizes for parsing an object, in this order; no object is longer [characters]."""

MOST_OBJECTS, OBJECT_LETTERS = 500_000, 64
"""Limit on the objects of a file, also broken: a constant, plus one per 64 characters."""

_DEEP = 100
"""Weight in this limit of an object that is nested too deep to be read."""

_TOO_DEEP = -1

_MARGIN = 32
"""An error this close to the end of a window may be due to the window's end [characters]."""

_HELD: Final = 1 << 17
"""Text buffered from the start of an object before it is parsed [characters]."""


def objects(
    file: FileStream, damage: Callable[[int], None], repair: Callable[[str], str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line and content of the objects of a file; text between them is ignored.

    Parameters
    ----------
    damage : callable
        Receives the line of invalid JSON; reading continues at the next line that begins with an object.
    repair : callable, optional
        Converts an object that is almost JSON, written on one line, to JSON.

    Raises
    ------
    InputError
        There are more objects than a recording of this size has.
    """
    window, spent = TextWindow(file.begin()), 0
    while _begins(window):
        line = window.line
        if spent > MOST_OBJECTS + (window.dropped + window.at) // OBJECT_LETTERS:
            raise InputError(
                f"{file.name}:{line}: {spent} objects so far, too many for so small a file; is it a recording?"
            )
        result, end = _one(window, repair)
        spent += 1 if end >= window.at else _DEEP
        if result is not None:
            window.at = end
            yield line, result
            continue
        damage(line)
        if not _skip(window):
            return


def _begins(window: TextWindow) -> bool:
    """Advance to the next object or invalid text; return False at the end."""
    while True:
        window.hold(_HELD)
        between = _BETWEEN.match(window.text, window.at)
        window.at = between.end() if between else window.at
        if window.at < len(window.text):
            return True
        if window.done:
            return False


def _skip(window: TextWindow) -> bool:
    """Advance to the next line that begins with an object; return False at the end."""
    while True:
        after = _NEXT.search(window.text, window.at)
        if after is not None:
            window.at = after.end()
            return True
        if window.done:
            return False
        # Keep the possible start of such a line in the window.
        last = window.text.rfind("\n", window.at)
        near = max(window.at, len(window.text) - LINE_LIMIT)
        window.at = last if last >= near else len(window.text)
        window.hold(len(window.text) - window.at + _HELD)


def _decoded(window: TextWindow) -> tuple[dict[str, Any] | None, int]:
    """Return the complete object at the current position, and its end.

    The end is the position itself if there is no object, and `_TOO_DEEP` if it is nested too deep.

    Windows are copied, since an error counts the lines of all preceding text: with many broken objects the time
    would be quadratic in their number.
    """
    for size in _WINDOWS:
        window.hold(size)
        at = window.at
        piece = window.text[at : at + size]
        try:
            result, end = _DECODER.raw_decode(piece)
            return result, at + end
        except json.JSONDecodeError as error:
            inside = error.pos < len(piece) - _MARGIN and not error.msg.startswith("Unterminated")
            if inside or len(piece) < size:
                break
        except RecursionError:
            return None, _TOO_DEEP
        except ValueError:
            break
    return None, window.at


def _one(
    window: TextWindow, repair: Callable[[str], str] | None
) -> tuple[dict[str, Any] | None, int]:
    """Return the object at the current position, None if invalid, and its end."""
    if window.text[window.at] != "{":
        return None, window.at
    result, end = _decoded(window)
    if end != window.at or repair is None:
        return result, end
    window.hold(LINE_LIMIT)
    text, at = window.text, window.at
    match = _END.search(text, at)
    end = len(text) if match is None else match.start() + (match[0][0] == "}")
    try:
        result = json.loads(repair(text[at:end]).rstrip(", \t]"))
    except (ValueError, RecursionError):
        return None, at
    return (result if isinstance(result, dict) else None), end
