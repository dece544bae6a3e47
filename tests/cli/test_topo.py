"""``clusim topo``: the tree, pictures, differences and imports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from defusedxml.ElementTree import parse

from clusim import topology

Clusim = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests" / "formats" / "topologies" / "samples"


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\b(?:gpu|nic|pcie|cpu|mem|nvswitch)[0-9]+\b", text))


def test_show_is_a_tree_with_every_node(clusim: Clusim) -> None:
    out = clusim("topo", "show", "dgx-h100").out
    machine = topology.load("dgx-h100")
    expected = {node.name for node in machine.nodes if not node.name.startswith("nvswitch")}
    assert expected <= names_in(out)
    lines = out.splitlines()
    first = next(i for i, line in enumerate(lines) if " pcie0 " in line)
    assert re.match(r"│  ├─ pcie0 .*\[pcie-gen5-x16, 62\.85 GB/s\]", lines[first])
    assert lines[first + 1].startswith("│  │  ├─ gpu0  h100-sxm5, rank 0")
    assert lines[first + 2].startswith("│  │  └─ nic0  cx7-ndr")
    assert "nvswitch0..3 (5/4/4/5): 450 GB/s each way" in out


def test_show_has_the_matrix_of_a_mesh(clusim: Clusim) -> None:
    out = clusim("topo", "show", "dgx-1v").out
    (row,) = [line for line in out.splitlines() if line.startswith("  gpu3 ")]
    assert row.split() == ["gpu3", "2", "1", "2", "x", "-", "-", "-", "1"]


def test_show_draws_one_machine_of_a_cluster_and_the_network(clusim: Clusim) -> None:
    out = clusim("topo", "show", "dgx-h100", "--nodes", "4").out
    assert "node n0 (4 identical: n0..3)" in out
    assert out.count(" gpu7 ") == 1
    assert re.search(r"NICs - leaf: 32 x ib-ndr of 50 GB/s", out)


def test_show_can_still_print_every_figure(clusim: Clusim) -> None:
    out = clusim("topo", "show", "dgx-h100", "--figures").out
    assert "packet formats" in out
    assert "figures and their sources" in out
    launches = out.partition("  launches and kernels\n")[2]
    for figure in (
        "architecture hopper: kernel_overhead:",
        "host intel: launch:",
        "architecture hopper: steady:",
    ):
        assert figure in launches, figure
    short = clusim("topo", "show", "dgx-h100", "--figures", "--no-sources").out
    assert "figures and their sources" not in short


@pytest.mark.parametrize(
    ("name", "nodes", "words"),
    [
        (
            "dgx-h100",
            None,
            {"h100-sxm5", "cx7-ndr", "cpu", "xeon-spr", "nvswitch3", "60 ns, 4 links a line"},
        ),
        ("dgx-1v", None, {"v100-sxm2", "nvlink2: 25.78 GB/s, 275 ns, 1 to 2 links a line"}),
        ("dgx-h100", 4, {"n3", "spine", "quantum2", "cx7-ndr"}),
        (
            "dgx-h100",
            8,
            {"node", "leaf", "quantum2", "node n0  (8 identical: n0..7)", "h100-sxm5"},
        ),
        ("gb200-nvl72", None, {"66..71", "nvswitch4", "grace-c2c: 100 GB/s, 60 ns"}),
        ("fat-tree:k=4", None, {"15", "host", "core"}),
    ],
)
def test_pictures_name_what_they_show(
    clusim: Clusim, tmp_path: Path, name: str, nodes: int | None, words: set[str]
) -> None:
    path = tmp_path / "x.svg"
    more = ["--nodes", nodes] if nodes else []
    assert clusim("topo", "show", name, *more, "--svg", path).code == 0
    text = " ".join(
        element.text or "" for element in parse(path).iter() if element.tag.endswith("text")
    )
    for word in words:
        assert word in text, word


def test_labels_of_a_picture_do_not_overlap() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from clusim.topology.picture import draw_fabric

    for name, nodes in (
        ("dgx-h100", 4),
        ("dgx-h100", 8),
        ("aws-p5", None),
        ("dgx-2", None),
        ("dgx-1v", None),
    ):
        figure = draw_fabric(topology.load(name, nodes=nodes))
        renderer = FigureCanvasAgg(figure).get_renderer()
        texts = [text for axes in figure.axes for text in axes.texts]
        boxes = [text.get_window_extent(renderer) for text in texts]
        boxes += [legend.get_window_extent(renderer) for legend in figure.legends]
        for i, one in enumerate(boxes):
            for other in boxes[i + 1 :]:
                assert not one.overlaps(other), f"{name}: {one} {other}"


def test_png_and_wrong_suffixes(clusim: Clusim, tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    assert clusim("topo", "show", "dgx-a100", "--png", path).code == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    wrong = clusim("topo", "show", "dgx-a100", "--png", tmp_path / "x.svg")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    lost = clusim("topo", "show", "dgx-a100", "--svg", tmp_path / "no" / "x.svg")
    assert (lost.code, lost.err.count("\n")) == (1, 1)


def test_diff_says_what_differs_and_ends_like_diff(clusim: Clusim, tmp_path: Path) -> None:
    same = clusim("topo", "diff", "dgx-h100", "dgx-h100")
    assert (same.code, same.out) == (0, "dgx-h100 and dgx-h100 do not differ\n")
    text = (ROOT / "topologies" / "dgx-h100.yaml").read_text(encoding="utf-8")
    text = text.replace("count: [5, 4, 4, 5]", "count: [5, 4, 4, 4]")
    text = text.replace("nic0..7: {kind: nic, nic: cx7-ndr}", "nic0..7: {kind: nic, nic: cx6-hdr}")
    text = text.replace("count: 4, type: upi-16", "count: 4, type: upi-16, latency: 99ns")
    (tmp_path / "other.yaml").write_text(text, encoding="utf-8")
    found = clusim("topo", "diff", "dgx-h100", tmp_path / "other.yaml")
    assert found.code == 1
    assert "gpu0..7 - nvswitch3: links 5 -> 4" in found.out
    assert "nic0..7: nic cx7-ndr -> nic cx6-hdr" in found.out
    assert "cpu0 - cpu1: latency 60 ns -> 99 ns" in found.out
    rows = json.loads(clusim("topo", "diff", "dgx-h100", tmp_path / "other.yaml", "--json").out)
    assert {"where": "cpu0 - cpu1", "what": "latency 60 ns -> 99 ns"} in rows["differences"]


def test_diff_names_nodes_and_links_of_one_side(clusim: Clusim) -> None:
    out = clusim("topo", "diff", "dgx-a100", "dgx-h100").out
    assert "nvswitch4..5: only in the first (switch nvswitch2)" in out
    assert "gpu0..7: gpu a100-sxm4-" in out


def test_import_writes_a_file_that_can_be_used(clusim: Clusim, tmp_path: Path) -> None:
    out = tmp_path / "box.yaml"
    done = clusim("topo", "import", SAMPLES / "dump.xml", "-o", out)
    assert done.code == 0
    assert "found: 2 gpus, 2 nics, 2 cpus" in done.out
    assert "nic0: 16 lanes (the nearest to the file's 12)" in done.out
    assert "# - nic0: 16 lanes" in out.read_text(encoding="utf-8")
    assert clusim("topo", "check", out).code == 0
    assert clusim("topo", "diff", out, SAMPLES / "dump.xml").code == 0
    assert "node" in clusim("topo", "show", SAMPLES / "dump.xml").out


def test_import_as_json_and_to_stdout(clusim: Clusim) -> None:
    data = json.loads(clusim("topo", "import", SAMPLES / "simai.txt", "--json").out)
    assert data["kind"] == "simai"
    assert data["counts"]["gpus"] == 4
    assert set(data["assumptions"][0]) == {"where", "what", "why"}
    piped = clusim("topo", "import", SAMPLES / "dump.xml", "-o", "-")
    assert topology.loads(piped.out).num_ranks == 2
    assert "found: 2 gpus" in piped.err


def test_import_fails_in_one_line(clusim: Clusim, tmp_path: Path) -> None:
    (tmp_path / "broken.xml").write_text("<system>\n<cpu></system>", encoding="utf-8")
    for arguments in (
        [tmp_path / "broken.xml"],
        [tmp_path / "missing.xml"],
        [tmp_path],
        [SAMPLES / "dump.xml", "--kind", "smi"],
        [SAMPLES / "dump.xml", "--kind", "xyz"],
        [SAMPLES / "dump.xml", "--chip", "xyz"],
        [SAMPLES / "dump.xml", "--group", "1"],
        [ROOT / "README.md"],
    ):
        done = clusim("topo", "import", *arguments)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), arguments
    lost = clusim("topo", "import", SAMPLES / "dump.xml", "-o", tmp_path / "no" / "x.yaml")
    assert (lost.code, lost.err.count("\n")) == (1, 1)


def test_imported_machines_can_be_joined(clusim: Clusim) -> None:
    out = clusim("topo", "show", SAMPLES / "vendor.xml", "--nodes", "2").out
    assert "2 nodes" in out
    assert "ib-hdr" in out
