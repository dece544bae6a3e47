"""Entry points of other distributions: search only when needed, and errors with the name of the distribution."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SEARCHED = """
import importlib.metadata as metadata, sys
search = metadata.distributions
def noted(*values, **options):
    if sys._getframe(1).f_code.co_name == "extensions":
        print("searched", file=sys.stderr)
    return search(*values, **options)
metadata.distributions = noted
from clusim_cli.main import main
main()
"""


def define(folder: Path, distribution: str, entry_points: str, **modules: str) -> None:
    """Write an installed distribution with its entry points, and modules."""
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
    (info / "METADATA").write_text(text, encoding="utf-8")
    (info / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    for name, body in modules.items():
        (folder / f"{name}.py").write_text(body, encoding="utf-8")


def run(folder: Path, *words: str, program: str = "") -> subprocess.CompletedProcess[str]:
    """Run clusim with the distributions of a folder."""
    start = ["-c", program] if program else ["-m", "clusim"]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *start, *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("words", "searched"),
    [
        ("topo list", False),
        ("run dgx-a100 --algorithm ring --size 64KiB --no-progress", False),
        ("run own.yaml --algorithm ring --size 64KiB --no-progress", False),
        ("run dgx-a100 --algorithm nosuch --size 64KiB --no-progress", True),
    ],
)
def test_distributions_are_searched_only_for_unknown_names(
    tmp_path: Path, words: str, searched: bool
) -> None:
    (tmp_path / "own.yaml").write_text(
        "name: own\nnodes: {gpu0..1: {kind: gpu, chip: a100-sxm4-40gb}}\n"
        "links: [{from: gpu0, to: gpu1, type: nvlink3}]\n",
        encoding="utf-8",
    )
    done = run(tmp_path, *words.split(), program=SEARCHED)
    assert ("searched" in done.stderr) == searched, done.stderr
    assert done.returncode == (2 if searched else 0), done.stderr


WITHOUT = """
import importlib.metadata as metadata
search = metadata.distributions
metadata.distributions = lambda: [item for item in search() if item.name != "clusim-formats"]
from clusim_cli.main import main
main()
"""
RARE = {
    "replay ring-4.goal dgx-a100": "GOAL schedules",
    "replay mlp-tp4.hlo dgx-a100": "XLA HLO modules",
    "replay gpt-tp8-dp2 dgx-a100": "workloads of SimAI and AICB",
    "replay resnet-data-8 dgx-a100": "text workloads of ASTRA-sim 1",
    "replay zero3 dgx-a100": "logs of communication of DeepSpeed",
    "replay comma-4ranks dgx-a100": "JSON lines of profiler plugins",
    "replay profiler-2ranks dgx-a100": "chrome trace of NCCL's example profiler plugin",
    "topo import a100x4.lstopo.xml": "hwloc's XML",
    "topo import pods.topo": "htsim topology text",
    "run graph.xml": "GraphML",
    "topo export dgx-a100 --format infragraph": "InfraGraph",
    "topo check dgx-a100 --measured FOLDER/nvbandwidth-8xa100.json": "measurements of nvbandwidth",
    "run dgx-a100 --algorithm allpairs-4.mscclpp.json --ranks 0-3": "MSCCL++ execution plan",
}


@pytest.mark.parametrize("words", RARE)
def test_without_clusim_formats_a_rare_format_is_an_error_that_names_it(
    tmp_path: Path, words: str
) -> None:
    (tmp_path / "graph.xml").write_text("<graphml></graphml>", encoding="utf-8")
    traces = Path(__file__).resolve().parents[2] / "traces"
    done = run(tmp_path, *words.replace("FOLDER", str(traces)).split(), program=WITHOUT)
    assert done.returncode == 1
    assert RARE[words] in done.stderr
    assert done.stderr.endswith(": needs clusim-formats; pip install 'clusim-net[formats]'\n")
    assert len(done.stderr.splitlines()) == 1


CASES = {
    "absent": ("[clusim.algorithms]\nx = nosuch", "", "ModuleNotFoundError: No module named 'nosuch'"),
    "raises": ("[clusim.algorithms]\nx = mine", "1 / 0\n", "ZeroDivisionError: division by zero"),
    "twice": (
        "[clusim.algorithms]\nx = mine",
        'from clusim.collectives.entry import algorithm\nalgorithm("allreduce", "ring")(print)\n',
        "AssertionError: allreduce has two algorithms ring",
    ),
    "default": (
        "[clusim.algorithms]\nx = mine",
        'from clusim.collectives.entry import algorithm\nalgorithm("allreduce", "x", default=True)(print)\n',
        "x is a default; only clusim has defaults",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_broken_algorithm_names_its_distribution(tmp_path: Path, case: str) -> None:
    points, body, problem = CASES[case]
    define(tmp_path, "clusim-mine", points, mine=body)
    done = run(tmp_path, "run", "dgx-a100", "--algorithm", "x", "--size", "64KiB", "--no-progress")
    assert done.returncode == 2
    assert done.stderr == f"clusim: clusim-mine: entry point x of clusim.algorithms: {problem}\n"


def test_an_algorithm_that_fails_names_its_distribution(tmp_path: Path) -> None:
    body = (
        "from clusim.collectives.entry import algorithm\n"
        '@algorithm("allreduce", "x")\ndef write(writer, fabric):\n    [][0]\n'
    )
    define(tmp_path, "clusim-mine", "[clusim.algorithms]\nx = mine", mine=body)
    done = run(tmp_path, "run", "dgx-a100", "--algorithm", "x", "--size", "64KiB", "--no-progress")
    assert done.returncode == 2
    problem = "IndexError: list index out of range (mine.py:4)"
    assert done.stderr == f"clusim: clusim-mine: entry point x of clusim.algorithms: {problem}\n"


def test_two_distributions_with_one_name_are_an_error(tmp_path: Path) -> None:
    for name in ("clusim-one", "clusim-two"):
        define(tmp_path, name, "[clusim.recordings]\nx = mine")
    done = run(tmp_path, "replay", "nccl-8xh100", "--kind", "x")
    assert done.returncode == 2
    assert "entry point x of clusim.recordings: clusim-" in done.stderr
    assert done.stderr.endswith("defines the same name; uninstall one\n")


@pytest.mark.parametrize(
    ("group", "name", "words"),
    [
        ("clusim.recordings", "kineto", "replay nccl-8xh100 --kind x"),
        ("clusim.topologies", "smi", "topo import file --kind x"),
    ],
)
def test_a_name_of_clusim_cannot_be_replaced(
    tmp_path: Path, group: str, name: str, words: str
) -> None:
    define(tmp_path, "clusim-mine", f"[{group}]\n{name} = mine")
    (tmp_path / "file").write_text("text\n", encoding="utf-8")
    done = run(tmp_path, *words.split())
    assert done.returncode == 2
    problem = "clusim has a kind of this name; choose another"
    assert done.stderr == f"clusim: clusim-mine: entry point {name} of {group}: {problem}\n"


def test_a_damaged_list_names_its_distribution(tmp_path: Path) -> None:
    define(tmp_path, "clusim-mine", "[clusim.recordings]\nno value\n")
    done = run(tmp_path, "replay", "nccl-8xh100", "--kind", "x")
    assert done.returncode == 2
    assert done.stderr.startswith("clusim: clusim-mine: entry_points.txt: ")
    assert len(done.stderr.splitlines()) == 1


GPU = "base: a100-sxm4-80gb\nproducts: [NVIDIA A100-X]\n"


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("mine", GPU + "nosuch: 1\n", "mine.yaml: "),
        ("h100-sxm5", GPU, "h100-sxm5.yaml: duplicate of the GPU 'h100-sxm5'"),
        ("mine", GPU + 'pci_ids: ["10de:20b2"]\n', "mine.yaml: PCI id 10de:20b2 is taken by "),
    ],
)
def test_a_wrong_gpu_names_its_distribution(
    tmp_path: Path, file: str, text: str, problem: str
) -> None:
    define(tmp_path, "clusim-mine", "[clusim.gpus]\nx = mine_gpus")
    (tmp_path / "mine_gpus").mkdir()
    (tmp_path / "mine_gpus" / f"{file}.yaml").write_text(text, encoding="utf-8")
    program = "from clusim.hardware import GPUS\nfrom clusim.base.errors import ClusimError\n"
    program += "try:\n    len(GPUS)\nexcept ClusimError as error:\n    print(error)\n"
    done = run(tmp_path, program=program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"clusim-mine: entry point x of clusim.gpus: {problem}"), (
        done.stdout
    )
