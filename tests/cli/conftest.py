from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusim_cli.main import run
from support.calls import write_files


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did: exit code and both outputs."""

    code: int
    out: str
    err: str


Clusim = Callable[..., Outcome]


@pytest.fixture
def clusim(capsys: pytest.CaptureFixture[str]) -> Clusim:
    """Run the command line in this process."""

    def call(*arguments: object) -> Outcome:
        try:
            code = run([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the files that stand in `support.calls.CALLS` by a word."""
    return write_files(tmp_path_factory.mktemp("files"))
