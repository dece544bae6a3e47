"""Put the output of the main job into the README, between the marks of its text block."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from clusim.base.files import write_text

COMMAND = (
    "run dgx-a100 --collective allreduce --algorithm ring --size 64MiB --no-progress"
)


def main(page: Path) -> None:
    """Rewrite the only ``text`` block of `page`."""
    command = [sys.executable, "-m", "clusim", *COMMAND.split()]
    output = subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout
    text = page.read_text(encoding="utf-8")
    block = f"```text\n{output}```"
    write_text(
        page, re.sub(r"```text\n.*?```", lambda _: block, text, flags=re.DOTALL)
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
