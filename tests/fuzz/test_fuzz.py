"""Mutated files of every kind: a result, or one line that says what is wrong; never a traceback, a gigabyte or a hang.

``CLUSIM_FUZZ=1000000 pytest tests/fuzz`` (``make fuzz-readers``) tries so many of every kind.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fuzz.child import check
from fuzz.forked import Forks
from fuzz.targets import TARGETS
from support.covering import THOROUGH

SAMPLES = Path(__file__).parent / "samples"


COUNT = 5_000 if THOROUGH else 500
"""Mutations of the files of every reader: of the places where 10,000 of them end, few are reached after 2,500."""

COUNTS = (
    {"import": 20_000, "nvbandwidth": 1_000, "trace": 2_500, "replay": 60, "replay-whole": 20}
    if THOROUGH
    else {"import": 2_000, "nvbandwidth": 250, "trace": 250, "replay": 6, "replay-whole": 2}
)
"""Of the reader of many formats, of one that ends in no new place after so many, of traces, whose columns take
turns, and of logs that are not only read, by target `log`, but replayed, which takes a hundred times as long."""


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_give_a_result_or_one_line(name: str, children: Forks) -> None:
    count = os.environ.get("CLUSIM_FUZZ", str(COUNTS.get(name, COUNT)))
    done = children.run("fuzz.child", name, "0", count)
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
