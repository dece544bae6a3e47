"""Grids: what is an axis, what is a value, and what is wrong with a file that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim.base.errors import ClusimError
from clusim.simulation.request import Request
from clusim.studies.sweep import SweepGrid, grid, read_grid
from clusim.studies.sweep.keys import BLOCKS
from clusim.training.request import TrainRequest


def grid_of(folder: Path, text: str) -> SweepGrid:
    path = folder / "grid.yaml"
    path.write_text(text, encoding="utf-8")
    return read_grid(path)


def test_every_list_is_an_axis_and_the_last_changes_fastest(tmp_path: Path) -> None:
    found = grid_of(tmp_path, "run: {topology: dgx-a100, nodes: [1, 2], size: [1KiB, 2KiB]}")
    assert [dict(point.given) for point in found.points] == [
        {"topology": "dgx-a100", "nodes": nodes, "size": size}
        for nodes in (1, 2)
        for size in (1024, 2048)
    ]
    assert found.axes == ("nodes", "size")


def test_a_list_in_a_list_is_one_value(tmp_path: Path) -> None:
    faults = "[[], [plane nvswitch0 down, rank 1 slow x2]]"
    text = f"run: {{topology: dgx-a100, size: 1KiB, ranks: [[0, 1], 0-3], fault: {faults}}}"
    found = grid_of(tmp_path, text)
    requests = [point.request for point in found.points]
    assert [request.setup.ranks for request in requests] == [(0, 1)] * 2 + [(0, 1, 2, 3)] * 2
    assert [len(request.setup.faults) for request in requests] == [0, 2, 0, 2]
    assert dict(found.points[1].given)["fault"] == "plane nvswitch0 down; rank 1 slow x2"


def test_words_mean_what_they_mean_for_run(tmp_path: Path) -> None:
    text = """
    run:
      topology: dgx-a100
      collective: AllGather
      size: 64M
      algorithm: ring
      protocol: LL128
      channels: 4
      dtype: fp16
      redop: ncclMax
      root: 3
      granularity: 64KiB
      seed: 7
      env: {NCCL_DEBUG: INFO}
      nccl_version: 2.19.3
      symmetric: true
    """
    request = grid_of(tmp_path, text).points[0].request
    assert isinstance(request, Request)
    assert (request.operation, request.size_bytes) == ("all_gather", 64 << 20)
    assert (request.algorithm, request.protocol, request.channels) == ("ring", "ll128", 4)
    assert (request.dtype, request.redop, request.root) == ("float16", "max", 3)
    assert (request.granularity, request.seed) == (65536, 7)
    assert request.setup.env[0] == ("NCCL_DEBUG", "INFO")
    assert len(request.setup.env) == 2  # and that windows are registered
    assert request.setup.version == "2.19.3"


def test_changes_reach_the_workload(tmp_path: Path) -> None:
    text = """
    train:
      workload: megatron-22b
      steps: 1
      change: {parallel.tensor: [4, 8], model.layers: 2, batch.micro: 2}
    """
    found = grid_of(tmp_path, text)
    assert found.axes == ("change.parallel.tensor",)
    requests = [point.request for point in found.points]
    assert all(isinstance(request, TrainRequest) for request in requests)
    works = [request.workload for request in requests if isinstance(request, TrainRequest)]
    assert [work.parallel.tensor for work in works] == [4, 8]
    assert [(work.model.base, work.model.layers) for work in works] == [("megatron-22b", 2)] * 2
    assert [work.batch.micro for work in works] == [2, 2]


def test_a_point_that_is_named_twice_is_one(tmp_path: Path) -> None:
    text = "run: [{topology: dgx-a100, size: [1KiB, 1024]}, {size: 1KiB, topology: dgx-a100}]"
    assert len(grid_of(tmp_path, text).points) == 1


def test_files_are_looked_for_beside_the_grid(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("machine", encoding="utf-8")
    found = grid_of(tmp_path, "run: {topology: [mine.yaml, dgx-a100], size: 1KiB}")
    names = [str(point.request.setup.topology) for point in found.points]
    assert names == [str(tmp_path / "mine.yaml"), "dgx-a100"]


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("name", "count"), [("allreduce", 20), ("bert-plans", 8)])
def test_grids_that_are_shipped_are_grids(name: str, count: int) -> None:
    assert len(read_grid(ROOT / "traces" / "sweeps" / f"{name}.yaml").points) == count


def test_the_grid_of_the_page_is_one_and_the_page_names_every_word(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    text = page.split("```yaml\n", 1)[1].split("```", 1)[0]
    assert len(grid_of(tmp_path, text).points) == 22
    for words in BLOCKS.values():
        assert all(f"`{word}`" in page for word in words.words)


BAD = {
    "empty": ("", "empty file"),
    "no mapping": ("[1]", "must be a mapping with 'run', 'train', 'serve' or 'jobs'"),
    "nothing to run": ("run: []", "no runs defined"),
    "unknown kind": ("rum: {topology: dgx-a100, size: 1}", "grid.yaml:1:1: rum: unknown key; did you mean 'run'"),
    "unknown word": ("run: {topology: dgx-a100, sizes: 1}", "run.sizes: unknown key; did you mean 'size'"),
    "missing": ("run: {topology: dgx-a100}", "'size' is missing"),
    "no list": ("run: {topology: dgx-a100, size: []}", "run.size: an empty list"),
    "no size": ("run: {topology: dgx-a100, size: [1KiB, big]}", "grid.yaml:1:40: run.size[1]: "),
    "no block": ("run: 3", "must be a mapping of names and values"),
    "no count": ("run: {topology: dgx-a100, size: 1KiB, nodes: 0}", "must be an integer of at least 1"),
    "flag as count": ("run: {topology: dgx-a100, size: 1KiB, nodes: true}", "must be an integer"),
    "no variable": ("run: {topology: dgx-a100, size: 1KiB, env: [NCCL_ALGO]}", "must be a mapping of variables"),
    "no type": ("run: {topology: dgx-a100, size: 1KiB, dtype: f3}", "unknown type"),
    "no rank": ("run: {topology: dgx-a100, size: 1KiB, ranks: 7-0}", "not an ascending range"),
    "no workload": ("train: {workload: gtp}", "workload 'gtp': unknown"),
    "no such key": ("train: {workload: megatron-22b, change: {parallel.tensr: 2}}", "tensr"),
    "below a value": ("train: {workload: megatron-22b, change: {sequence.long: 2}}", "not a mapping"),
    "no release": ("run: {topology: dgx-a100, size: 1KiB, nccl_version: new}", "new"),
    "no fold": ("train: {workload: megatron-22b, fold: some}", "use auto, all, proved, none"),
    "twice": ("run: {size: 1KiB, size: 2KiB, topology: dgx-a100}", "duplicate key"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_with_its_place(name: str, tmp_path: Path) -> None:
    text, said = BAD[name]
    with pytest.raises(ClusimError) as caught:
        grid_of(tmp_path, text)
    assert said in str(caught.value)
    assert "grid.yaml" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_grid_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "MOST_POINTS", 5)
    with pytest.raises(ClusimError, match="6 runs; at most 5"):
        grid_of(tmp_path, "run: {topology: dgx-a100, size: [1, 2, 3], nodes: [1, 2]}")
