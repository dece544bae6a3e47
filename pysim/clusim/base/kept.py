"""Cache of results on disk, and the identity of an installation, by which they are valid.

The cache has one file per question and one folder per model version. Files are completely written under
another name and then renamed, and equal keys mean equal contents, so any number of processes may read and write
concurrently. Files of another version of clusim are never read. A file begins with the checksum of its question and
answer; a file that does not match is ignored, and overwritten with the new answer.

Others must not supply answers: a folder that other users may write is not used, nor is a file of another user.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import sys
from contextlib import suppress
from dataclasses import field
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from clusim.base import resources
from clusim.base.errors import EnvironmentFailure, InputError
from clusim.base.files import write_bytes
from clusim.base.records import dataclass
from clusim.base.resources import shipped_topologies, shipped_workloads

PACKAGE = Path(__file__).resolve().parents[1]


def file_digest(path: str | Path) -> str:
    """Return 16 hexadecimal digits of a file's content; empty if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return blake2b(file.read(), digest_size=8).hexdigest()
    except OSError:
        return ""


@cache
def model_digest() -> str:
    """Return 16 hexadecimal digits of all that determines results, equal if installed equally.

    The compiled engine is excluded, because every compiler generates different code; its compatibility is
    checked at import. The command line stores the digest by place, size and times of all files, because reading them
    lasts longer than the run of a small collective.
    """
    named = _model_files()
    if not resources.cached:
        return _digest_of(named)
    stored = SampleCache(version="files")
    question = [(*item, *_stamp(item[1])) for item in named]
    digest: str | None = stored.get(question)
    if digest is None:
        digest = _digest_of(named)
        stored.put(question, digest)
    return digest


def _digest_of(files: list[tuple[str, str]]) -> str:
    result = blake2b(digest_size=8)
    for name, path in files:
        result.update(f"{name} {file_digest(path)}\n".encode())
    return result.hexdigest()


def _model_files() -> list[tuple[str, str]]:
    """Return names and places of the files of all that determines results."""
    result = [
        (f"{kind}/{name}", str(path))
        for kind, files in (
            ("topologies", shipped_topologies()),
            ("traces", shipped_workloads()),
        )
        for name, path in files.items()
    ]
    for folder, _, names in os.walk(PACKAGE):
        paths = [
            f"{folder}/{i}"
            for i in names
            if i.endswith((".py", ".json", ".csv", ".yaml"))
        ]
        result += [(path.removeprefix(f"{PACKAGE}/"), path) for path in paths]
    return sorted(result)


def _stamp(path: str) -> tuple[int, ...]:
    """Return size, inode and times of a file [ns]; every change of its content alters one."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


PLACE = "CLUSIM_CACHE"
"""Environment variable that overrides the folder."""


def user_folder() -> Path:
    """Return the folder of all versions: `PLACE`, or the platform's user cache folder."""
    if folder := os.environ.get(PLACE):
        return Path(folder)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "clusim"
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clusim"
    )


MOST_BYTES = 16 << 20
"""Largest file of an answer [bytes]."""

refused: dict[str, str] = {}
"""Folders that are not used because others may write them, each with a line for the user."""


def is_private(folder: Path) -> bool:
    """Return True if a folder is missing or only this user may write it; otherwise note it in `refused`."""
    try:
        about = folder.stat()
    except OSError:
        return True
    if about.st_uid != os.geteuid():
        reason = "belongs to another user"
    elif about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason = "may be written by other users"
    else:
        return True
    remedy = (
        f"chmod g-w,o-w removes their permission; or set {PLACE} to a private folder"
    )
    refused[str(folder)] = (
        f"{folder}: {reason}, so it is not used as a cache; {remedy}"
    )
    return False


def own_bytes(path: Path) -> bytes:
    """Return the content of a regular file of this user.

    Raises
    ------
    OSError
        No such file, or it is not a regular file, has more than `MOST_BYTES`, or belongs to another user.
    """
    descriptor = os.open(
        path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    )
    with open(descriptor, "rb", buffering=0) as file:
        about = os.fstat(descriptor)
        is_own_file = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid()
        if not is_own_file or about.st_size > MOST_BYTES:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        return file.read()


@dataclass
class SampleCache:
    """Answers by the content of their questions, as JSON.

    Attributes
    ----------
    folder : Path or None
        Folder of all versions; None keeps answers in memory only.
    answers : dict
        Answers in memory, by the digest of their questions.
    version : str or None
        Version of the model for which answers are valid; None: this installation.
    """

    folder: Path | None = field(default_factory=user_folder)
    answers: dict[str, Any] = field(default_factory=dict)
    version: str | None = None

    def get(self, question: Any) -> Any:
        """Return the answer to a question, identified by its complete text; None if it is missing."""
        key = _key(question)
        path = None if key in self.answers else self._file(key)
        if path is not None:
            # Forged texts are too deep (RecursionError) or not JSON (ValueError).
            with suppress(OSError, ValueError, RecursionError):
                checksum, _, text = own_bytes(path).partition(b"\n")
                if checksum == _checksum(key, text):
                    self.answers[key] = json.loads(text)
        return self.answers.get(key)

    def put(self, question: Any, answer: Any) -> None:
        """Store an answer.

        A folder that cannot be written is ignored: the answer is then computed again.
        """
        key = _key(question)
        self.answers[key] = answer
        path = self._file(key)
        if path is None:
            return
        with suppress(OSError, EnvironmentFailure, InputError):
            path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            text = json.dumps(answer).encode()
            write_bytes(path, _checksum(key, text) + b"\n" + text)

    def sizes(self) -> tuple[int, int]:
        """Return the number of files of all versions, and their size [bytes]."""
        files = [] if self.folder is None else self.folder.glob("parts-*/*")
        sizes = [path.stat().st_size for path in files if path.is_file()]
        return len(sizes), sum(sizes)

    def clear(self) -> None:
        """Remove only the cached files of all versions."""
        for path in [] if self.folder is None else self.folder.glob("parts-*"):
            shutil.rmtree(path, ignore_errors=True)
        self.answers.clear()

    def _file(self, key: str) -> Path | None:
        """Return the file of an answer, in the folder of this version; None if it must not be used."""
        if self.folder is None or not is_private(self.folder):
            return None
        parts = self.folder / f"parts-{self.version or model_digest()}"
        return parts / key if is_private(parts) else None


def _checksum(key: str, text: bytes) -> bytes:
    return blake2b(key.encode() + text, digest_size=20).hexdigest().encode()


def _key(question: Any) -> str:
    return blake2b(repr(question).encode(), digest_size=20).hexdigest() + ".json"
