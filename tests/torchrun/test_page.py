"""The example of the page of programs prints what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree

from clusim.base.kept import user_folder
from support.torch_programs import needs_torch

needs_torch()

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "programs.md").read_text(encoding="utf-8")
    match = re.search(r"^\$ clusim (.*)\n\.\.\.\n((?:.*\n)*?)\.\.\.\n```", text, re.MULTILINE)
    assert match is not None
    words = [sys.executable, "-m", "clusim", *match[1].split()]
    # What is compiled for PyTorch is kept; measured and simulated times are not.
    compiled = user_folder() / "torch"
    if compiled.is_dir():
        copytree(compiled, tmp_path / "torch")
    env = {**os.environ, "CLUSIM_CACHE": str(tmp_path)}
    run = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=env, timeout=300)
    assert run.returncode == 0, run.stderr
    assert match[2] in run.stdout
