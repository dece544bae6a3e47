"""What an importer assumed and every answer depends on is the first line of every command that runs things."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusim import topology
from clusim.formats import topologies
from clusim.topology.model import doubts_of
from clusim_cli.main import run

Clusim = Callable[..., Any]

TABLE = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNODE\t0-31\t0\nGPU1\tNODE\t X \t0-31\t0\n"
)
COMMANDS = {
    "run": "run BOX --size 64KiB",
    "explain": "explain BOX --size 64KiB",
    "nccl-tests": "nccl-tests all_reduce_perf BOX -b 64K -e 64K",
    "crossover": "crossover BOX --size 64KiB --jobs 1",
    "traffic": "traffic BOX --pattern uniform --message 4KiB",
    "train": "train STEP BOX --steps 1 --granularity quick",
}


STEP = (
    "name: tiny\nmodel: {base: bert-large, layers: 1}\nsequence: 128\nbatch: {global: 2, micro: 1}\n"
    "parallel: {data: 2}\n"
)


@pytest.fixture
def box(tmp_path: Path) -> str:
    path = tmp_path / "box.txt"
    path.write_text(TABLE)
    (tmp_path / "step.yaml").write_text(STEP)
    return str(path)


def words(command: str, box: str) -> list[str]:
    files = {"BOX": box, "STEP": str(Path(box).with_name("step.yaml"))}
    return [files.get(word, word) for word in COMMANDS[command].split()]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_assumed_chip_is_line_one_and_with_strict_an_error(
    command: str, box: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words(command, box)) == 0
    out = " ".join(capsys.readouterr().out.replace("\n# ", "\n").split())
    assert out.removeprefix("# ").startswith("doubt: an assumption decides: gpu0..1: chip")
    assert run([*words(command, box), "--json"]) == 0
    (doubt,) = json.loads(capsys.readouterr().out)["doubts"]
    assert doubt.endswith("`clusim topo import --chip NAME` settles it")
    assert out.removeprefix("# ").startswith(f"doubt: {doubt}")
    assert run([*words(command, box), "--strict"]) == 2
    caught = capsys.readouterr()
    assert caught.out == ""
    assert doubt in caught.err


def test_the_option_that_is_named_settles_it(
    box: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settled = tmp_path / "box.yaml"
    assert run(["topo", "import", box, "--chip", "l40s", "-o", str(settled)]) == 0
    capsys.readouterr()
    assert run(["run", str(settled), "--size", "64KiB", "--strict"]) == 0
    assert not capsys.readouterr().out.startswith("doubt")
    kept = tmp_path / "kept.yaml"
    assert run(["topo", "import", box, "-o", str(kept)]) == 0
    assert doubts_of(topology.load(kept)) == doubts_of(topology.load(box)) != []


@pytest.mark.parametrize("name", ["dgx-a100", "mi300x", "rtx4090x8-pcie"])
def test_presets_are_not_doubted(name: str) -> None:
    assert doubts_of(topology.load(name)) == []


def test_groups_and_rates_without_a_unit_are_doubted_too() -> None:
    graph = '{"nodes": [{"id": "a"}, {"id": "b"}], "links": [{"source": "a", "target": "b", "bandwidth": 100}]}'
    (doubt,) = doubts_of(topologies.import_text(graph, "g.json").fabric())
    assert "bandwidths: Gb/s (attribute 'bandwidth' is without unit)" in doubt
    assert doubt.endswith("a unit in its name (bandwidth_GBps) settles it")
    groups = Path(__file__).parents[1] / "formats" / "topologies" / "samples" / "groups.xml"
    found = topologies.import_file(groups)
    assert any("--group NAME" in doubt for doubt in doubts_of(found.fabric()))
    assert not any(
        "--group" in doubt
        for doubt in doubts_of(topologies.import_file(groups, group="0").fabric())
    )
