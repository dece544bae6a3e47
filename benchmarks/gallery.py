"""Regenerate the pictures of docs/gallery.md with the commands listed above them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from clusim.base.files import write_bytes


def main(page: Path) -> None:
    """Run the ``sh`` blocks of `page` in one folder and keep their pictures beside the page."""
    with TemporaryDirectory() as folder:
        for block in re.findall(
            r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S
        ):
            for line in block.splitlines():
                subprocess.run(
                    [sys.executable, "-m", *shlex.split(line)],
                    check=True,
                    cwd=folder,
                    stdout=subprocess.DEVNULL,
                )
        for picture in sorted(Path(folder).glob("*.png")):
            write_bytes(page.parent / "gallery" / picture.name, picture.read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
