"""The site that `make docs` builds: no page or public name is missing, no link astray, nothing is from a network."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRONTS = (
    "clusim.collectives",
    "clusim.base.errors",
    "clusim.topology",
    "clusim.results.result",
    "clusim.schedule",
)
"""Modules all of whose public names have a place in the reference, beside those of `clusim` itself."""


class Page(HTMLParser):
    """What a page leads to, what it loads, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Sort the attributes of an element."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon"):
            self.loaded.append(given["href"])
        if tag in ("script", "img", "iframe", "source") and "src" in given:
            self.loaded.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build as `make docs` does; a warning, such as a link between pages that leads nowhere, is an error."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, "-c", "docs/site", "-d", target / "doctrees", ".", target / "html"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return target / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def test_every_page_of_the_documentation_is_on_the_site(site: Path) -> None:
    sources = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "docs").rglob("*.ipynb"),
    ]
    for source in sources:
        assert (site / source.relative_to(ROOT)).with_suffix(".html").is_file(), source


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    from sphinx.util.inventory import InventoryFile  # a second of imports

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    told = {
        name for kind, names in inventory.data.items() if kind.startswith("py:") for name in names
    }
    # A name has one place, in the module that people are told to import it from.
    last = {name.rpartition(".")[2] for name in told}
    for front in ("clusim", *FRONTS):
        module = import_module(front)
        named = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == front
        ]
        public = [name for name in named if callable(getattr(module, name)) and name[0] != "_"]
        assert public
        assert {
            name for name in public if f"{front}.{name}" not in told and name not in last
        } == set()


def test_links_within_the_site_lead_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    seen = 0
    for path, page in pages.items():
        for link in page.links:
            target, anchor = urldefrag(link)
            if re.match(r"[a-z]+:", target):
                continue
            there = (path.parent / unquote(target)).resolve() if target else path
            assert there.exists(), f"{path.relative_to(site)}: {link}"
            if anchor and there in pages:
                assert unquote(anchor) in pages[there].anchors, f"{path.relative_to(site)}: {link}"
            seen += 1
    assert seen > 1000


def test_pages_load_nothing_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        for name in page.loaded:
            assert not re.match(r"([a-z]+:)?//", name), f"{path.relative_to(site)}: {name}"
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style
