"""Time to accuracy: epochs that grow with the batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import clusim
from clusim.base.errors import ClusimError
from clusim.simulation.setup import Setup
from clusim.training import scaling, training_report
from clusim.training.convergence import epochs_of
from clusim.training.request import TrainRequest
from clusim_cli.main import run
from support.workloads import ideal, tiny

TABLE = "convergence: {samples: 8000, by_batch: {2: 10, 8: 20, 32: 40}}"
LAW = "convergence: {samples: 8000, epochs: 10, critical_batch: 16}"


def at(batch: int, text: str = TABLE) -> float:
    return epochs_of(tiny(text, batch=f"{{global: {batch}, micro: 1}}"))


def test_epochs_are_those_of_the_table_and_between_its_rows_by_the_logarithm() -> None:
    assert [at(batch) for batch in (2, 8, 32)] == [10, 20, 40]
    assert at(4) == pytest.approx(15)
    assert at(16) == pytest.approx(30)


def test_a_critical_batch_doubles_the_epochs() -> None:
    assert at(16, LAW) == pytest.approx(20)
    assert at(1, LAW) == pytest.approx(10 * 17 / 16)
    assert at(64, "convergence: {samples: 8000, epochs: 10}") == 10


def test_a_batch_outside_the_table_is_refused() -> None:
    with pytest.raises(
        ClusimError, match=r"convergence.by_batch: batch 64 is outside 2 to 32; add"
    ):
        at(64)
    with pytest.raises(ClusimError, match="set epochs, with critical_batch"):
        tiny("convergence: {samples: 1, by_batch: {2: 10}, critical_batch: 4}")


def test_replicas_beyond_the_useful_batch_do_not_save_time() -> None:
    """Weak scaling: twice the batch halves the steps of an epoch, and needs more epochs."""
    work = tiny(TABLE, batch="{global: 32, micro: 4}")
    rows = scaling(TrainRequest(Setup(ideal(8)), work, steps=1), (2, 8), "weak")
    found = [row.step.convergence for row in rows]
    assert found[0] is not None
    assert found[1] is not None
    assert (found[0].epochs, found[0].steps) == (20, 20 * 1000)
    assert (found[1].epochs, found[1].steps) == (40, 40 * 250)
    for row, each in zip(rows, found, strict=True):
        assert each is not None
        assert each.time_s == pytest.approx(each.steps * row.step_time_s, rel=1e-4, abs=1e-3)
    # Four times the GPUs save half of the steps only.
    assert found[1].time_s == pytest.approx(found[0].time_s / 2, rel=0.05)


def test_scaling_prints_epochs_and_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "topology: dgx-a100\nmodel: {base: mlp, sizes: [256, 256]}\nbatch: {global: 8, micro: 4}\n"
        f"parallel: {{data: 2}}\n{TABLE}\n"
    )
    (tmp_path / "work.yaml").write_text(text, "utf-8")
    words = ["train", str(tmp_path / "work.yaml"), "--scaling", "weak", "--replicas", "2,4"]
    assert run([*words, "--estimate"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.endswith(" epochs    to accuracy")
    assert [row.split()[-3] for row in rows[:2]] == ["20", "30"]
    assert run([*words, "--estimate", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["convergence"]["epochs"] for row in data] == [20, 30]
    one = clusim.train(tiny(LAW, batch="{global: 8, micro: 1}"), ideal(8), steps=1)
    assert "\n  to accuracy  " in training_report(one)
