"""Cache of results on disk, and the identity of an installation, by which they are valid.

The cache has one file per question and one folder per model version. Files are completely written under
another name and then renamed, and equal keys mean equal contents, so any number of processes may read and write
concurrently. Files of another version of clusim are never read. A file begins with the checksum of its question and
answer; a file that does not match is ignored, and overwritten with the new answer.
"""

from __future__ import annotations

import json
import os
import shutil
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
        for kind, files in (("topologies", shipped_topologies()), ("traces", shipped_workloads()))
        for name, path in files.items()
    ]
    for folder, _, names in os.walk(PACKAGE):
        paths = [f"{folder}/{i}" for i in names if i.endswith((".py", ".json", ".csv", ".yaml"))]
        result += [(path.removeprefix(f"{PACKAGE}/"), path) for path in paths]
    return sorted(result)


def _stamp(path: str) -> tuple[int, ...]:
    """Return size, inode and times of a file [ns]; every change of its content alters one."""
    try:
        known = os.stat(path)
    except OSError:
        return ()
    return known.st_size, known.st_ino, known.st_mtime_ns, known.st_ctime_ns


PLACE = "CLUSIM_CACHE"
"""Environment variable that overrides the folder."""


def user_folder() -> Path:
    """Return the folder of all versions: `PLACE`, or the platform's user cache folder."""
    if given := os.environ.get(PLACE):
        return Path(given)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "clusim"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clusim"


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
        if key not in self.answers and self.folder is not None:
            with suppress(OSError):
                checksum, _, text = self._file(self.folder, key).read_bytes().partition(b"\n")
                if checksum == _checksum(key, text):
                    self.answers[key] = json.loads(text)
        return self.answers.get(key)

    def put(self, question: Any, answer: Any) -> None:
        """Store an answer.

        A folder that cannot be written is ignored: the answer is then computed again.
        """
        key = _key(question)
        self.answers[key] = answer
        if self.folder is None:
            return
        with suppress(OSError, EnvironmentFailure, InputError):
            path = self._file(self.folder, key)
            path.parent.mkdir(parents=True, exist_ok=True)
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

    def _file(self, folder: Path, key: str) -> Path:
        """Return the file of an answer, in the folder of this version."""
        return folder / f"parts-{self.version or model_digest()}" / key


def _checksum(key: str, text: bytes) -> bytes:
    return blake2b(key.encode() + text, digest_size=20).hexdigest().encode()


def _key(question: Any) -> str:
    return blake2b(repr(question).encode(), digest_size=20).hexdigest() + ".json"
