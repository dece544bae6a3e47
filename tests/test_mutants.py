"""Mutation scores: changes are made, and laws notice those that matter."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from support.mutants import ROOT, TESTED, Mutant, install, mutants

SOURCE = '''
def double(x):
    """Return twice a number from 3 on."""
    if x < 3 or x is None:
        return 0
    return max(x, 1) * 2

class Holder:
    @property
    def size(self):
        return 7
'''


def test_every_change_is_made_once_in_functions_only() -> None:
    found = sorted(each.text for each in mutants(SOURCE))
    assert found == [
        "-> min", "0 -> 1", "1 -> 2", "2 -> 3", "3 -> 4", "7 -> 8", "Is -> IsNot", "Lt -> LtE", "Mult -> FloorDiv",
        "or -> and",
    ]  # fmt: skip


def test_importers_see_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mutated_sample.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("mutated_sample")
    double, holder = module.double, module.Holder()
    assert (double(4), holder.size) == (8, 7)
    by_text: dict[str, Mutant] = {each.text: each for each in mutants(SOURCE)}
    install(module, by_text["2 -> 3"])
    assert double(4) == 12
    install(module, by_text["7 -> 8"])
    assert (double(4), holder.size) == (8, 8)


def test_every_room_has_a_module_with_a_score() -> None:
    rooms = set(json.loads((ROOT / "tests" / "rooms.json").read_text(encoding="utf-8"))["rooms"])
    assert {name.split(".")[1] for name in TESTED} == rooms - {"clusim", "clusim_formats"}
    for files, least in TESTED.values():
        assert all((ROOT / name.partition("::")[0]).exists() for name in files)
        assert 0 < least <= 100
