"""Numbers in running text: times and rates are printed in a tested block, or are listed with their source.

Pages of results (`REPORTS`) have their command and commit, or name the benchmark; other tests read tables and blocks.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from docs.test_console import PAGES, shown_on
from support.prose import REPORTS

ROOT = Path(__file__).resolve().parents[2]
FIGURES: dict[str, dict[str, str]] = json.loads(
    Path(__file__).with_name("figures.json").read_text("utf-8")
)
"""Page -> number with unit -> kind and source. A *parameter* is in the file that is named."""

KINDS = ("measured", "published", "simulated", "parameter", "definition", "input")

UNCHECKED = {"programs.md", "clusters.md", "training.md", "nccl.md"}
"""Pages whose numbers are not in this test, in addition to reports."""

UNITS = r"(?:ps|ns|us|ms|s|min|[GTM]B/s|GiB/s|Gb/s|tokens/s|TFLOP/s)"
_TIME = re.compile(rf"(?<![\w.,/-])(\d[\d,]*(?:\.\d+)?) ({UNITS})\b(?!/)")
_SHARE = re.compile(r"(?<![\w.,/-])(\d[\d,]*(?:\.\d+)?)(%)")


def running_text(text: str) -> str:
    """Return the text of a page without blocks, tables, code and targets of links, on one line."""
    text = re.sub(r"^```.*?^```|^\|.*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    return " ".join(re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", text).split())


def numbers(text: str, *, shares: bool) -> list[str]:
    """Return the times and rates of a text, and its percentages if `shares`."""
    running = running_text(text)
    found = [f"{number} {unit}" for number, unit in _TIME.findall(running)]
    return found + [f"{number}%" for number, _ in _SHARE.findall(running) if shares]


@cache
def printed_by_blocks() -> str:
    """Return the outputs of all blocks that a test compares with the command's."""
    readme = re.findall(r"^```text\n(.*?)^```", page("README.md"), re.MULTILINE | re.DOTALL)
    return "\n".join([*readme, *(shown.output for name in PAGES for shown in shown_on(name))])


def page(name: str) -> str:
    return (ROOT / name if name == "README.md" else ROOT / "docs" / name).read_text("utf-8")


def is_printed(number: str) -> bool:
    return re.search(rf"(?<![\d.,]){re.escape(number)}(?!\w)", printed_by_blocks()) is not None


COVERED = [
    "README.md",
    *sorted(
        path.name
        for path in (ROOT / "docs").glob("*.md")
        if path.name not in UNCHECKED and not any(map(path.match, REPORTS))
    ),
]


@pytest.mark.parametrize("name", COVERED)
def test_numbers_are_printed_by_a_tested_block_or_have_a_source(name: str) -> None:
    known = FIGURES.get(name, {})
    for number in numbers(page(name), shares=name in ("README.md", *PAGES)):
        assert number in known or is_printed(number), f"{name}: {number}"


@pytest.mark.parametrize("name", FIGURES)
def test_listed_figures_are_on_their_page_and_in_their_file(name: str) -> None:
    on_page = numbers(page(name), shares=True)
    for number, origin in FIGURES[name].items():
        kind, _, source = origin.partition(": ")
        assert number in on_page, f"{name} no longer has {number}"
        assert kind in KINDS
        assert source
        if kind == "parameter":
            digits = number.split()[0].replace(".", r"\.")
            text = (ROOT / source).read_text("utf-8")
            assert re.search(rf"(?<![\d.]){digits}(?![\d.])", text), f"{number} is not in {source}"


def test_a_number_that_no_block_prints_is_seen() -> None:
    assert numbers("At 1 MiB the kernel needs 17.18 us, 1.5% more.", shares=True) == [
        "17.18 us",
        "1.5%",
    ]
    assert numbers("```text\ntime 17.18 us\n```\n| 3 us |\n`4 us`", shares=True) == []
    assert not is_printed("17.18 us")
    assert is_printed("4.036 ms")
    assert not is_printed("036 ms")
