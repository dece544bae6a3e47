"""The pages for newcomers: what they say is done in a copy of the project, and what they show comes out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.names import exists, quoted
from support.pages import ROOT, Copy, Page, follow

PAGES = [Page(path.name) for path in sorted((ROOT / "docs").glob("add-a*.md"))]
MECHANISM = "add-a-mechanism.md"
"""A fourth file by design: the contract, a test, and two engines."""
FOLLOWED = [page for page in PAGES if any(block.language == "console" for block in page.blocks())]


@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.name)
def test_what_a_page_says_works(page: Page, tmp_path: Path) -> None:
    most = 4 if page.name == MECHANISM else 3
    assert 1 <= len(page.files()) <= most, "a newcomer's task touches three files at most"
    follow(page, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_fits_on_a_screen_or_two(page: Page) -> None:
    assert len(page.text.splitlines()) <= 90
    prose = re.sub(r"^```\w+\n.*?^```$|^\|[^\n]*$", "", page.text, flags=re.MULTILINE | re.DOTALL)
    assert max(map(len, prose.splitlines())) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists_or_is_in_its_example(page: Page) -> None:
    """But for files of NCCL, and places for names."""
    example = " ".join(f"{block.file} {block.text}" for block in page.blocks())
    for text in quoted(page.text):
        there = exists(text) or text in example or text.startswith("src/") or "<" in text
        assert there or set(re.findall(r"\w+", text)) <= set(re.findall(r"\w+", example)), text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.parametrize("index", ["docs/README.md", "CONTRIBUTING.md"])
def test_a_page_is_found_from_the_pages_that_list_pages(index: str, page: Page) -> None:
    assert f"{page.name})" in (ROOT / index).read_text(encoding="utf-8")


def test_a_page_that_is_out_of_date_is_seen(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    copy.look("$ clusim --version\nclusim ...\n")
    with pytest.raises(AssertionError, match="is not in"):
        copy.look("$ clusim --version\nclusim 0.0.0\n")
    with pytest.raises(AssertionError, match=r"No such command|no command"):
        copy.look("$ clusim way 0 1\n")
    with pytest.raises(AssertionError, match="has 0 times"):
        copy.change("cli/clusim_cli/main.py", " EXIT_BUG = 71\n+EXIT_OTHER = 72\n")
    with pytest.raises(AssertionError, match="exists already"):
        copy.add("cli/clusim_cli/main.py", "")
