"""Cache of simulated parts on disk: one file per content, in a folder of this version of the model.

Files are written whole under another name and then renamed, and equal keys mean equal contents, so any number of
processes may read and write at once. What another version of clusim wrote is never read. A file begins with the
checksum of its question and answer; one that does not match is ignored, and written again with the new answer.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError
from clusim.base.executors import model_digest
from clusim.base.files import write_bytes

PLACE = "CLUSIM_CACHE"
"""Environment variable that names the folder instead."""


def kept_folder() -> Path:
    """Return the folder of all versions: `PLACE`, or the user's folder for caches on this platform."""
    if given := os.environ.get(PLACE):
        return Path(given)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "clusim"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "clusim"


@dataclass
class Kept:
    """Answers by the content of their questions, as JSON.

    Attributes
    ----------
    found, made : int
        Answers that were there, and that were put there by this process.
    """

    folder: Path = field(default_factory=kept_folder)
    found: int = 0
    made: int = 0
    _known: dict[str, Any] = field(default_factory=dict)

    @property
    def own(self) -> Path:
        """Return the folder of this version."""
        return self.folder / f"parts-{model_digest()}"

    def get(self, question: Any) -> Any:
        """Return the answer to a question, whose text says all of it; None if there is none yet."""
        key = _key(question)
        if key not in self._known:
            with suppress(OSError):
                checksum, _, text = (self.own / key).read_bytes().partition(b"\n")
                if checksum == _checksum(key, text):
                    self._known[key] = json.loads(text)
        self.found += key in self._known
        return self._known.get(key)

    def put(self, question: Any, answer: Any) -> None:
        """Keep an answer. A folder that cannot be written is no failure: it is then made again."""
        key = _key(question)
        self._known[key] = answer
        self.made += 1
        with suppress(OSError, InputError):
            self.own.mkdir(parents=True, exist_ok=True)
            text = json.dumps(answer).encode()
            write_bytes(self.own / key, _checksum(key, text) + b"\n" + text)

    def sizes(self) -> tuple[int, int]:
        """Return the number of files of all versions, and their bytes."""
        files = [path for path in self.folder.glob("parts-*/*") if path.is_file()]
        return len(files), sum(path.stat().st_size for path in files)

    def clear(self) -> None:
        """Remove what all versions have kept, and nothing else."""
        for path in self.folder.glob("parts-*"):
            shutil.rmtree(path, ignore_errors=True)
        self._known.clear()


def _checksum(key: str, text: bytes) -> bytes:
    return blake2b(key.encode() + text, digest_size=20).hexdigest().encode()


def _key(question: Any) -> str:
    return blake2b(repr(question).encode(), digest_size=20).hexdigest() + ".json"
