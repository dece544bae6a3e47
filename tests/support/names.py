"""Whether what pages name in backticks exists: files, functions, words of the code, commands and their options."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from clusim_cli import main
from support import csources as c

__all__ = ["exists", "quoted"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pysim" / "clusim"
CLI = ROOT / "cli" / "clusim_cli"
PACKAGES = [path.parent for top in (PACKAGE, CLI) for path in sorted(top.rglob("__init__.py"))]
HOMES = [
    *(
        ROOT / name
        for name in (
            ".",
            "docs",
            "csrc",
            "csrc/parts",
            "csrc/include",
            "csrc/tests",
            "cli",
            "tests",
        )
    ),
    *PACKAGES,
]
"""Directories that names of files in the page may start from."""


@cache
def code() -> str:
    """Return the code, its data of hardware, and its tests, but for those of pages."""
    pages = ROOT / "tests" / "docs"
    files = [
        path
        for top in ("pysim", "cli", "plugins", "csrc", "tests", "benchmarks")
        for path in (ROOT / top).rglob("*.*")
    ]
    kept = [
        path for path in files if path.suffix in (".py", ".c", ".h") and pages not in path.parents
    ]
    kept += (ROOT / "pysim" / "clusim" / "hardware").glob("*.yaml")
    return " ".join(path.read_text(encoding="utf-8") for path in kept)


@cache
def words() -> set[str]:
    """Return every word of it."""
    return set(re.findall(r"[A-Za-z_]\w*", code()))


def quoted(page: str) -> list[str]:
    """Return what stands in backticks of a page, outside of blocks."""
    return re.findall(
        r"`([^`\n]+)`", re.sub(r"^```\w*\n.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    )


def is_file(name: str) -> bool:
    return any(any(home.glob(name)) for home in HOMES)


def is_command(text: str) -> bool:
    """Return whether a text begins with a program, and a sub-command or a target that it has."""
    program, _, rest = text.partition(" ")
    first = rest.split(" ")[0]
    if program == "make":
        return (
            re.search(rf"^{first}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
            is not None
        )
    if program in main.COMMANDS and rest:
        return True
    return first in main.COMMANDS if program == "clusim" else program in ("perf", "valgrind")


def exists(text: str) -> bool:
    """Return whether what stands in backticks exists."""
    if found := re.fullmatch(r"(\w+)\.([ch]):(\w+)", text):
        return found[3] in re.findall(r"\w+(?=\()", c.code(f"{found[1]}.{found[2]}"))
    if re.search(r"\.(c|h|py|sh|md|yaml)$|/$|/\*", text) or ("/" in text and " " not in text):
        return is_file(text.rstrip("/")) or is_file(f"{text}.py")
    if text.startswith("--"):
        return text.split(" ")[0] in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    if text[0] == '"':
        return text in code()
    if " " in text and not set(text) & set(":("):
        return is_command(text)
    return set(re.findall(r"\b[A-Za-z_]\w*", text)) <= words() | set(main.COMMANDS)
