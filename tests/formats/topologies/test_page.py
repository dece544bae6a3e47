"""The console blocks of docs/importing.md do what they show."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from clusim_cli.main import run

PAGE = Path(__file__).resolve().parents[3] / "docs" / "importing.md"
SAMPLES = Path(__file__).parent / "samples"


def test_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (xml,) = re.findall(r"^```xml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    Path("box.xml").write_text(xml, encoding="utf-8")
    shutil.copy(SAMPLES / "smi.txt", "box.txt")
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    done = 0
    for block in blocks:
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            words = shlex.split(command)
            if words[0] != "clusim":
                continue
            assert run(words[1:]) == 0, command
            printed = capsys.readouterr().out
            if shown.strip():
                pattern = re.escape(shown).replace(re.escape("...\n"), "(?:.*\n)*?")
                assert re.fullmatch(pattern, printed), f"{command}\n{printed}"
            done += 1
    assert done == 3
    # What the page promises of any command.
    assert run(["run", "box.xml", "--size", "1MiB", "--no-progress"]) == 0
