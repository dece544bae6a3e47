"""Members of parametrized tests that run cover the values, or pairs of values, of their axes."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from support.covering import choose_rows

TESTS = Path(__file__).resolve().parent
ROWS = [dict(zip("abc", row, strict=True)) for row in product(range(4), range(3), range(2))]


def test_every_value_of_every_axis_is_in_a_member() -> None:
    """The longest axis has 4 values, and no member has two of them."""
    chosen = choose_rows(ROWS, 1)
    assert len(chosen) == 4
    for axis in "abc":
        assert {ROWS[number][axis] for number in chosen} == {row[axis] for row in ROWS}


def test_every_pair_of_values_of_two_axes_is_in_a_member() -> None:
    """The two longest axes have 12 pairs, and no member has two of them."""
    chosen = choose_rows(ROWS, 2)
    assert 12 <= len(chosen) < len(ROWS)
    for pair in ("ab", "ac", "bc"):
        found = {tuple(ROWS[number][axis] for axis in pair) for number in chosen}
        assert found == {tuple(row[axis] for axis in pair) for row in ROWS}


def test_one_axis_has_all_its_members() -> None:
    assert choose_rows([{"a": number} for number in range(5)], 2) == set(range(5))


EXAMPLE = """
import pytest

@pytest.mark.covering
@pytest.mark.parametrize("b", range(3))
@pytest.mark.parametrize("a", range(4))
def test_example(a, b):
    pass

@pytest.mark.parametrize("b", range(3))
@pytest.mark.parametrize("a", range(4))
def test_whole(a, b):
    pass
"""


@pytest.mark.parametrize(
    ("thorough", "workers", "count"), [("", 0, 4 + 12), ("", 2, 4 + 12), ("1", 0, 12 + 12)]
)
def test_a_run_says_what_it_leaves_out(
    thorough: str, workers: int, count: int, tmp_path: Path
) -> None:
    (tmp_path / "test_example.py").write_text(EXAMPLE, encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "-p", "conftest"]
    words += ["-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": ""}
    env["CLUSIM_THOROUGH"] = thorough
    run = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert f"{count} passed" in run.stdout, run.stdout + run.stderr
    said = "8 members of parametrized tests left to make thorough" in run.stdout
    assert said == (not thorough)
