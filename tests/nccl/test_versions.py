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
from clusim.nccl.constants import (
    FEATURES,
    NEWEST,
    OLDEST,
    Version,
    later_notes,
    nvlink_GBps,
    since,
    speeds,
)
from clusim.nccl.tables import tables_for

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
        assert OLDEST < Version(major, minor) <= NEWEST
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
        ("2.33", 4),
    ],
)
def test_later_releases_name_the_changes_that_are_not_modelled(release: str, changes: int) -> None:
    notes = later_notes(parse_version(release))
    assert len(notes) == bool(changes)
    for note in notes:
        known = "2.31" if release == "2.31.2" else "2.32"
        start = f"NCCL {release}: planned as 2.30, with constants of {known}; not modelled: CTA policies"
        assert note.startswith(start)
        assert len(note.partition("not modelled: ")[2].split("; ")) == changes


def test_plan_of_a_later_release_on_hopper_is_the_newest_with_a_note() -> None:
    fabric = topology.load("dgx-h100")
    new, old = (communicator(fabric, parse_version(text)) for text in ("2.32.3", "2.30"))
    assert any("rails and planes of ConnectX-9" in note for note in new.notes)
    assert new.table.costs == old.table.costs


def test_2_32_raises_two_ceilings_of_blackwell() -> None:
    """Data of nvidia-nccl-cu12 2.32.3: LL on one node 282.4 GB/s, a tree's LL128 channel on two 36.7."""
    old, middle, new = (tables_for(parse_version(text)) for text in ("2.30", "2.31", "2.32"))
    assert old == middle
    assert (old.ll_GBps[3][0], new.ll_GBps[3][0]) == (282.0, 282.4)
    assert (old.tree_ll128_GBps[3][1], new.tree_ll128_GBps[3][1]) == (31.67, 36.7)
    assert [old.ll_GBps[:3], old.tree_ll128_GBps[:3]] == [new.ll_GBps[:3], new.tree_ll128_GBps[:3]]


def test_2_31_searches_another_bandwidth_of_blackwell_and_2_32_those_of_rubin() -> None:
    v30, v31, v32 = (parse_version(text) for text in ("2.30", "2.31", "2.32"))
    extra = set(speeds(100, v31, inter=True)) - set(speeds(100, v30, inter=True))
    assert extra == {90.2}
    assert speeds(100, v31, inter=False) == speeds(100, v30, inter=False)
    assert speeds(107, v31, inter=False) == speeds(100, v31, inter=False)
    assert speeds(107, v32, inter=False)[0] == speeds(107, v32, inter=True)[0] == 9 * 31.2
    assert [nvlink_GBps(107, version) for version in (v31, v32)] == [40.1, 31.2]
