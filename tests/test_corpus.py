"""The corpus of real files: indexed in full, redistributable, small, and each file with a right answer."""

from __future__ import annotations

import csv
import re

from support.realfiles import SMALL, answers

MOST_BYTES = 1_000_000
UNLICENSED = ("none stated", "not checked", "CC-BY-SA-4.0")
"""Licences under which only facts are copied: lines of logs, and matrices."""

FILES = [path for path in SMALL.rglob("*") if path.is_file()]


def index() -> dict[str, dict[str, str]]:
    with (SMALL / "index.csv").open(encoding="utf-8") as file:
        return {row["file"]: row for row in csv.DictReader(file)}


def test_every_file_has_a_source() -> None:
    found = {path.relative_to(SMALL).as_posix() for path in FILES}
    found -= {name for name in found if name.startswith("answers/")} | {
        "README.md",
        "LICENCES.md",
        "index.csv",
    }
    assert found == set(index())
    for row in index().values():
        assert row["source"]
        assert row["licence"]
        assert row["extent"]
        if row["licence"] in UNLICENSED:
            assert row["file"].startswith(("nccl_logs/", "smi_topo/"))


def test_every_licence_has_its_text_and_every_source_its_notice() -> None:
    text = (SMALL / "LICENCES.md").read_text(encoding="utf-8")
    headings = set(re.findall(r"^## (\S+)$", text, re.MULTILINE))
    for row in index().values():
        if row["licence"] in UNLICENSED[:2]:
            continue
        assert f"| `{row['source']}` | {row['licence']} |" in text
        words = re.findall(r"[A-Z][A-Za-z-]+-?[\d.]*\d|MIT", row["licence"])
        assert words
        assert set(words) <= headings
    assert headings == {"Apache-2.0", "MIT", "BSD-3", "UPL-1.0", "CC-BY-SA-4.0"}


def test_all_files_together_are_small() -> None:
    assert sum(path.stat().st_size for path in FILES) < MOST_BYTES


def test_answers_are_about_files_of_the_corpus() -> None:
    names = {name.rpartition("/")[2] for name in index()}
    for table in ("choices", "imports", "tables"):
        assert {row["file"] for row in answers(table)} <= names
    topologies = {name for name in index() if name.startswith(("topo_xml/", "smi_topo/"))}
    assert {row["file"] for row in answers("imports")} == {n.rpartition("/")[2] for n in topologies}
