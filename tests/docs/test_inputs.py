"""The page of what is read of other tools names every kind; its commands run with those of all pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusim.formats.recordings.kinds import KINDS, LOGS, PLANS, reader

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "inputs.md").read_text(encoding="utf-8")


def test_every_kind_is_in_the_table() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    for kind in (*LOGS, *KINDS, *PLANS):
        assert any(row.startswith(f"| `{kind}` |") for row in rows), kind


def test_every_command_of_the_table_is_tried() -> None:
    (block,) = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    table = re.findall(r"^\| `.*\| `(clusim [^`]+)` \|$", PAGE, re.MULTILINE)
    assert len(table) >= 5
    for command in table:
        assert command in block.splitlines(), command


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_reader(kind: str) -> None:
    assert callable(reader(kind))
