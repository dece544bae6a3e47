"""Tries every pattern of the package on lines that are hard for it, each with a bound on its time: named, and in place.

``python -m fuzz.patterns`` with tests/ on the path. Prints the name of each pattern before it is tried, so that it is
known which one ended the process. A pattern whose work grows with the square of a line takes a tenth of a second and
more for 8 KiB of it and minutes for the 64 KiB of CLUSIM_THOROUGH=1, one whose work grows with its length a blink.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import clusim
from support.covering import THOROUGH

__all__ = ["LETTERS", "hard", "in_place", "main", "patterns", "uses"]


LETTERS = 1 << 16 if THOROUGH else 1 << 13
"""Length of the lines; the log's reader looks at no more than 64 KiB of one."""

CPU_S = 10 if THOROUGH else 0.1
"""Time of the processor for one pattern on one line; a hang otherwise [s]."""

SHORT = {
    "clusim.formats.logs.line_reader._SPEAKER": 64,
    "clusim.formats.logs.lines._BEFORE": 320,
    "clusim.formats.recordings.chakra_files._FILE": 255,
    "clusim.topology.render._NUMBERED": 64,
    "clusim.lowering.faulttext._TAIL": 400,
}
"""Longest texts of patterns that are tried on shorter ones only: headers, names of files and nodes, faults."""

NAMES = 64
"""Longest texts of patterns in the packages of `OF_NAMES`, which look at no more than names of nodes."""

OF_NAMES = ("clusim.report", "clusim.analysis", "clusim.base.drawing")
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


@functools.cache
def _texts(length: int) -> tuple[tuple[str, bytes], ...]:
    return tuple((text, text.encode()) for text in hard(length))


@functools.cache
def _sources() -> dict[str, Path]:
    root = Path(clusim.__file__).parent
    names = {
        path: path.relative_to(root.parent).with_suffix("").as_posix()
        for path in sorted(root.rglob("*.py"))
        if path.name != "__main__.py"
    }
    return {name.replace("/", ".").removesuffix(".__init__"): path for path, name in names.items()}


def patterns() -> dict[str, re.Pattern[str] | re.Pattern[bytes]]:
    """Return the compiled patterns of all modules, by module and name."""
    return {
        f"{module}.{name}": value
        for module in _sources()
        for name, value in vars(importlib.import_module(module)).items()
        if isinstance(value, re.Pattern) and value.__class__ is re.Pattern
    }


def in_place() -> dict[str, tuple[re.Pattern[str] | re.Pattern[bytes], str]]:
    """Return the patterns that are written where they are used, ``re.search("..", text)``, and how they are used."""
    found = {}
    for module, path in _sources().items():
        text = path.read_text(encoding="utf-8")
        if not re.search(rf"\bre\.({'|'.join(WAYS)})\b", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and (node.func.value.id, node.func.attr) in {("re", way) for way in WAYS}
                and isinstance(node.args[0], ast.Constant)
            ):
                flags = {n.attr for a in [*node.args, *(k.value for k in node.keywords)] for n in ast.walk(a)
                         if isinstance(n, ast.Attribute) and n.attr.isupper()}  # fmt: skip
                flag = functools.reduce(lambda a, b: a | getattr(re, b), flags, re.RegexFlag(0))
                name = f"{module}:{node.lineno}"
                found[name] = re.compile(node.args[0].value, flag), node.func.attr
    return found


def uses(name: str, texts: dict[str, str]) -> list[str]:
    """Return how a pattern is used in the source of its module, and if its name is public of all."""
    module, _, own = name.rpartition(".")
    found = set()
    for text in [texts[module]] if own[0] == "_" else texts.values():
        if f"{own}." in text:
            found |= set(re.findall(rf"(?<!\w){own}\.({'|'.join(WAYS)})\b", text))
    return sorted(found)


def _try(
    pattern: re.Pattern[str] | re.Pattern[bytes], ways: list[str], text: str, data: bytes
) -> None:
    hay = text if isinstance(pattern.pattern, str) else data
    for way in ways:
        if way == "sub":
            pattern.sub(hay[:0], hay)  # type: ignore[type-var, arg-type]
        elif way == "finditer":
            list(pattern.finditer(hay))  # type: ignore[arg-type]
        else:
            getattr(pattern, way)(hay)


def _length(name: str) -> int:
    return SHORT.get(name, NAMES if name.startswith(OF_NAMES) else LETTERS)


def main() -> None:
    """Try all patterns."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in _sources().items()}
    tried = {
        name: (pattern, uses(name, texts) or ["search"]) for name, pattern in patterns().items()
    }
    tried.update({name: (pattern, [way]) for name, (pattern, way) in in_place().items()})
    gc.disable()  # thousands of matches collect the garbage of all modules, which takes longer than a pattern
    for name, (pattern, ways) in tried.items():
        sys.stdout.write(f"{name} {' '.join(ways)}\n")
        sys.stdout.flush()
        for text, data in _texts(_length(name)):
            signal.setitimer(signal.ITIMER_PROF, CPU_S)
            _try(pattern, ways, text, data)
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main()
