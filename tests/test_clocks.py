"""No test depends on how fast the machine is that runs it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import settings

from support.clocks import clocks_asserted

HERE = Path(__file__).resolve()
TESTS = sorted(HERE.parent.rglob("*.py"))


def test_no_test_asserts_on_a_clock() -> None:
    for path in TESTS:
        found = clocks_asserted(ast.parse(path.read_text(encoding="utf-8")))
        assert found == [], f"{path}: count the work instead; support.work does"


def test_no_example_of_hypothesis_has_a_deadline() -> None:
    """By default one of 200 ms is a failure; `conftest` takes that away, and no test brings it back."""
    assert settings().deadline is None
    assert [path for path in TESTS if "deadline=" in path.read_text() and path != HERE] == [
        HERE.parent / "conftest.py"
    ]


@pytest.mark.parametrize(
    ("lines", "seen"),
    [
        (["s = time.perf_counter()", "f()", "assert time.perf_counter() - s < 10"], True),
        (["s = perf_counter()", "f()", "took = perf_counter() - s", "assert took < 1"], True),
        (["code = 'print(time.process_time())'", "a = run(code)", "assert a < 5"], True),
        (["assert result.wall_s < 2"], True),
        (["assert timeit.timeit(f, number=1) < 2"], True),
        (["assert result.time_ps < 2"], False),
        (["end = time.monotonic() + 60", "while time.monotonic() < end: f()", "assert g()"], False),
    ],
)
def test_assertions_on_clocks_are_seen(lines: list[str], seen: bool) -> None:
    body = "\n".join(f"    {line}" for line in lines)
    assert bool(clocks_asserted(ast.parse(f"def test():\n{body}"))) is seen
