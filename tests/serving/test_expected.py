"""Expected errors of serving runs: by engine and chip, else by engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusim.serving import expected
from clusim.serving.expected import SERVING_DATA, ServingCampaign, expected_error
from clusim.simulation.residuals import known_campaigns
from clusim.validation.measured import CAMPAIGN_ROWS


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two campaigns of an engine, one of another."""
    columns = ["engine", "chip", "n", "median_abs_pct", "bias_pct"]
    campaigns = [
        ["vllm", "a", 10, 4.0, -2.0],
        ["vllm", "b", 30, 8.0, 2.0],
        ["sglang", "a", 8, 9.0, 1.0],
    ]
    path = tmp_path / "accuracy.json"
    path.write_text(json.dumps({"columns": columns, "campaigns": campaigns}), encoding="utf-8")
    monkeypatch.setattr(expected, "SERVING_DATA", path)


@pytest.mark.usefixtures("data")
def test_an_error_is_that_of_engine_and_chip() -> None:
    error = expected_error("vllm", "a")
    assert error is not None
    assert (error.n, error.median_abs_pct, error.bias_pct) == (10, 4.0, -2.0)
    assert (
        error.text() == "TPOT 4% either way in the median of 10 public runs of vllm on a (bias -2%)"
    )


@pytest.mark.usefixtures("data")
def test_other_chips_have_the_mean_of_the_engine_by_runs() -> None:
    """(10 x 4 + 30 x 8) / 40 = 7, (-20 + 60) / 40 = 1."""
    error = expected_error("vllm", "c")
    assert error is not None
    assert (error.chip, error.n, error.median_abs_pct, error.bias_pct) == ("", 40, 7.0, 1.0)
    assert "other chips" in error.text()
    assert expected_error("trtllm", "a") is None


def test_shipped_campaigns_have_enough_rows() -> None:
    campaigns = known_campaigns(SERVING_DATA, ServingCampaign)
    assert {item.engine for item in campaigns} >= {"vllm", "trtllm"}
    assert all(item.n >= CAMPAIGN_ROWS for item in campaigns)
