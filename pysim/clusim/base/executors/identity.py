"""Identity of an installation: a digest of its text and shipped files.

Equal digests imply equal results.
"""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from pathlib import Path

from clusim.base.resources import shipped_topologies, shipped_workloads

PACKAGE = Path(__file__).resolve().parents[2]


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
    checked at import.
    """
    found = blake2b(digest_size=8)
    texts = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".json", ".csv")]
    named = {path.relative_to(PACKAGE).as_posix(): path for path in texts}
    for kind, files in (("topologies", shipped_topologies()), ("traces", shipped_workloads())):
        named |= {f"{kind}/{name}": path for name, path in files.items()}
    for name in sorted(named):
        found.update(f"{name} {file_digest(named[name])}\n".encode())
    return found.hexdigest()
