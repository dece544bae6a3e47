"""Does what a page of docs/ tells a newcomer to do, in a copy of the project, and looks at what comes out.

A block of a page does what the paragraph before it says: after a line that ends with a file's name in backticks and a
colon, it is that new file, or (``diff``) changes it. In ``console`` blocks lines after ``$`` are run; those below are
printed, among others, in this order; `` ...`` stands for the rest of a line.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from clusim import _engine

__all__ = ["Copy", "Page", "follow"]

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("pysim/clusim", "cli/clusim_cli", "topologies", "traces")
_BLOCK = re.compile(
    r"(?P<said>[^\n]*)\n\n?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_MAIN = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
from clusim_cli.main import main
main()"""
"""Runs the command of the copy, also where an editable installation leads imports to the checkout."""
_FILE = re.compile(r"`([\w./-]+\.\w+)`:$")


@dataclass(frozen=True)
class Block:
    language: str
    file: str
    text: str


@dataclass(frozen=True)
class Page:
    """A page of docs/ by its name."""

    name: str

    @property
    def text(self) -> str:
        """Return the page."""
        return (ROOT / "docs" / self.name).read_text(encoding="utf-8")

    def blocks(self) -> list[Block]:
        """Return its blocks, with the files that they are or change."""
        found = []
        for match in _BLOCK.finditer(self.text):
            file = _FILE.search(match["said"])
            found.append(Block(match["language"], file[1] if file else "", match["text"]))
        return found

    def files(self) -> set[str]:
        """Return the files of the project that it makes or changes."""
        return {block.file for block in self.blocks() if "/" in block.file}


@dataclass
class Copy:
    """A copy of what of the project is run."""

    place: Path
    printed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Copy the project, compiled modules too, so that nothing is compiled again."""
        for part in PARTS:
            shutil.copytree(ROOT / part, self.place / part)
        engine = Path(_engine.__file__)
        if not (self.place / PARTS[0] / engine.name).exists():
            shutil.copy(engine, self.place / PARTS[0])

    def change(self, file: str, diff: str) -> None:
        """Change a file by the lines of a diff without numbers; what stays must be in the file once."""
        lines = [line if line.strip() else " \n" for line in diff.splitlines(keepends=True)]
        assert {line[0] for line in lines} <= {" ", "+", "-"}, diff
        old = "".join(line[1:] for line in lines if line[0] != "+")
        new = "".join(line[1:] for line in lines if line[0] != "-")
        text = (self.place / file).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} has {text.count(old)} times\n{old}"
        (self.place / file).write_text(text.replace(old, new), encoding="utf-8")

    def add(self, file: str, text: str) -> None:
        """Write a new file."""
        path = self.place / file
        assert not path.exists(), f"{file} exists already"
        path.write_text(text, encoding="utf-8")

    def run(self, command: str) -> str:
        """Run a command line of ``clusim`` with the copy, and return what it prints."""
        *settings, words = re.split(r"^((?:[A-Z_]+=\S+ )*)", command, maxsplit=1)
        given = dict(item.split("=", 1) for item in shlex.split(settings[-1] if settings else ""))
        name, *rest = shlex.split(words)
        assert name == "clusim", command
        paths = os.pathsep.join(str(self.place / part) for part in ("pysim", "cli"))
        done = subprocess.run(
            [sys.executable, "-c", _MAIN, *rest],
            cwd=self.place,
            env={**os.environ, "PYTHONPATH": paths, **given},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        return done.stdout

    def look(self, console: str) -> None:
        """Run the commands of a block and look for the lines that it shows."""
        printed: list[str] = []
        for line in console.splitlines():
            if line.startswith("$ "):
                printed = self.run(line[2:]).splitlines()
                self.printed += printed
            elif line.strip() != "...":
                begin, cut, _ = line.partition(" ...")
                fits = [one.startswith(begin) if cut else one == line for one in printed]
                assert any(fits), f"{line!r} is not in\n" + "\n".join(printed)
                printed = printed[fits.index(True) + 1 :]


def follow(page: Page, place: Path) -> Copy:
    """Do what a page says, from its first block to its last, in a copy at `place`."""
    copy = Copy(place)
    for block in page.blocks():
        if block.language == "console":
            copy.look(block.text)
        elif block.file and block.language == "diff":
            copy.change(block.file, block.text)
        elif block.file:
            copy.add(block.file, block.text)
    return copy
