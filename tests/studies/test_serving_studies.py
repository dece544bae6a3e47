"""Studies of serving runs: sweeps over keys of the file, and changes of a baseline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import clusim
from clusim.base.errors import ClusimError
from clusim.serving.api import serve, serve_request
from clusim.simulation.setup import Setup
from clusim.simulation.speed import speed_of
from clusim.studies.plan.serving import MEMORY, ServingSpace, plan_serving, write_serving
from clusim.studies.sweep import read_grid, sweep
from clusim_cli.main import run

FILE = """
topology: dgx-a100
model: llama3-8b
requests: {input: 64, output: 8, concurrency: 2, count: 4}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_a_row_of_a_sweep_is_the_run_with_its_keys(file: Path, tmp_path: Path) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        "serve: {serving: small.yaml, change: {parallel.tensor: [1, 2]}}", encoding="utf-8"
    )
    report = sweep(read_grid(grid), tmp_path / "out.csv", jobs=1)
    assert report.grid.axes == ("change.parallel.tensor",)
    for row in report.rows:
        result = clusim.serve(file, changes={"parallel.tensor": row["change.parallel.tensor"]})
        assert row["gpus"] == result.gpus
        assert row["ttft_ms"] == pytest.approx(result.ttft.mean * 1e3, abs=1e-3)
        assert row["tpot_ms"] == pytest.approx(result.tpot.mean * 1e3, abs=1e-3)


def test_a_mistake_in_a_block_has_its_place(file: Path, tmp_path: Path) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text("serve: {serving: small.yaml, change: {parallel.tensr: 2}}", encoding="utf-8")
    with pytest.raises(ClusimError, match="tensr"):
        read_grid(grid)
    grid.write_text("serve: {serving: small.yaml, size: 2}", encoding="utf-8")
    with pytest.raises(ClusimError, match="unknown key"):
        read_grid(grid)


def test_changes_of_a_served_model(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hosts of half the time shorten a request by half the host's time; the baseline is the command's run."""
    changes = ["host x2", "compute x2", "--concurrency 1", "parallel.tensor=3"]
    assert run(["what-if", f"serve {file}", *changes, "--json", "--no-progress"]) == 2
    result = json.loads(capsys.readouterr().out)
    base_ps = result["baseline"][0]["time_ps"]
    one = clusim.serve(file)
    assert base_ps == pytest.approx(one.latency.mean * 1e12, abs=1)
    hosts, kernels, load, cut = (row["planned"] for row in result["rows"])
    parts = {part.name: part.time_ms for part in one.verdict.ttft}
    per_token = {part.name: part.time_ms for part in one.verdict.tpot}
    assert base_ps - hosts["time_ps"] >= (parts["host"] + 7 * per_token["host"]) / 2 * 0.99e9
    assert kernels["time_ps"] < base_ps
    assert load["time_ps"] < base_ps
    assert "does not divide" in cut["error"]


def test_what_cannot_be_faster_has_the_reason(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["what-if", f"serve {file}", "hbm x2"]) == 2
    assert "links, compute and host can be faster" in capsys.readouterr().err


def test_loads_are_drawn(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "loads.svg"
    assert (
        run(["serve", str(file), "--concurrency", "1,2", "--plot", str(target), "--no-progress"])
        == 0
    )
    text = target.read_text(encoding="utf-8")
    assert "<svg" in text
    assert run(["serve", str(file), "--plot", str(target)]) == 2


def test_layouts_are_ranked_by_requests_within_limits_for_each_gpu(
    file: Path, tmp_path: Path
) -> None:
    target = tmp_path / "best.yaml"
    found = plan_serving(file, "a100x4-mesh", estimates=2)
    write_serving(found.runs[0], target)
    # One, two or four ranks in tensors and stages: 1x1, 2x1, 1x2, 4x1, 2x2, 1x4.
    assert found.layouts == 6
    assert not found.omitted
    goods = [row.good_per_s_per_gpu for row in found.runs]
    assert goods == sorted(goods, reverse=True)
    again = serve(target)
    assert again.good_per_s / again.gpus == pytest.approx(goods[0])


def test_layouts_that_lack_memory_are_counted(tmp_path: Path) -> None:
    """141 GB of weights need two GPUs of 80 GB, by tensors or stages: one is too few."""
    path = tmp_path / "large.yaml"
    path.write_text(
        "model: llama3-70b\nrequests: {input: 64, output: 8, concurrency: 2, count: 4}\n",
        encoding="utf-8",
    )
    space = ServingSpace(path, Setup("dgx-h100"))
    layouts = [layout.prefill.parallel for layout in space.fitting()]
    assert min(one.tensor * one.pipeline for one in layouts) == 2
    assert space.omitted == {MEMORY: space.count - len(layouts)}
    assert space.count == 10


def test_pools_share_the_nodes(file: Path) -> None:
    space = ServingSpace(file, Setup("a100x4-mesh", 2))
    pools = [layout for layout in space.layouts() if layout.decode is not None]
    assert len(pools) == 9
    for layout in pools:
        assert layout.prefill.replicas * layout.prefill.parallel.tensor == 4


def test_the_command_ranks_layouts(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", str(file), "a100x4-mesh", "--serve", "--estimates", "1", "--no-progress"]
    assert run(words) == 0
    assert "6 layouts, 6 fit" in capsys.readouterr().out
    assert run([*words, "--batch", "4"]) == 2
    assert "--serve: only with" in capsys.readouterr().err


def test_other_traffic_keeps_its_rate_on_faster_links() -> None:
    """Links of twice the rate have half the load; at half the rate 60 % would be 120 %."""
    request = serve_request("llama3-8b-shared-nics")
    systems = {}
    for factor in ("x2", "x1/2"):
        speed = speed_of(f"infiniband {factor}")
        assert speed is not None
        systems[factor] = Setup(speed.machine(request.setup.fabric))
    traffic = request.on_links(systems["x2"]).spec.beside
    assert traffic is not None
    assert traffic.load == pytest.approx(0.3)
    with pytest.raises(ClusimError, match="needs 120% of these links"):
        request.on_links(systems["x1/2"])
