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
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from clusim import _engine

__all__ = ["Copy", "Page", "follow"]

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("pysim/clusim", "cli/clusim_cli", "topologies", "traces")
_BLOCK = re.compile(
    r"(?P<said>[^\n]*)\n\n?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_START = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
"""
"""Takes the copy also where an editable installation leads imports to the checkout."""
_MAIN = {
    "clusim": "from clusim_cli.main import main\nmain()",
    "pytest": "import pytest\nsys.exit(pytest.main())",
}
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
    stale: bool = False

    def __post_init__(self) -> None:
        """Copy the project, compiled modules too, so that nothing is compiled again."""
        self._take(*PARTS)
        shutil.copy(_engine.__file__, self.place / PARTS[0])

    def build(self) -> None:
        """Compile the engine of the copy."""
        self._take("csrc")
        source = self.place / "_engine.c"
        subprocess.run(
            [sys.executable, "csrc/bindings/build_engine.py", source], cwd=self.place, check=True
        )
        include = sysconfig.get_paths()["include"]
        target = self.place / PARTS[0] / Path(_engine.__file__).name
        flags = [
            "-O0",
            "-w",
            "-std=c11",
            "-shared",
            "-fPIC",
            "-D_CFFI_NO_LIMITED_API",
            '-DCLUSIM_VERSION="0"',
        ]
        paths = [f"-I{path}" for path in ("csrc/include", "csrc", include)]
        files = [*sorted((self.place / "csrc").glob("*.c")), source]
        command = [os.environ.get("CC", "cc"), *flags, *paths, *map(str, files), "-o", str(target)]
        subprocess.run(command, cwd=self.place, check=True)
        self.stale = False

    def change(self, file: str, diff: str) -> None:
        """Change a file by the lines of a diff without numbers; what stays must be in the file once."""
        lines = [line if line.strip() else " \n" for line in diff.splitlines(keepends=True)]
        assert {line[0] for line in lines} <= {" ", "+", "-"}, diff
        old = "".join(line[1:] for line in lines if line[0] != "+")
        new = "".join(line[1:] for line in lines if line[0] != "-")
        self._take(file)
        self.stale = self.stale or file.startswith("csrc/")
        text = (self.place / file).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} has {text.count(old)} times\n{old}"
        (self.place / file).write_text(text.replace(old, new), encoding="utf-8")

    def _take(self, *files: str) -> None:
        """Copy files and directories of the project as well, unless they are there."""
        for file in files:
            whole = ROOT / file
            for one in whole.rglob("*") if whole.is_dir() else [whole]:
                path = self.place / one.relative_to(ROOT)
                if one.is_file() and not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(one, path)

    def add(self, file: str, text: str) -> None:
        """Write a new file."""
        path = self.place / file
        assert not path.exists(), f"{file} exists already"
        path.write_text(text, encoding="utf-8")

    def run(self, command: str) -> str:
        """Run a command line of ``clusim`` or ``pytest`` in the copy, and return what it prints."""
        if self.stale:
            self.build()
        *settings, words = re.split(r"^((?:[A-Z_]+=\S+ )*)", command, maxsplit=1)
        given = dict(item.split("=", 1) for item in shlex.split(settings[-1] if settings else ""))
        name, *rest = shlex.split(words)
        assert name in ("clusim", "pytest"), command
        if name == "pytest":
            self._take(
                "pyproject.toml", "tests/conftest.py", "tests/support", str(Path(rest[0]).parent)
            )
        paths = os.pathsep.join(str(self.place / part) for part in ("pysim", "cli"))
        done = subprocess.run(
            [sys.executable, "-c", _START + _MAIN[name], *rest],
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
