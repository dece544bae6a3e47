from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusim.base import resources
from clusim.base.version import version
from clusim_cli.main import COMMANDS

Clusim = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]


def test_version_is_the_one_of_pyproject(clusim: Clusim) -> None:
    assert clusim("--version").out == f"clusim {version()}\n"
    assert f'version = "{version()}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(clusim: Clusim, command: str) -> None:
    done = clusim(command, "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: clusim {command}")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom clusim_cli.main import run\nrun(['--help'])\n"
        "assert not {'numpy', 'h5py', 'networkx', 'rich', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_run_imports_nothing_it_does_not_need() -> None:
    code = (
        "import sys\nfrom clusim_cli.main import run\n"
        "run(['run', 'dgx-a100', '--size', '8K'])\n"
        "run(['run', 'dgx-1v', '--size', '8K'])\n"
        "assert not {'h5py', 'networkx', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_topo_list_has_every_shipped_file(clusim: Clusim) -> None:
    out = clusim("topo", "list").out
    shipped = resources.shipped_topologies()
    assert {"dgx-a100", "dgx-h100", "gb200-nvl72"} <= set(shipped)
    for name in shipped:
        assert name in out


def test_topo_show_and_check_take_presets_and_generators(clusim: Clusim) -> None:
    for name in ("dgx-h100", "fat-tree:k=4"):
        assert "links" in clusim("topo", "show", name).out
        assert f"{name}: ok" in clusim("topo", "check", name).out
    assert "source" in clusim("topo", "show", "dgx-h100", "--figures").out
    assert "source" not in clusim("topo", "show", "dgx-h100", "--figures", "--no-sources").out


@pytest.mark.parametrize(
    "pattern",
    [
        ["--pattern", "permutation", "--message", "64KiB"],
        ["--pattern", "alltoall", "--message", "16KiB"],
        ["--pattern", "incast", "--message", "16KiB"],
        ["--pattern", "uniform", "--duration", "20us", "--load", "0.4"],
        ["--pattern", "hotspot", "--duration", "20us", "--load", "0.4"],
    ],
    ids=lambda pattern: pattern[1],
)
def test_traffic_reports_what_engineers_ask_for(clusim: Clusim, pattern: list[str]) -> None:
    done = clusim("traffic", "fat-tree:k=4", *pattern, "--json")
    assert done.code == 0, done.err
    data = json.loads(done.out)
    assert data["messages"] > 0
    names = (
        "latency_p50_ps",
        "latency_p90_ps",
        "latency_p99_ps",
        "latency_p99_9_ps",
        "latency_max_ps",
    )
    tail = [data[name] for name in names]
    assert tail == sorted(tail)
    assert 0 < tail[0] <= tail[-1] <= data["time_ps"]
    assert data["throughput_GBps"] > 0
    assert data["packet_hops"] > data["packets"]
    assert "packet_hops_per_s" in data
    text = clusim("traffic", "fat-tree:k=4", *pattern).out
    for word in ("latency", "throughput", "p99.9", "busiest wires", "packet-hops/s"):
        assert word in text


def test_the_command_line_reference_is_up_to_date(tmp_path: Path) -> None:
    written = tmp_path / "cli.md"
    # In a process of its own: click remembers the names of a command's help option from its first use.
    subprocess.run([sys.executable, "-m", "clusim_cli.reference", written], check=True)
    kept = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert kept == written.read_text(encoding="utf-8"), "run `make docs`"
