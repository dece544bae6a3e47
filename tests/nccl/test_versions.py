"""Releases of NCCL: what they do differently is said in one place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import clusim
from clusim.hardware.datafiles import read
from clusim.nccl.constants import FEATURES, LATEST, OLDEST, Version, since

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
