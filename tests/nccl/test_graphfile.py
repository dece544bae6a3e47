"""Graph files of NCCL: what the search found is written, read in its place, and obeyed; errors have file and line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from clusim import topology
from clusim.base.errors import ClusimError
from clusim.base.terms.operations import Collective
from clusim.nccl import LATEST, parse_env
from clusim.nccl.communicator import Communicator, communicator
from clusim.nccl.graphfile import write_graphs
from clusim.simulation.setup import Setup
from clusim_cli.main import run
from support.nccl_lines import log_totals

RACKS = {"gb300-nvl72", "gcp-a4x-max", "vera-rubin-nvl72"}
"""Racks of 72 GPUs with the graphs of gb200-nvl72, which need seconds each."""

FOLDER = Path(__file__).parents[2] / "topologies"
PRESETS = sorted({path.stem for path in FOLDER.glob("*.yaml")} - RACKS)
SPREAD = ["dgx-1v", "dgx-a100", "dgx-h100", "aws-p5en", "hgx-b200"]


def with_file(
    name: str, text: str, folder: Path, nodes: int | None = None, **env: str
) -> Communicator:
    path = folder / "graph.xml"
    path.write_text(text)
    settings = parse_env({"NCCL_GRAPH_FILE": str(path), **env})
    return communicator(topology.load(name, nodes=nodes), LATEST, settings)


def written(name: str, nodes: int | None = None) -> tuple[Communicator, str]:
    found = communicator(topology.load(name, nodes=nodes))
    return found, write_graphs(found.node_graphs)


def plans(comm: Communicator) -> list[object]:
    """Return all that follows from graphs: channels, heads, totals, plans of three sizes."""
    sizes = 1 << 10, 1 << 20, 1 << 28
    every = [comm.plan(operation, size) for operation in Collective for size in sizes]
    return [comm.channels, comm.nvls_heads, log_totals(comm), comm.num_searched, every]


def test_plans_of_a_written_graph_are_those_of_the_search(tmp_path: Path) -> None:
    compared = 0
    for name in PRESETS:
        nodes = 2 if topology.load(name).num_ranks == 1 else None
        found, text = written(name, nodes)
        if found.settings.library is None:
            assert plans(with_file(name, text, tmp_path, nodes)) == plans(found), name
            compared += 1
    assert compared > 30


@pytest.mark.parametrize("name", SPREAD)
def test_so_are_those_of_two_nodes(name: str, tmp_path: Path) -> None:
    found, text = written(name, 2)
    assert text.count("<net ") == 2 * text.count("<channel>")
    assert plans(with_file(name, text, tmp_path, 2)) == plans(found)


def test_channels_and_rates_of_the_file_are_used(tmp_path: Path) -> None:
    """Half of the channels, backwards: the ring of rank 0 is what the file has, and half as many are searched."""
    found, _ = written("dgx-a100")
    ring, tree = found.node_graphs[:2]
    half = ring.num_channels // 2
    channel = "".join(f'<gpu dev="{gpu:#x}"/>' for gpu in reversed(range(8)))
    graph = (
        '<graph id="{}" pattern="{}" crossnic="0" nchannels="{}" speedintra="20" speedinter="20"'
        ' typeintra="NVL" typeinter="PIX" samechannels="1">{}</graph>'
    )
    body = "".join(
        graph.format(number, pattern, half, f"<channel>{channel}</channel>" * half)
        for number, pattern in ((0, 4), (1, 1))
    )
    comm = with_file("dgx-a100", f'<graphs version="1">{body}</graphs>', tmp_path)
    assert comm.num_searched == half == tree.num_channels // 2
    assert comm.node_graphs[0].orders == (tuple(reversed(range(8))),) * half
    assert comm.node_graphs[0].intra_GBps == 20


def test_a_graph_that_the_file_lacks_is_searched(tmp_path: Path) -> None:
    found, text = written("dgx-h100")
    only_ring = re.sub(
        r' *<graph id="[1-4]".*?</graph>\n|  <graph id="[1-4]"[^>]*/>\n', "", text, flags=re.S
    )
    assert only_ring.count("<graph ") == 1
    assert plans(with_file("dgx-h100", only_ring, tmp_path)) == plans(found)


def test_a_graph_that_crosses_nics_is_not_used_if_nccl_must_not_cross(tmp_path: Path) -> None:
    _, text = written("dgx-a100", 2)
    crossing = re.sub(r'crossnic="\d"', 'crossnic="1"', text).replace(
        'speedintra="', 'speedintra="1'
    )
    comm = with_file("dgx-a100", crossing, tmp_path, 2, NCCL_CROSS_NIC="0")
    bare = communicator(
        topology.load("dgx-a100", nodes=2), LATEST, parse_env({"NCCL_CROSS_NIC": "0"})
    )
    assert plans(comm) == plans(bare)


BAD = [
    (r'version="1"', 'version="2"', r"graph.xml:1: version 2; NCCL reads version 1"),
    (r"<graphs ", "<system ", r"graph.xml:.*"),
    (r'pattern="4"', 'pattern="9"', r"graph.xml:2: pattern of <graph>: 9; must be 1 to 6"),
    (
        r'typeintra="NVL"',
        'typeintra="FAR"',
        r"graph.xml:2: typeintra of <graph>: FAR; must be one of LOC, .*",
    ),
    (
        r'speedintra="[\d.]+"',
        'speedintra="fast"',
        r"graph.xml:2: speedintra of <graph>: fast; must be a number.*",
    ),
    (
        r'nchannels="\d+"',
        'nchannels="77"',
        r"graph.xml:2: nchannels=77, but \d+ <channel>; give as many",
    ),
    (
        r'dev="0x7" rank="7"',
        'dev="0x8" rank="8"',
        r"graph.xml:3: channel of the ring graph; it needs all of GPUs 0 to 7",
    ),
    (r'<gpu dev="0x7" rank="7"/>', "<gpu/>", r"graph.xml:\d+: <gpu> without rank or dev; .*"),
]


@pytest.mark.parametrize(("old", "new", "message"), BAD, ids=[new for _, new, _ in BAD])
def test_a_wrong_file_is_one_line_with_its_place(
    old: str, new: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text = written("dgx-a100")
    path = tmp_path / "graph.xml"
    path.write_text(re.sub(old, new, text, count=1))
    assert run(["explain", "dgx-a100", "--env", f"NCCL_GRAPH_FILE={path}"]) == 2
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    assert re.search(message, error), error


def test_the_command_line_writes_and_reads_graphs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "graph.xml"
    assert run(["topo", "export", "dgx-a100", "--format", "nccl-graph", "-o", str(path)]) == 0
    capsys.readouterr()
    assert run(["run", "dgx-a100", "--size", "1MiB", "--json"]) == 0
    searched = capsys.readouterr().out
    assert (
        run(["run", "dgx-a100", "--size", "1MiB", "--json", "--env", f"NCCL_GRAPH_FILE={path}"])
        == 0
    )
    fingerprints = [
        re.findall(r'"fingerprint": ?"(\w+)"', out) for out in (searched, capsys.readouterr().out)
    ]
    assert fingerprints[0] == fingerprints[1] != []


@pytest.mark.parametrize("variable", ["NCCL_GRAPH_FILE", "NCCL_TUNER_CONFIG_FILE"])
def test_times_are_kept_for_the_content_of_a_file_and_not_for_its_name(
    variable: str, tmp_path: Path
) -> None:
    path = tmp_path / "given"
    text = written("dgx-a100")[1]
    texts = {
        "NCCL_GRAPH_FILE": (text, re.sub(r' id="1"', ' id="2"', text, count=1)),
        "NCCL_TUNER_CONFIG_FILE": (
            "allreduce,0,1048576,tree,ll,2,1,8\n",
            "allreduce,0,9,ring,ll,2,1,8\n",
        ),
    }[variable]
    identities = []
    for changed_ns, content in enumerate((*texts, texts[0]), 1):
        path.write_text(content)
        os.utime(path, ns=(changed_ns, changed_ns))
        identities.append(Setup("dgx-a100", env=((variable, str(path)),)).identity)
    assert identities[0] == identities[2] != identities[1]


def test_rccl_refuses_a_graph_file(tmp_path: Path) -> None:
    _, text = written("dgx-a100")
    with pytest.raises(ClusimError, match="NCCL_GRAPH_FILE: not simulated with RCCL; omit it"):
        with_file("mi300x", text, tmp_path)
