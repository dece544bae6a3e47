"""Public curves of slow systems, whose cause is known: where `nccl-tests --against` ranks it.

A file of ``curves/`` names its source, the command that compares it, the known cause (a title of a hypothesis, or *not
simulated*), its rank, and the first cause. Ranks are pinned as they are: a model change that moves one is reviewed.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusim.nccltests.sweep import program_named
from clusim.validation.collectives import causes
from clusim.validation.collectives.hypotheses import Hypothesis
from clusim.validation.collectives.measuredcurve import read_curve
from clusim_cli.main import run
from support.covering import THOROUGH

CURVES = sorted((Path(__file__).parent / "curves").glob("*.txt"))
QUICK = ("a100-vm-acs",)
"""Curves that are compared in every test run, with `RIVALS` only."""
RIVALS = ("ACS on (PCIe peers through the root complex)", "one NIC down", "no GPUDirect RDMA")


def head(path: Path) -> dict[str, str]:
    lines = re.findall(r"^# (\w+): (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(lines)


def compared(path: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    words = shlex.split(head(path)["command"].replace("FILE", str(path)))
    assert words[:2] == ["clusim", "nccl-tests"]
    capsys.readouterr()
    assert run([*words[1:], "--json", "--no-progress"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["against"]["hypotheses"]
    return found


def test_there_are_six_curves_with_sources_and_causes() -> None:
    assert len(CURVES) >= 6
    for path in CURVES:
        about = head(path)
        assert about["source"].startswith("https://github.com/"), path.name
        assert {"command", "cause", "rank", "first"} <= about.keys(), path.name
        assert (about["rank"] == "0") == (about["cause"] == "not simulated"), path.name
        program = shlex.split(about["command"])[2].removesuffix("_perf")
        assert read_curve(path, program_named(program)).times_us


@pytest.mark.parametrize("name", [path.stem for path in CURVES] if THOROUGH else QUICK)
def test_the_known_cause_has_its_rank(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = next(path for path in CURVES if path.stem == name)
    if not THOROUGH:
        every = causes.hypotheses

        def few(*given: Any) -> Iterator[Hypothesis]:
            return (item for item in every(*given) if item.title in RIVALS)

        monkeypatch.setattr(causes, "hypotheses", few)
    about, found = head(path), compared(path, capsys)
    titles = [item["titles"] for item in found]
    assert about["first"] in titles[0], titles
    if about["cause"] != "not simulated":
        rank = next(n for n, names in enumerate(titles, 1) if about["cause"] in names)
        assert rank == int(about["rank"]), titles
    if name in QUICK:
        assert found[0]["misfit_pct"] < 3 < found[1]["misfit_pct"]
