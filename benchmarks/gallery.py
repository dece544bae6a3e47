"""Draw the pictures of pages in docs/gallery with the commands of the pages."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from clusim.base.files import write_bytes

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(
    r"^```(sh|console|python|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL
)
_DRAWS = ("--trace-out", "--plot", "-o ", ".png")


def commands(text: str, folder: Path) -> Iterator[list[str]]:
    """Yield the arguments of Python for the blocks of a page that draw; write its YAML files into `folder`."""
    for language, block in _BLOCK.findall(text):
        named = re.match(r"# (\S+\.yaml)\n", block)
        if language == "yaml" and named:
            (folder / named[1]).write_text(block, encoding="utf-8")
        if language == "python" and ".png" in block:
            yield ["-c", block]
        for line in block.splitlines():
            command = line.removeprefix("$ ")
            draws = any(word in command for word in _DRAWS)
            if (
                language in ("sh", "console")
                and command.startswith("clusim ")
                and draws
            ):
                yield ["-m", *shlex.split(command)]


def main(pages: list[Path]) -> None:
    """Draw the pictures of `pages`, each page in a temporary folder, and keep the pictures that it shows."""
    for page in pages:
        text = page.read_text(encoding="utf-8")
        with TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "traces").symlink_to(ROOT / "traces")
            for arguments in commands(text, folder):
                subprocess.run(
                    [sys.executable, *arguments],
                    check=True,
                    cwd=folder,
                    stdout=subprocess.DEVNULL,
                )
            for picture in sorted(folder.glob("*.png")):
                if f"gallery/{picture.name}" in text:
                    write_bytes(
                        ROOT / "docs" / "gallery" / picture.name,
                        picture.read_bytes(),
                    )


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
