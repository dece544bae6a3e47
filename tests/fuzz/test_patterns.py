"""No pattern of a reader takes the square of a line: a word of 64 KiB costs its length."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from fuzz.patterns import in_place, patterns, uses

HERE = Path(__file__).parents[1]

SQUARE = """
import re
from fuzz import patterns
patterns.in_place = dict
patterns.patterns = lambda: {"clusim.formats.logs.lines._SQUARE": re.compile(r"(\\w+) (x)")}
patterns.main()
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)


def test_every_pattern_takes_the_length_of_a_line() -> None:
    done = run("-m", "fuzz.patterns")
    lines = done.stdout.splitlines()
    assert lines[-1:] == ["done"], f"ended at {lines[-1:]}: {done.stderr[-1000:]}"
    assert len(lines) == len(patterns()) + len(in_place()) + 1


def test_a_pattern_that_takes_the_square_ends_the_process() -> None:
    done = run("-c", SQUARE)
    assert done.returncode == -signal.SIGPROF
    assert done.stdout.splitlines() == ["clusim.formats.logs.lines._SQUARE search"]


def test_patterns_are_tried_as_their_module_uses_them() -> None:
    texts = {"a": "_X.match(t)\n_X.sub(t)\nMY_X.search(t)", "b": "_X.search(t)\nY.findall(t)"}
    assert uses("a._X", texts) == ["match", "sub"]
    assert uses("a.Y", texts) == ["findall"]
    assert {"clusim.formats.logs.messages._PAIR", "clusim.formats.logs.tables._CONFIG"} <= set(
        patterns()
    )
