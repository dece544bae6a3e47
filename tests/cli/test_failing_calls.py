"""Commands of which a call that changes files fails, or ends the process."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from clusim.base.errors import EnvironmentFailure
from clusim.base.files import Lock, append_line
from support.covering import THOROUGH

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the library that lets calls fail."""
    path = tmp_path_factory.mktemp("library") / "fail_calls.so"
    source = ROOT / "csrc/tests/fail_calls.c"
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, *flags, "-o", str(path), str(source), "-ldl"], check=True)
    return path


def test_every_file_is_the_old_one_or_the_new_one_whatever_call_fails(
    library: Path, tmp_path: Path
) -> None:
    """A run, a sweep, a report, an export and the cache: all cases if thorough, or every 13th."""
    done = subprocess.run(
        [sys.executable, "-m", "support.failing_calls", str(library), str(tmp_path), "1" if THOROUGH else "13"],
        cwd=ROOT / "tests",
        env={**os.environ, "LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )  # fmt: skip
    print(done.stdout)  # the table of calls and outcomes, with -s
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    for command in ("run", "sweep", "report", "export", "cache"):
        assert f"\n{command} " in done.stdout


def test_a_line_that_fits_in_part_is_an_error(tmp_path: Path) -> None:
    """A file at its largest size takes the first bytes of a line only."""
    path, before = tmp_path / "journal", resource.getrlimit(resource.RLIMIT_FSIZE)
    append_line(path, b"x" * 9)
    resource.setrlimit(resource.RLIMIT_FSIZE, (15, before[1]))
    try:
        with pytest.raises(EnvironmentFailure, match="File too large"):
            append_line(path, b"y" * 9)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_lock_that_cannot_be_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            Lock(tmp_path / "lock")
    assert list(tmp_path.iterdir()) == []
    Lock(tmp_path / "lock").release()
