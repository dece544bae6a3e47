"""The rules of the engine's source text: who includes whom, who touches what, and what comments name."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from support import csources as c

MECHANISMS = ["sim", *(unit for unit in c.UNITS if "state" in c.included(f"{unit}.h"))]


def test_no_file_of_the_engine_is_called_by_what_it_calls() -> None:
    graph = {unit: (c.included(f"{unit}.h") | c.included(f"{unit}.c")) - {unit} for unit in c.UNITS}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"files include each other in a circle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("unit", MECHANISMS)
def test_a_file_includes_what_it_calls(unit: str) -> None:
    called = (c.called(f"{unit}.h") | c.called(f"{unit}.c")) & {*MECHANISMS}
    included = {name for end in (".h", ".c") for name in c.included(unit + end)}
    assert called <= included | {unit}, "a function reached through another file's includes"


@pytest.mark.parametrize("unit", MECHANISMS)
def test_a_file_names_the_parts_that_it_touches(unit: str) -> None:
    names = {f"{unit}.h", f"{unit}.c"}
    included = {part for name in names for part in c.included(name) if part.startswith("parts/")}
    assert included == {f"parts/{part}" for name in names for part in c.touched(name)}


def words() -> set[str]:
    """Return every word of the engine's code, and of the Python that its comments speak of."""
    package = c.CSRC.parent / "pysim" / "clusim"
    python = [package / "engine" / "ranges.py", *(c.CSRC / "bindings").glob("*.py")]
    code = "".join(c.code(str(path)) for path in c.CSRC.rglob("*.[ch]"))
    return set(re.findall(r"\w+", code + "".join(path.read_text("utf-8") for path in python)))


FUNCTION = re.compile(
    rf"(?<![\w.`])(?:{'|'.join(c.UNITS)})_[a-z]\w*\b(?!\.[ch])|\b[a-z]\w+(?=\(\))"
)


@pytest.mark.parametrize("path", sorted(c.CSRC.rglob("*.[ch]")), ids=lambda path: str(path.name))
def test_comments_name_what_exists(path: Path) -> None:
    comments = " ".join(re.findall(r"/\*.*?\*/", c.text(str(path)), re.S))
    named = set(FUNCTION.findall(comments)) | set(re.findall(r"`(\w+)`", comments))
    assert named <= words()


def test_the_page_on_the_engine_names_functions_and_files_that_exist() -> None:
    page = (c.CSRC.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    engine = page.partition("## The engine")[2].partition("\n## ")[0]
    quoted = re.findall(r"`(?:(\w+)\.c:)?(\w+)`", engine)
    assert {name for _, name in quoted if "_" in name} <= words() | {
        *c.UNITS,
        "fuzz_image",
        "starve_image",
        "test_faults",
    }
    assert {unit for unit, _ in quoted if unit} <= {*c.UNITS}
    assert all(name in c.code(f"{unit}.c") for unit, name in quoted if unit)


def test_comments_that_name_what_does_not_exist_are_seen() -> None:
    assert FUNCTION.findall("as node_defer sorts (node_defer.c: node_settle), or f() does") == [
        "node_defer",
        "node_settle",
    ]
