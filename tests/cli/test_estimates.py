"""Estimates on the command line: `clusim train --estimate`, sweeps of them, and what they keep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Clusim
from clusim.base.kept import PLACE
from clusim.studies.sweep import read_grid
from clusim.studies.sweep.grid import answer_point

WORK = """
model: {base: gpt3-1.3b, layers: 2, hidden: 256, heads: 8, head_size: 32, kv_heads: 8, intermediate: 1024, vocab: 1024}
topology: dgx-a100
sequence: 128
batch: {global: 16, micro: 1}
parallel: {tensor: 2, pipeline: 2}
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PLACE, str(tmp_path / "kept"))
    path = tmp_path / "work.yaml"
    path.write_text(WORK)
    return path


def test_an_estimate_has_the_breakdown_of_a_step(clusim: Clusim, work: Path) -> None:
    real = json.loads(clusim("train", str(work), "--steps", "1", "--json").out)
    found = json.loads(clusim("train", str(work), "--steps", "1", "--estimate", "--json").out)
    assert real.keys() - found.keys() == {
        *("broken_wires", "busiest_wires", "fingerprint", "folded", "granularity", "tasks"),
    }
    assert found["step_time_s"] == pytest.approx(real["step_time_s"], rel=0.1)
    text = clusim("train", str(work), "--steps", "1", "--estimate").out
    assert "all simulated before" in text
    counted = json.loads(clusim("cache", "--json").out)
    # Parts of both passes: in coarse bursts, and again in finer ones.
    assert counted["parts"] >= found["estimate"]["parts_simulated"] > 0
    clusim("cache", "--clear")
    assert json.loads(clusim("cache", "--json").out)["parts"] == 0


@pytest.mark.parametrize("option", [("--fold", "none"), ("--trace-out", "t.h5")])
def test_an_estimate_has_nothing_to_fold_or_to_trace(
    clusim: Clusim, work: Path, option: tuple[str, str]
) -> None:
    found = clusim("train", str(work), "--estimate", *option)
    assert found.code == 2
    assert "not with --fold or --trace-out" in found.err


def test_points_of_a_sweep_share_the_parts_of_estimates(clusim: Clusim, work: Path) -> None:
    grid = work.with_name("grid.yaml")
    grid.write_text(
        "train:\n  workload: work.yaml\n  steps: 1\n  estimate: true\n"
        "  change: {batch.global: [16, 32, 64]}\n"
    )
    rows, kept = [], []
    for point in read_grid(grid).points:
        rows.append(answer_point(point))
        kept.append(json.loads(clusim("cache", "--json").out)["parts"])
    assert [row["microbatches"] for row in rows] == [8, 16, 32]
    assert kept[0] == kept[1] == kept[2] > 0
    first, second, third = (float(str(row["step_time_s"])) for row in rows)
    # Every eight microbatches more take as long.
    assert third - second == pytest.approx(2 * (second - first), rel=1e-6)
