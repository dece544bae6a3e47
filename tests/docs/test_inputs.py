"""The page of what is read of other tools names every kind; the commands of its table work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from clusim.formats.recordings.kinds import KINDS, LOGS, PLANS, reader
from clusim_cli.main import run

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "inputs.md").read_text(encoding="utf-8")
COMMANDS = dict(re.findall(r"^\| `(.*?)` \|.*\| `(clusim [^`]+)` \|$", PAGE, re.MULTILINE))
"""The command of each kind."""


def test_every_kind_is_in_the_table_with_a_command() -> None:
    assert set(COMMANDS) == {*LOGS, *KINDS, *PLANS}


FEW = {"nccl-tests": ("--calls", "4")}
"""What is replayed of a recording whose last calls are of gigabytes."""


@pytest.mark.usefixtures("without_proof")
@pytest.mark.parametrize("kind", COMMANDS)
def test_every_command_of_the_table_works(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").symlink_to(ROOT / "traces")
    words = [*shlex.split(COMMANDS[kind])[1:], *FEW.get(kind, ())]
    assert run(words) == 0, capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_reader(kind: str) -> None:
    assert callable(reader(kind))
