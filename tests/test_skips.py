"""A skip that no list expects fails, of a test and of a file, in one process and in workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent

EXAMPLE = """
import pytest

def test_expected():
    pytest.importorskip("pyarrow_is_not_there", reason="no Chromium is installed")

def test_unexpected():
    pytest.skip("nobody set a variable")

@pytest.mark.skipif(True, reason="no such directory")
def test_unexpected_mark():
    raise AssertionError

@pytest.mark.xfail(strict=True)
def test_expected_failure():
    raise AssertionError
"""

WHOLE_FILE = """
import pytest
pytest.skip("a file without data", allow_module_level=True)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_unexpected_skips_fail(workers: int, tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(EXAMPLE, encoding="utf-8")
    (tmp_path / "test_file.py").write_text(WHOLE_FILE, encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-q", "-rA", "-n", str(workers), "-p", "conftest"]
    words += ["--continue-on-collection-errors", "-c", os.devnull, "--rootdir", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": ""}
    run = subprocess.run(
        [*words, str(tmp_path)], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "1 failed, 1 skipped, 1 xfailed, 2 errors" in run.stdout.splitlines()[-1]
    reasons = ("nobody set a variable", "no such directory", "a file without data")
    for reason in reasons:
        assert f"unexpected skip: {reason}; tests/support/skips.py" in run.stdout
