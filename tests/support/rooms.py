"""Size and names of the library: syntax nodes of every room, nodes per line, names that are no noun and no verb.

``python tests/support/rooms.py`` prints them with their targets, and lowers the limits of `tests/rooms.json` to the
present numbers. A room is a package of the library, or its top-level modules together; the distribution
`clusim-formats` is one more.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["LIMITS", "TARGETS", "Limits", "code_lines", "limits", "measured", "unexplained_rises"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pysim" / "clusim"
FORMATS = ROOT / "plugins" / "clusim-formats" / "clusim_formats"
LIMITS = ROOT / "tests" / "rooms.json"

TARGETS = {"nodes per line": 5.5, "% participle functions": 1.5, "‰ vague locals": 5.0}
"""Rates of the whole library, and their targets."""

FREE_RISE = 0.01
"""Share by which a limit may rise without a reason in the commit's message."""

VAGUE = frozenset(
    re.findall(
        r"\w+",
        """told said took ran found held own asked wanted judged mended here there near beside around way ways whole
        others rest given kept made known written seen shown taken followed many few most least each together left
        further drawn standing""",
    )
)
"""Words that do not tell what a function does or a variable holds."""

_LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


@dataclass(frozen=True)
class Limits:
    """Syntax nodes by room, and the rates of `TARGETS`: measured, or the largest allowed."""

    rooms: dict[str, int]
    rates: dict[str, float]

    @staticmethod
    def parse(text: str) -> Limits:
        """Read the contents of `tests/rooms.json`; a file of another form has no limits."""
        data = json.loads(text)
        return Limits(data.get("rooms", {}), data.get("rates", {}))


def _docstring_lines(nodes: Iterable[ast.AST]) -> set[int]:
    """Return the lines of docstrings, those of constants included."""
    lines: set[int] = set()
    for node in nodes:
        scope = isinstance(node, ast.Module | ast.ClassDef)
        if not scope and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for item in node.body if scope else node.body[:1]:
            value = item.value if isinstance(item, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                lines |= set(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    return lines


def _tokens(text: str) -> set[int]:
    """Return the lines with tokens that are no layout."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return lines


def code_lines(text: str, nodes: Sequence[ast.AST] = ()) -> int:
    """Return the lines that are neither blank nor comments nor docstrings; `nodes` are all of the text's tree."""
    nodes = nodes or [*ast.walk(ast.parse(text))]
    docstrings = _docstring_lines(nodes)
    numbered = [*enumerate(text.split("\n"), 1)]
    lines = {number for number, line in numbered if line.strip() and line.strip()[0] != "#"}
    strings = set()
    for node in nodes:
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            strings |= set(range(node.lineno, node.end_lineno or 0))
    # Within a string blank lines and `#` count, which tokenizing tells at ten times the time.
    return len((lines if strings - docstrings <= lines else _tokens(text)) - docstrings)


def syntax_nodes(nodes: Iterable[ast.AST]) -> int:
    """Return the number of statements and expressions."""
    return sum(isinstance(node, ast.expr | ast.stmt) for node in nodes)


def _is_participle(name: str) -> bool:
    word = name.strip("_")
    return "_" not in word and (word.endswith("ed") or word in VAGUE)


def _count_names(node: ast.AST, count: Counter[str], around: Sequence[set[str]] = ()) -> None:
    """Count functions, and their parameters and assigned names, those of nested functions included."""
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    if is_function:
        names = {argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]}
        around = [*around, names]
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        for outer in around:
            outer.add(node.id)
    for child in ast.iter_child_nodes(node):
        _count_names(child, count, around)
    if is_function:
        count["functions"] += 1
        count["participles"] += _is_participle(node.name)
        count["locals"] += len(names)
        count["vague"] += len(names & VAGUE)


def _room(path: Path) -> str:
    """Return the room of a module; the distribution of rare formats is one."""
    if FORMATS in path.parents:
        return FORMATS.name
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else "clusim"


@cache
def measured() -> Limits:
    """Return the present numbers."""
    rooms: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for path in [*sorted(PACKAGE.rglob("*.py")), *sorted(FORMATS.rglob("*.py"))]:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        nodes = [*ast.walk(tree)]
        rooms[_room(path)] += syntax_nodes(nodes)
        count["lines"] += code_lines(text, nodes)
        _count_names(tree, count)
    values = (
        rooms.total() / count["lines"],
        100 * count["participles"] / count["functions"],
        1000 * count["vague"] / count["locals"],
    )
    rates = {name: round(value, 2) for name, value in zip(TARGETS, values, strict=True)}
    return Limits(dict(sorted(rooms.items())), rates)


def limits() -> Limits:
    """Return the largest numbers allowed."""
    return Limits.parse(LIMITS.read_text(encoding="utf-8"))


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _versions() -> Iterator[tuple[str, Limits, Limits]]:
    """Yield the message, the limits before and the limits after each commit that changed them, newest first."""
    path = LIMITS.relative_to(ROOT).as_posix()
    for commit in _git("log", "--first-parent", "--format=%H", "--", path).split():
        parents = _git("rev-list", "--parents", "-n", "1", commit).split()[1:]
        if not parents or not _git("ls-tree", parents[0], path):
            return
        before, after = (Limits.parse(_git("show", f"{v}:{path}")) for v in (parents[0], commit))
        if not before.rooms:
            return
        yield _git("log", "-1", "--format=%B", commit), before, after


def rises(before: Limits, after: Limits) -> list[str]:
    """Return the rooms whose limits rose by more than `FREE_RISE`."""
    common = before.rooms.keys() & after.rooms.keys()
    return sorted(r for r in common if after.rooms[r] > before.rooms[r] * (1 + FREE_RISE))


def has_reason(message: str, room: str) -> bool:
    """Return True if a line of the message has the form ``room: reason``."""
    return re.search(rf"^{room}: \S", message, re.M) is not None


def unexplained_rises() -> list[str]:
    """Return each rise of a limit, over first parents, that its commit's message does not explain."""
    return [
        f"{room}: {message.splitlines()[0]}"
        for message, before, after in _versions()
        for room in rises(before, after)
        if not has_reason(message, room)
    ]


def main() -> None:
    """Print the numbers, and lower the limits; a room that has grown keeps its limit, and the test fails."""
    before, now = limits(), measured()
    for room, nodes in now.rooms.items():
        print(f"{room:24}{nodes:9}")
    for name, rate in now.rates.items():
        print(f"{name:24}{rate:9} (target {TARGETS[name]})")
    lower = {room: min(nodes, before.rooms.get(room, nodes)) for room, nodes in now.rooms.items()}
    rates = {name: min(rate, before.rates.get(name, rate)) for name, rate in now.rates.items()}
    text = json.dumps({"rooms": lower, "rates": rates}, indent=1, ensure_ascii=False)
    LIMITS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
