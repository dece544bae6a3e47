"""The pages for newcomers: what they say is done in a copy of the project, and what they show comes out."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.names import exists, quoted
from support.pages import ROOT, Copy, Page, follow

PAGES = [Page(path.name) for path in sorted((ROOT / "docs").glob("add-a*.md"))]
MECHANISM = "add-a-mechanism.md"
"""A fourth file by design: the contract, a test, and two engines."""
PACKAGE = Page("add-a-package.md")
"""Its package is installed, not added to a copy of the project."""
FOLLOWED = [
    page
    for page in PAGES
    if page != PACKAGE and any(block.language == "console" for block in page.blocks())
]


@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.name)
def test_what_a_page_says_works(page: Page, tmp_path: Path) -> None:
    most = 4 if page.name == MECHANISM else 3
    assert 1 <= len(page.files()) <= most, "a newcomer's task touches three files at most"
    follow(page, tmp_path)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the package of the page, the files of the other pages, and `installed`, where pip put it."""
    place = tmp_path_factory.mktemp("package")
    pages = [
        PACKAGE,
        *(Page(f"add-a-{name}.md") for name in ("chip", "reader", "collective", "policy")),
    ]
    blocks = [block for page in pages for block in page.blocks() if block.file]
    texts = {Path(block.file).name: block.text for block in reversed(blocks)}
    source = place / "clusim-ours"
    (source / "clusim_ours" / "gpus").mkdir(parents=True)
    files = [
        "pyproject.toml",
        *(f"clusim_ours/{name}.py" for name in ("rack", "steps", "doubling", "aimd")),
    ]
    for name in [*files, "clusim_ours/gpus/a100-sxm-64gb.yaml"]:
        (source / name).write_text(texts[Path(name).name], encoding="utf-8")
    (place / "ours.steps").write_text(texts["ours.steps"], encoding="utf-8")
    (place / "ours.rack").write_text("rack 4\n", encoding="utf-8")
    leonardo = next(
        block.text for block in pages[1].blocks() if block.text.startswith("name: leonardo")
    )
    (place / "leonardo.yaml").write_text(leonardo, encoding="utf-8")
    words = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    target = ["--target", str(place / "installed"), str(source)]
    pip = [sys.executable, "-m", "pip", "install", *words, *target]
    subprocess.run(pip, check=True, cwd=place)
    return place


def clusim(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run clusim in a folder, with the package of the page."""
    command = [sys.executable, "-m", "clusim", *words]
    env = {**os.environ, "PYTHONPATH": str(place / "installed")}
    return subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=300)


def test_a_package_adds_a_chip_a_reader_a_topology_an_algorithm_and_a_policy(
    installed: Path,
) -> None:
    for block in PACKAGE.blocks():
        printed = ""
        for line in block.text.splitlines() if block.language == "console" else ():
            if line.startswith("$ clusim "):
                done = clusim(installed, *shlex.split(line)[2:])
                assert done.returncode == 0, done.stderr
                printed = done.stdout
            elif not line.startswith("$ pip "):
                assert f"\n{line.removesuffix(' ...')}" in f"\n{printed}"


def test_names_of_a_package_are_listed(installed: Path) -> None:
    help_text = clusim(installed, "run", "dgx-a100", "--algorithm", "doublign").stderr
    assert "did you mean 'doubling'" in help_text
    policies = clusim(installed, "policy", "check", "aimdd").stderr
    assert "did you mean 'aimd'" in policies
    assert "steps" in clusim(installed, "replay", "ours.steps", "--kind", "nosuch").stderr
    assert "rack" in clusim(installed, "topo", "import", "ours.rack", "--kind", "nosuch").stderr
    shown = clusim(installed, "topo", "show", "leonardo.yaml", "--figures").stdout
    assert "description of the Leonardo computer" in shown


def test_a_broken_package_is_one_line_with_its_name(installed: Path) -> None:
    """An import that fails, and a reader that fails in its work."""
    package = installed / "installed" / "clusim_ours"
    reader, text = package / "steps.py", (package / "steps.py").read_text(encoding="utf-8")
    begin = "clusim: clusim-ours: entry point steps of clusim.recordings: "
    try:
        reader.write_text("import nosuch_module\n", encoding="utf-8")
        done = clusim(installed, "replay", "ours.steps", "--topology", "a100x4-mesh")
        assert done.returncode == 2
        assert done.stderr == begin + "ModuleNotFoundError: No module named 'nosuch_module'\n"
        reader.write_text(
            text.replace("    name = only_file", "    1 / 0\n    name = only_file"),
            encoding="utf-8",
        )
        done = clusim(installed, "replay", "ours.steps", "--topology", "a100x4-mesh")
        assert done.returncode == 2
        assert done.stderr.startswith(begin + "ZeroDivisionError: division by zero (steps.py:")
        assert len(done.stderr.splitlines()) == 1
    finally:
        reader.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_fits_on_a_screen_or_two(page: Page) -> None:
    assert len(page.text.splitlines()) <= 95
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
