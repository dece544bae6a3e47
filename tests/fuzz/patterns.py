"""Tries every pattern with which readers look at lines on lines that are hard for it, each with a bound on its time.

``python -m fuzz.patterns`` with tests/ on the path. Prints the name of each pattern before it is tried, so that it is
known which one ended the process. A pattern whose work grows with the square of a line takes minutes for 64 KiB of it,
one whose work grows with its length a blink.
"""

from __future__ import annotations

import importlib
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import clusim

__all__ = ["LETTERS", "hard", "main", "patterns", "uses"]

LETTERS = 1 << 16
"""Length of the lines; the log's reader looks at no more of one."""

CPU_S = 10
"""Time of the processor for one pattern on one line; a hang otherwise [s]."""

SHORT = {"_TOKEN": 64, "_BEFORE": 320, "_FILE": 255}
"""Longest texts of patterns that are tried on shorter ones only: a header, what is in front of it, a file's name."""

PACKAGES = ("logs", "recording", "nccltests")
WAYS = ("match", "fullmatch", "search", "findall", "finditer", "sub", "split")
_PIECES = (
    "A", "f", "1", " ", "\t", "\n", "-", "/", ":", ".", "_", '"', "{", "A ", "1 ", "1.", "1/", "a.b:", "[1,", "0x1",
    "GPU/0 (", "a,", "1 float ",
)  # fmt: skip
_ENDS = ("", "!", " 1", ":1:2 ")


def hard(length: int) -> Iterator[str]:
    """Yield texts of one piece over and over, as they are and behind a beginning, with ends that fit nothing."""
    for piece in _PIECES:
        text = (piece * (length // len(piece) + 1))[:length]
        for end in _ENDS:
            yield text[: length - len(end)] + end
    yield "# " + "a" * (length - 2)


def _sources() -> dict[str, Path]:
    root = Path(clusim.__file__).parent
    files = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    names = {path: path.relative_to(root.parent).with_suffix("").as_posix() for path in files}
    return {name.replace("/", ".").removesuffix(".__init__"): path for path, name in names.items()}


def patterns() -> dict[str, re.Pattern[str] | re.Pattern[bytes]]:
    """Return the compiled patterns of all modules, by module and name."""
    return {
        f"{module}.{name}": value
        for module in _sources()
        for name, value in vars(importlib.import_module(module)).items()
        if isinstance(value, re.Pattern) and value.__class__ is re.Pattern
    }


def uses(name: str, texts: dict[str, str]) -> list[str]:
    """Return how a pattern is used in the source of its module, and if its name is public of all."""
    module, _, own = name.rpartition(".")
    source = texts[module] if own[0] == "_" else "".join(texts.values())
    return sorted(set(re.findall(rf"(?<!\w){own}\.({'|'.join(WAYS)})\b", source)))


def _try(pattern: re.Pattern[str] | re.Pattern[bytes], ways: list[str], text: str) -> None:
    hay = text if isinstance(pattern.pattern, str) else text.encode()
    for way in ways:
        if way == "sub":
            pattern.sub(hay[:0], hay)  # type: ignore[type-var, arg-type]
        elif way == "finditer":
            list(pattern.finditer(hay))  # type: ignore[arg-type]
        else:
            getattr(pattern, way)(hay)


def _bound_time() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(
        resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + CPU_S, hard_limit)
    )


def main() -> None:
    """Try all patterns."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in _sources().items()}
    for name, pattern in patterns().items():
        own = name.rpartition(".")[2]
        ways = uses(name, texts) or ["search"]
        sys.stdout.write(f"{name} {' '.join(ways)}\n")
        sys.stdout.flush()
        for text in hard(SHORT.get(own, LETTERS)):
            _bound_time()
            _try(pattern, ways, text)
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main()
