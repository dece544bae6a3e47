"""Mutated files of every kind: a result, or one line that says what is wrong; never a traceback, a gigabyte or a hang.

``CLUSIM_FUZZ=1000000 pytest tests/fuzz`` (``make fuzz-readers``) tries so many of every kind.
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

COUNT = 10_000
"""Mutations of the files of every reader."""

COUNTS = {"replay": 30, "replay-whole": 10}
"""Of logs that are not only read, by target `log`, but replayed, which takes a hundred times as long."""

PARTS = {"trace": 4}
"""Processes that share the mutations of a kind, of which each takes long."""

GUARD_S = 3600
"""Ends a child that the limit on its processor time did not end; no more than a guard."""

CASES = [(name, part) for name in TARGETS for part in range(PARTS.get(name, 1))]


def _numbers(name: str, part: int) -> tuple[int, int]:
    """Return the first mutation of a part of those of a kind, and how many there are."""
    count = int(os.environ.get("CLUSIM_FUZZ", COUNTS.get(name, COUNT)))
    first, end = (count * p // PARTS.get(name, 1) for p in (part, part + 1))
    return first, end - first


@pytest.mark.parametrize(("name", "part"), CASES)
def test_mutations_give_a_result_or_one_line(name: str, part: int) -> None:
    first, count = _numbers(name, part)
    command = [sys.executable, "-m", "fuzz.child", name, str(first), str(count)]
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
    target = TARGETS[name]
    assert not check(target, files, tmp_path / "files", target.use)
