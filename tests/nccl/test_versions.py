"""Releases of NCCL: what they do differently is said in one place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import clusim
from clusim import topology
from clusim.base.datafiles import read
from clusim.nccl import communicator, parse_version
from clusim.nccl.constants import FEATURES, LATEST, OLDEST, Version, later_notes, since

ROOT = Path(clusim.__file__).parent
HOME = ROOT / "nccl" / "versions.py"


Trees = dict[Path, ast.Module]


@pytest.fixture(scope="module")
def trees() -> Trees:
    """Return all sources of the package, parsed."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py")}


def texts(trees: Trees) -> Iterator[str]:
    for path, tree in trees.items():
        if path != HOME:
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def test_every_feature_makes_a_difference_somewhere(trees: Trees) -> None:
    of_speeds = {row["since"] for row in read(ROOT / "nccl" / "releases.yaml")["speeds"]}
    assert set(FEATURES) <= {*texts(trees), *of_speeds}


def test_every_feature_that_is_asked_for_is_listed(trees: Trees) -> None:
    asked = {
        node.args[1].value
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "since"
        and isinstance(node.args[1], ast.Constant)
    }
    assert asked
    assert asked <= set(FEATURES)


def test_no_release_is_compared_with_a_number_elsewhere(trees: Trees) -> None:
    """But in the table of constants, where a row begins with the first release that has them."""
    for path, tree in trees.items():
        numbers = [
            ast.unparse(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.Compare)
            and any(
                isinstance(side, ast.Tuple) and "(2, " in ast.unparse(side)
                for side in node.comparators
            )
        ]
        assert path == HOME or not numbers, path


def test_features_are_there_from_their_release_on() -> None:
    for feature, (major, minor) in FEATURES.items():
        assert OLDEST < Version(major, minor) <= LATEST
        assert since(Version(major, minor), feature)
        assert not since(Version(major, minor - 1), feature)
    assert list(FEATURES.values()) == sorted(FEATURES.values()), "sorted by release"


@pytest.mark.parametrize(
    ("release", "changes"),
    [
        ("2.30", 0),
        ("2.30.7", 0),
        ("2.31.2", 1),
        ("2.32.3", 4),
    ],
)
def test_later_releases_name_the_changes_that_are_not_modelled(release: str, changes: int) -> None:
    notes = later_notes(parse_version(release))
    assert len(notes) == bool(changes)
    for note in notes:
        assert note.startswith(
            f"NCCL {release}: planned as 2.30; not modelled: algorithms and CTAs"
        )
        assert len(note.partition("not modelled: ")[2].split("; ")) == changes


def test_a_plan_of_a_later_release_has_the_note_and_is_the_newest_plan() -> None:
    fabric = topology.load("dgx-h100")
    new, old = (communicator(fabric, parse_version(text)) for text in ("2.32.3", "2.30"))
    assert any("cost model of symmetric kernels on Blackwell" in note for note in new.notes)
    assert new.table.costs == old.table.costs
