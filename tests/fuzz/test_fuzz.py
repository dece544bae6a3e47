"""Mutated files of every kind: a result, or one line that says what is wrong; never a traceback, a gigabyte or a hang.

Fewer mutations than a long run: ``CLUSIM_FUZZ=1000000 pytest tests/fuzz`` tries so many of every kind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.child import check
from fuzz.targets import TARGETS

HERE = Path(__file__).parent
SAMPLES = HERE / "samples"

COUNTS = {
    "trace": 30, "replay": 3, "replay-whole": 2, "inspector": 200, "profiler": 400, "simai": 50, "log": 800,
    "msccl": 2000, "mscclpp": 1000, "goal": 1500, "workload": 2000, "model": 2000, "measurements": 2000,
}  # fmt: skip
"""Mutations of kinds whose readers do much or little; of all others `USUAL`."""

USUAL = 600
GUARD_S = 3600
"""Ends a child that the limit on its processor time did not end; no more than a guard."""


def _count(name: str) -> int:
    asked = os.environ.get("CLUSIM_FUZZ")
    if asked:
        return int(asked)
    return COUNTS.get(name, USUAL) * (10 if os.environ.get("CLUSIM_THOROUGH") else 1)


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_give_a_result_or_one_line(name: str) -> None:
    command = [sys.executable, "-m", "fuzz.child", name, "0", str(_count(name))]
    done = subprocess.run(
        command, cwd=HERE.parent, capture_output=True, text=True, timeout=GUARD_S, check=False
    )
    lines = done.stdout.splitlines()
    bad = [line for line in lines if line.startswith("bad ")]
    assert not bad, "\n".join(bad[:20])
    assert lines[-1:] == ["done"], f"ended at mutation {lines[-1:]}: {done.stderr[-2000:]}"


@pytest.mark.parametrize("folder", sorted(SAMPLES.iterdir()), ids=lambda path: path.name)
def test_what_once_broke_a_reader_no_longer_does(folder: Path, tmp_path: Path) -> None:
    """Names of folders begin with the reader's; what is in them was found by the mutations above, or by hand."""
    name = next(n for n in sorted(TARGETS, key=len, reverse=True) if folder.name.startswith(n))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert not check(TARGETS[name], files, tmp_path / "files")
