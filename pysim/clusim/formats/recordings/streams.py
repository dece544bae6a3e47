"""Files of recordings as streams: what is in a file, a directory or an archive, in pieces and not whole.

JSON objects one after the other, in any arrangement: a list, one per line, or just behind each other.
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


_BETWEEN = re.compile(r"[\s,\[\]]*")
_NEXT = re.compile(r"\n[ \t,\[]*(?=\{)")
_END = re.compile(r"\}\s*,\s*(?=\{)|\r?\n")
_DECODER = json.JSONDecoder()

_WINDOWS: Final = (1 << 10, 1 << 16, 1 << 24)
"""Characters among which an object is looked for: most are short, and none is longer."""

MOST_OBJECTS, OBJECT_LETTERS = 500_000, 64
"""Objects of a file, whole or broken: so many, and one more for so many characters."""

_DEEP = 100
"""As many objects one counts that is nested deeper than can be read."""

_TOO_DEEP = -1

_MARGIN = 32
"""An error so near to the end of these may come of the end."""

_HELD: Final = 1 << 17
"""Text from an object on that is buffered before it is parsed [characters]."""


def objects(
    file: FileStream, damage: Callable[[int], None], repair: Callable[[str], str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line and content of the objects of a file; what is between them is looked at no further.

    Parameters
    ----------
    damage : callable
        Takes the line of what is no JSON; reading goes on at the next line that begins with an object.
    repair : callable, optional
        Turns an object that is almost JSON, written on one line, into JSON.

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
        found, end = _one(window, repair)
        spent += 1 if end >= window.at else _DEEP
        if found is not None:
            window.at = end
            yield line, found
            continue
        damage(line)
        if not _skip(window):
            return


def _begins(window: TextWindow) -> bool:
    """Go to the next object, or whatever stands in its place; returns whether there is something."""
    while True:
        window.hold(_HELD)
        between = _BETWEEN.match(window.text, window.at)
        window.at = between.end() if between else window.at
        if window.at < len(window.text):
            return True
        if window.done:
            return False


def _skip(window: TextWindow) -> bool:
    """Go to the next line that begins with an object; returns whether there is one."""
    while True:
        after = _NEXT.search(window.text, window.at)
        if after is not None:
            window.at = after.end()
            return True
        if window.done:
            return False
        # What may begin such a line is looked at again.
        last = window.text.rfind("\n", window.at)
        near = max(window.at, len(window.text) - LINE_LIMIT)
        window.at = last if last >= near else len(window.text)
        window.hold(len(window.text) - window.at + _HELD)


def _decoded(window: TextWindow) -> tuple[dict[str, Any] | None, int]:
    """Return the whole object that begins here, and where it ends.

    That is the position itself if there is none, and `_TOO_DEEP` if it is nested too deep.

    Windows are copied, as an error would count the lines of all the text in front of it: many broken objects of a long
    file would take the square of their number.
    """
    for size in _WINDOWS:
        window.hold(size)
        at = window.at
        piece = window.text[at : at + size]
        try:
            found, end = _DECODER.raw_decode(piece)
            return found, at + end
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
    """Return the object that begins here, None if there is none, and where it ends."""
    if window.text[window.at] != "{":
        return None, window.at
    found, end = _decoded(window)
    if end != window.at or repair is None:
        return found, end
    window.hold(LINE_LIMIT)
    text, at = window.text, window.at
    match = _END.search(text, at)
    end = len(text) if match is None else match.start() + (match[0][0] == "}")
    try:
        found = json.loads(repair(text[at:end]).rstrip(", \t]"))
    except (ValueError, RecursionError):
        return None, at
    return (found if isinstance(found, dict) else None), end
