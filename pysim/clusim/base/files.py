"""Atomic writing of files, which never replaces the inputs of the written data.

Data are written to a temporary file in the same folder, synchronised to disk, and then renamed to the
target. After an error the old file is unchanged. Pipes and devices cannot be replaced and are written
directly.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from clusim.base.errors import EnvironmentFailure, InputError

STDOUT = "-"
"""File name of standard output."""

MOST_LINKS = 40
"""Maximum number of symbolic links to follow, as in Linux."""

_STREAM = re.compile(
    r"/dev/(?:std(?P<name>out|err)|fd/(?P<fd>\d+))|/proc/self/fd/(?P<own>\d+)"
)

Name = str | os.PathLike[str]
Identity = tuple[int, int]
"""Device and inode of a file, equal for all its names."""

_inputs: dict[Identity, str] | None = None


@contextmanager
def guard_inputs() -> Iterator[None]:
    """Refuse to write over files that are read in this context; every command runs in one."""
    global _inputs
    before, _inputs = _inputs, dict(_inputs or {})
    try:
        yield
    finally:
        _inputs = before


_noting: list[list[str]] = []


@contextmanager
def noting() -> Iterator[list[str]]:
    """Collect the paths of the files that are read in this context."""
    paths: list[str] = []
    _noting.append(paths)
    try:
        yield paths
    finally:
        _noting.pop()


def note_input(path: Name) -> None:
    """Note that a file is read; within `guard_inputs` it cannot be written afterwards."""
    for names in _noting:
        names.append(os.path.abspath(path))
    if _inputs is not None and (result := _identity(path)) is not None:
        _inputs.setdefault(result, os.fspath(path))


def refuse_inputs(target: Name, sources: Iterable[Name] = ()) -> None:
    """Raise `InputError` if `target` is one of `sources` or a noted input, by any name."""
    result = _identity(target) if _stream(target) is None else None
    if result is None:
        return
    inputs = {
        same: os.fspath(path)
        for path in sources
        if (same := _identity(path)) is not None
    }
    inputs |= _inputs or {}
    if result in inputs:
        name, output = inputs[result], os.fspath(target)
        problem = (
            "is an input"
            if name == output
            else f"is the input {name} under another name"
        )
        raise InputError(
            f"{output}: {problem} and would be replaced; use another output file"
        )


def _identity(path: Name) -> Identity | None:
    """Return the identity of a regular file (``-``: standard input), None for other files."""
    with suppress(OSError, ValueError):
        result = os.fstat(0) if os.fspath(path) == STDOUT else os.stat(path)
        if stat.S_ISREG(result.st_mode):
            return result.st_dev, result.st_ino
    return None


def destination(path: Name) -> Path:
    """Return the path of a file of that name: a symbolic link stays, its target is written."""
    return Path(os.path.realpath(path) if os.path.islink(path) else path)


def _stream(path: Name) -> int | None:
    """Return the descriptor of ``-``, ``/dev/stdout``, ``/dev/fd/3`` or links to them, if any."""
    name = os.fspath(path)
    if name == STDOUT:
        return 1
    for _ in range(MOST_LINKS):
        if match := _STREAM.fullmatch(name):
            number = match["fd"] or match["own"]
            return int(number) if number else {"out": 1, "err": 2}[match["name"]]
        if not os.path.islink(name):
            return None
        name = os.path.normpath(
            os.path.join(os.path.dirname(name), os.readlink(name))
        )
    return None


def is_stream(path: Name) -> bool:
    """Return True if a name is standard output, where other text must not be printed then."""
    return _stream(path) == 1


@contextmanager
def _explain_os_errors(path: Name) -> Iterator[None]:
    """Convert OS errors to one-line failures, except that of a closed pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise EnvironmentFailure(
            f"{os.fspath(path)}: cannot be written: {reason}"
        ) from None


@contextmanager
def replacing(path: Name, sources: Iterable[Name] = ()) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `path` at the end, unless an error occurs.

    Parameters
    ----------
    sources : iterable of path-like
        Inputs of the file, which are never replaced; `InputError` if `path` is among them.
    """
    refuse_inputs(path, sources)
    with _explain_os_errors(path):
        if (number := _stream(path)) is not None:
            yield from _to_stream(number)
            return
        real = destination(path)
        if _is_special(real):
            with real.open("wb") as out:
                yield out
            return
        with Staging() as staging, staging.open(real) as out:
            yield out


def check_place(path: Name, sources: Iterable[Name] = ()) -> None:
    """Raise the errors of `replacing` in advance, for runs that write their file at the end."""
    refuse_inputs(path, sources)
    with _explain_os_errors(path):
        if _stream(path) is None and not _is_special(real := destination(path)):
            if not real.parent.is_dir():
                raise NotADirectoryError(
                    errno.ENOTDIR, f"no directory {real.parent}"
                )
            if not os.access(real.parent, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _to_stream(number: int) -> Iterator[BinaryIO]:
    standard = {1: sys.stdout, 2: sys.stderr}.get(number)
    if standard is not None and hasattr(standard, "buffer"):
        standard.flush()
        yield standard.buffer
        standard.buffer.flush()
        return
    with os.fdopen(os.dup(number), "wb") as out:
        yield out


def _is_special(real: Path) -> bool:
    """Return True for an existing pipe or device, which is written directly.

    Raises `OSError` if the path exists and cannot be written.
    """
    if not real.exists():
        return False
    mode = real.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not os.access(real, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return not stat.S_ISREG(mode)


def check_replaceable(real: Path) -> None:
    """Raise `OSError` if a path exists and is not a file that may be replaced."""
    if _is_special(real):  # a file would be put in the place of a device or a pipe
        raise OSError(errno.EINVAL, "not a regular file")


def write_csv(out: IO[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write rows as CSV; texts that spreadsheets read as formulas begin with an apostrophe."""
    csv.writer(out, lineterminator="\n").writerows(
        [_no_formula(cell) if isinstance(cell, str) else cell for cell in row]
        for row in rows
    )


def _no_formula(text: str) -> str:
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def append_line(path: Name, line: bytes) -> None:
    """Append a line, usually in one write: later lines follow it even if this process is killed now."""
    with _explain_os_errors(path), open(path, "ab", buffering=0) as out:
        remainder = memoryview(line + b"\n")
        while remainder:  # a disk that is nearly full takes a part
            remainder = remainder[out.write(remainder) or 0 :]


def write_bytes(path: Name, data: bytes, sources: Iterable[Name] = ()) -> None:
    """Write a file as `replacing` does."""
    with replacing(path, sources) as out:
        out.write(data)


def write_text(path: Name, text: str, sources: Iterable[Name] = ()) -> None:
    """Write a text in UTF-8 as `replacing` does."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"), sources)


@contextmanager
def text_of(out: BinaryIO) -> Iterator[IO[str]]:
    """Wrap a binary file as a text file in UTF-8, without conversion of line ends."""
    text = io.TextIOWrapper(
        out, encoding="utf-8", errors="backslashreplace", newline=""
    )
    try:
        yield text
        text.flush()
    finally:
        with suppress(OSError):  # after an error it would be flushed again
            text.detach()


class Staging:
    """Several files that replace their targets after all are written; no file after an error."""

    def __init__(self) -> None:
        self._ready: list[tuple[Path, Path]] = []
        self._made: list[Path] = []
        self._locks: list[int] = []

    def __enter__(self) -> Staging:
        """Return the object."""
        return self

    def folder(self, path: Path) -> None:
        """Create a folder with its parents; created folders are removed after an error."""
        with _explain_os_errors(path):
            missing = [
                parent for parent in (path, *path.parents) if not parent.exists()
            ]
            path.mkdir(parents=True, exist_ok=True)
            self._made += missing

    @contextmanager
    def open(self, target: Path) -> Iterator[BinaryIO]:
        """Open a file for writing that becomes `target` at the end."""
        with _explain_os_errors(target):
            real = destination(target)
            check_replaceable(real)
            _remove_orphans(real.parent)
            temporary, descriptor = _open_new_file(real)
            self._ready.append((temporary, real))
            # The lock outlives the writing: until the rename, the file must not look like an orphan.
            self._locks.append(os.dup(descriptor))
            with os.fdopen(descriptor, "wb") as out:
                keep_mode(descriptor, real)
                yield out
                out.flush()
                os.fsync(descriptor)

    def __exit__(self, kind: object, *rest: object) -> None:
        """Put the files in their places, or remove them."""
        try:
            if kind is None:
                while self._ready:
                    temporary, target = self._ready[0]
                    with _explain_os_errors(target):
                        os.replace(temporary, target)
                    self._ready.pop(0)
                    sync_folder(target.parent)
                self._made.clear()
        finally:
            for temporary, _target in self._ready:
                temporary.unlink(missing_ok=True)
            for path in self._made:
                with suppress(OSError):  # something else is in it by now
                    path.rmdir()
            for descriptor in self._locks:
                os.close(descriptor)


def _open_new_file(real: Path) -> tuple[Path, int]:
    """Return a new file in the folder of `real`, and its descriptor, which holds its lock."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    while True:
        path = real.with_name(f".clusim-{os.urandom(8).hex()}.tmp")
        descriptor = os.open(path, flags, 0o666)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have taken it for an orphan before it was locked.
        if path.exists():
            return path, descriptor
        os.close(descriptor)


def _remove_orphans(folder: Path) -> None:
    """Remove the temporary files of killed processes in a folder: those without a lock."""
    for path in folder.glob(".clusim-*.tmp"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(descriptor)


def keep_mode(descriptor: int, target: Path) -> None:
    """Copy owner and mode of the replaced file to an open file, if the user is permitted to."""
    with suppress(OSError):
        old = target.stat()
        if not stat.S_ISREG(old.st_mode):
            return
        with suppress(OSError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def sync_folder(folder: Path) -> None:
    """Synchronise the names in a folder to disk; some file systems cannot, and need not."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class LockedError(Exception):
    """Error if another writer holds the lock; `holder` is its process, 0 if unknown."""

    def __init__(self, holder: int) -> None:
        super().__init__(holder)
        self.holder = holder


_CANNOT_LOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""A file system without locks."""


_HELD: set[int] = set()
"""Descriptors of the locks that this process holds."""


def _let_go() -> None:
    """Close the parent's locks in a forked process, which would otherwise outlive the parent."""
    for descriptor in _HELD:
        os.close(descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_let_go)


class Lock:
    """A file lock of one process, released at its end by any cause.

    Forked processes do not inherit it.

    Parameters
    ----------
    path : Path
        The file, which contains the process number. `release` removes it; the file of a killed process is
        reused.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            descriptor = os.open(path, flags, 0o666)
            try:
                self._take(descriptor)
                if self._is_there(descriptor):
                    break
            except BaseException:
                os.close(descriptor)
                raise
            # The previous holder removed the file before this process locked it.
            os.close(descriptor)
        try:
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        except OSError:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _HELD.add(descriptor)

    @staticmethod
    def _take(descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            words = os.pread(descriptor, 32, 0).split()
            holder = int(words[0]) if words and words[0].isdigit() else 0
            raise LockedError(holder) from None
        except OSError as error:
            if error.errno not in _CANNOT_LOCK:
                raise

    def _is_there(self, descriptor: int) -> bool:
        with suppress(OSError):
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        return False

    def release(self) -> None:
        """Release the lock after removal of the file, so that no process locks a removed file."""
        with suppress(OSError):
            self._path.unlink()
        # A forked process has closed it already.
        if self._descriptor in _HELD:
            _HELD.discard(self._descriptor)
            os.close(self._descriptor)


def distinct(targets: Sequence[tuple[str, Name]]) -> None:
    """Raise `InputError` if two targets, given by option and name, are the same file."""
    originals: dict[Path, str] = {}
    for option, target in targets:
        if _stream(target) is not None:
            continue
        real = Path(os.path.realpath(target))
        if real in originals:
            raise InputError(
                f"{option} {os.fspath(target)}: is written by {originals[real]}, too; give another file"
            )
        originals[real] = option
