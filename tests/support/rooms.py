"""Modules and lines of code of every room: a package of the library, or its top-level modules together.

``python tests/support/rooms.py`` writes the limits of `tests/rooms.json` down to the present numbers.
"""

from __future__ import annotations

import ast
import io
import json
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

__all__ = ["LIMITS", "Sizes", "code_lines", "limits", "measured"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pysim" / "clusim"
LIMITS = ROOT / "tests" / "rooms.json"

Sizes = dict[str, tuple[int, int]]
"""Modules and lines of code by room."""

_SKIPPED = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


def code_lines(text: str) -> int:
    """Return the lines that are neither blank nor comments nor docstrings, those of constants included."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", [])
        scope = isinstance(node, ast.Module | ast.ClassDef)
        if not scope and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for item in body if scope else body[:1]:
            value = item.value if isinstance(item, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                documented |= set(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SKIPPED:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


@cache
def measured() -> Sizes:
    """Return the present sizes."""
    modules: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).parts
        room = parts[0] if len(parts) > 1 else "clusim"
        modules[room] += 1
        lines[room] += code_lines(path.read_text(encoding="utf-8"))
    return {room: (modules[room], lines[room]) for room in sorted(modules)}


def limits() -> Sizes:
    """Return the largest sizes allowed."""
    data = json.loads(LIMITS.read_text(encoding="utf-8"))
    return {room: (int(modules), int(lines)) for room, (modules, lines) in data.items()}


def main() -> None:
    """Lower the limits to the present sizes; a room that has grown keeps its limit, and the test tells."""
    before, now = (limits() if LIMITS.exists() else {}), measured()
    kept = {
        room: [min(pair) for pair in zip(sizes, before.get(room, sizes), strict=True)]
        for room, sizes in now.items()
    }
    rows = ",\n".join(f"  {json.dumps(room)}: {json.dumps(sizes)}" for room, sizes in kept.items())
    LIMITS.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
