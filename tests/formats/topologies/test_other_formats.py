"""Matrices of `nvidia-smi` and `rocm-smi`, graphs, ASTRA-sim and SimAI files."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from clusim import topology
from clusim.base.errors import TopologyError
from clusim.formats.topologies import KINDS, Imported, detect, import_text
from clusim.formats.topologies.smi_matrix import parse_matrix

Sample = Callable[..., Imported]
SAMPLES = Path(__file__).parent / "samples"


def distance(found: Imported, a: str, b: str) -> str:
    """Return the kind of PCIe path between two nodes of the tree, as `nvidia-smi` calls it."""
    parent = {
        item["from"]: item["to"]
        for item in found.data["links"]
        if item["type"].startswith("pcie") and not item["to"].startswith(("gpu", "nic"))
    }

    def way(name: str) -> list[str]:
        return [name, *way(parent[name])] if name in parent else [name]

    one, two = way(a), way(b)
    common = next((name for name in one if name in two), None)
    if common is None:
        return "SYS"
    if common.startswith("cpu"):
        return "PHB"
    switches = one.index(common) + two.index(common) - 1
    return "PIX" if switches == 1 else "PXB"


def test_kinds_are_found_by_content() -> None:
    kinds = {path.name: detect(path.read_text(encoding="utf-8")) for path in SAMPLES.iterdir()}
    assert kinds["dump.xml"] == "nccl-xml"
    assert kinds["graph.xml"] == "nccl-graph"
    assert kinds["smi.txt"] == kinds["p2p.txt"] == "smi"
    assert kinds["rocm.txt"] == "rocm-smi"
    assert kinds["plain.graphml"] == "graphml"
    assert kinds["plain.json"] == "node-link"
    assert kinds["network.yml"] == kinds["network.json"] == "astra-sim"
    assert kinds["lstopo.xml"] == "lstopo"
    assert kinds["pods.topo"] == "htsim"
    assert kinds["simai.txt"] == kinds["ns3.txt"] == "simai"
    assert None not in kinds.values()
    assert set(kinds.values()) == set(KINDS)


def test_topology_files_of_ours_are_none_of_them() -> None:
    for name in ("dgx-h100", "aws-p5"):
        path = Path(__file__).parents[3] / "topologies" / f"{name}.yaml"
        assert detect(path.read_text(encoding="utf-8")) is None
    assert detect("name: x\nnodes: {gpu0..1: {kind: gpu, chip: h100-sxm5}}\nlinks: []\n") is None
    assert detect('{"nodes": {"a": {"kind": "host"}}, "links": []}') is None
    assert detect("") is None


def test_the_tree_of_a_matrix_has_the_distances_of_the_matrix(sample: Sample) -> None:
    found = sample("smi.txt")
    text = (SAMPLES / "smi.txt").read_text(encoding="utf-8")
    matrix = parse_matrix(text, "smi.txt")
    assert matrix.legend == {"NIC0": "mlx5_0", "NIC1": "mlx5_bond_0"}
    assert matrix.numa == {"GPU0": 0, "GPU1": 0, "GPU2": 1}
    for a, b in combinations(matrix.names, 2):
        assert distance(found, a.lower(), b.lower()) == matrix.word(a, b), (a, b)
    assert found.data["nodes"]["nic0"]["nic"] == "cx6-hdr"
    assert found.data["nodes"]["nic1"]["nic"] == "cx6-roce200"


def test_many_nvlinks_between_all_pairs_are_switches(sample: Sample) -> None:
    found = sample("smi_nvlink.txt")
    assert found.data["nodes"]["gpu0"]["chip"] == "a100-sxm4-80gb"
    counts = [
        item.get("count", 1) for item in found.data["links"] if item["to"].startswith("nvswitch")
    ]
    assert counts == [2] * 24
    assert (found.counts["nvswitches"], found.counts["cpus"]) == (6, 2)


def test_few_nvlinks_are_direct(sample: Sample) -> None:
    found = sample("smi_mesh.txt")
    got = {
        (i["from"], i["to"]): i.get("count", 1)
        for i in found.data["links"]
        if "nvlink" in i["type"]
    }
    assert got == {("gpu0", "gpu1"): 2, ("gpu0", "gpu2"): 1}
    assert any(item.what == "PHB" and item.where == "gpu1-gpu2" for item in found.assumptions)


def test_a_table_of_what_works_is_a_weak_hint(sample: Sample) -> None:
    found = sample("p2p.txt")
    assert distance(found, "gpu0", "gpu1") == "PXB"
    assert distance(found, "gpu0", "gpu2") == "PHB"
    assert found.assumptions[0].where == "all hardware"


def test_rocm_tables_give_xgmi_links_and_numa_nodes(sample: Sample) -> None:
    found = sample("rocm.txt")
    assert found.counts["xgmi_links"] == 1
    assert distance(found, "gpu0", "gpu1") == "PHB"
    assert distance(found, "gpu0", "gpu2") == "SYS"


V100S = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tCPU Affinity
GPU0\t X \tNV2\tNV2\tSYS\tSYS\t0-39
GPU1\tNV2\t X \tSYS\tNV2\tSYS\t0-39
GPU2\tNV2\tSYS\t X \tNV2\tSYS\t0-39
GPU3\tSYS\tNV2\tNV2\t X \tSYS\t0-39
mlx5_0\tSYS\tSYS\tSYS\tSYS\t X
"""


@pytest.mark.parametrize(
    "text",
    [
        V100S,
        f"user@box:~$ nvidia-smi topo -m\n{V100S}",
        f"# The nodes\nFour GPUs:\n```\n{V100S}```\n",
        "".join(f"    {line}" for line in V100S.splitlines(keepends=True)),
        "".join(f"> {line}" for line in V100S.splitlines(keepends=True)),
        "".join(f"[1,0]<stdout>:{line}" for line in V100S.splitlines(keepends=True)),
    ],
)
def test_pasted_tables(text: str) -> None:
    """What stands around a table is no reason to refuse it; devices near the same processors share a CPU."""
    found = import_text(text, "x")
    assert (found.kind, found.counts["gpus"], found.counts["cpus"]) == ("smi", 4, 1)
    assert found.counts["nvlink_links"] == 8
    assert "mlx5_0 at the one CPU" in {f"{a.where} {a.what}" for a in found.assumptions}


COLLECTED = """\
Collecting environment information...
PyTorch version: 2.6.0+cu124
GPU models and configuration:
GPU 0: NVIDIA H100 NVL
GPU 1: NVIDIA H100 NVL

Nvidia driver version: 550.54.15
CPU:
Model name: AMD EPYC 9354
GPU Topology:
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNODE\t0-31\t0\t\tN/A
GPU1\tNODE\t X \t0-31\t0\t\tN/A

Legend:

  X    = Self
"""


def test_blocks_of_collect_env_name_the_gpus() -> None:
    found = import_text(COLLECTED, "issue.txt")
    assert (found.kind, found.counts["gpus"]) == ("smi", 2)
    assert found.data["nodes"]["gpu0"]["chip"] == "h100-nvl"


def status(name: str, *counts: int, of: int = 12) -> str:
    return "".join(
        f"GPU {n}: {name} (UUID: GPU-{n})\n"
        + "".join(f"\t Link {k}: {'25 GB/s' if k < up else '<inactive>'}\n" for k in range(of))
        for n, up in enumerate(counts)
    )


def test_states_of_nvlinks() -> None:
    text = status("NVIDIA A100-SXM4-80GB", 12, 12, 10, 12)
    found = import_text(text, "x")
    assert (found.kind, found.counts["gpus"], found.counts["nvlink_links"]) == ("smi-nvlink", 4, 46)
    assert found.data["nodes"]["gpu0"]["chip"] == "a100-sxm4-80gb"
    assert "gpu2: 10 links (2 more are inactive)" in map(str, found.assumptions)
    bridged = import_text(status("NVIDIA GeForce RTX 3090", 4, 4, of=4), "x")
    assert bridged.counts["nvlink_links"] == 4
    single = import_text(status("NVIDIA L40S", 0), "x", kind="smi-nvlink")
    assert single.counts.get("nvlink_links", 0) == 0
    with pytest.raises(TopologyError, match="no list of 1 to 512 different GPUs"):
        import_text("GPU 0: Tesla\nGPU 0: Tesla\n\t Link 0: 25 GB/s\n", "x")


@pytest.mark.parametrize(
    ("links", "near", "cpus"),
    [
        ("NV1", ["0-79"] * 4, [{0, 1, 2, 3}]),
        ("SYS", ["0-79"] * 4, [{0, 1, 2, 3}]),
        ("NV1", ["0-39", "40-79", "0-39", "40-79"], [{0, 2}, {1, 3}]),
        ("NV1", None, [{0, 1}, {2, 3}]),
    ],
)
def test_gpus_near_the_same_processors_are_at_one_cpu(
    links: str, near: list[str] | None, cpus: list[set[int]]
) -> None:
    """A CPU for each affinity, whatever joins the GPUs; only without any it is assumed that there are two."""
    head = "".join(f"\tGPU{i}" for i in range(4)) + ("\tCPU Affinity" if near else "") + "\n"
    rows = ""
    for i in range(4):
        cells = ["X" if i == j else links for j in range(4)] + ([near[i]] if near else [])
        rows += "\t".join([f"GPU{i}", *cells]) + "\n"
    found = import_text(head + rows, "x", chip="v100-sxm2")
    at: dict[str, set[int]] = {}
    for link in found.data["links"]:
        below = link["from"].startswith("gpu") and not link["to"].startswith("gpu")
        if below and not link["type"].startswith("nvlink"):
            at.setdefault(link["to"], set()).add(int(link["from"].removeprefix("gpu")))
    assert list(at.values()) == cpus
    said = [f"{a.what} {a.why}" for a in found.assumptions]
    assert any("half of the GPUs" in text for text in said) == (near is None)
    assert any("SYS in the table" in text for text in said) == (links == "SYS")


def test_as_many_nvlinks_as_two_chips_have() -> None:
    table = "\tGPU0\tGPU1\tGPU2\tGPU3\n" + "".join(
        f"GPU{i}\t" + "\t".join("X" if i == j else "NV8" for j in range(4)) + "\n" for i in range(4)
    )

    def chip(text: str) -> tuple[str, str]:
        found = import_text(text, "x")
        return next((a.what, a.why) for a in found.assumptions if a.what.startswith("chip "))

    assert chip(table)[0] == "chip h800-sxm5"
    assert "a800-sxm4-80gb has the same number; choose with --chip" in chip(table)[1]
    assert chip(f"our A800 nodes\n{table}")[0] == "chip a800-sxm4-80gb"
    assert chip(f"root@h800:~# nvidia-smi topo -m\n{table}")[0] == "chip h800-sxm5"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("      GPU0 GPU1\nGPU0  X\n", "x:2: row GPU0 has 1 of 2 cells"),
        ("      GPU0 GPU1\nGPU0  X ABC\nGPU1 ABC X\n", "x:2: row GPU0: unknown path 'ABC' to GPU1"),
        ("      GPU0 GPU0\nGPU0  X PIX\n", "two columns have the same name"),
        ("      GPU0 GPU1\n", "x: no table with GPU0 in its first line"),
        (
            "     GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\nGPU2 SYS SYS X\n",
            "x:4: row GPU2 does not match a column: is the table cut",
        ),
        (
            "     GPU0 GPU1 NIC0\nNIC1\nGPU0 X SYS PIX\nGPU1 SYS X SYS\nNIC0 PIX SYS X\nNIC1 SYS PIX SYS\n",
            "x:6: row NIC1 does not match a column: is the table cut off, or its first line broken in two",
        ),
        (
            "     GPU0 GPU1 GPU2\nGPU0 X SYS SYS\n",
            "the rows of GPU1, GPU2 are missing, so their links are unknown",
        ),
        (
            "     GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n     GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4 X\n",
            "x:4: another table begins here, of another node",
        ),
        ("GPU1 X\n", "not a topology that can be imported"),
    ],
)
def test_matrix_errors(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as failure:
        import_text(text, "x")
    assert message in str(failure.value)


def test_astra_dimensions(sample: Sample) -> None:
    found = sample("network.yml")
    counts = {name: 0 for name in ("dim0", "dim1", "dim2")}
    for item in found.data["links"]:
        counts[item["class"]] += 1
    # 6 rings of 4; 8 groups of 3 fully connected; 12 switches of 2.
    assert counts == {"dim0": 24, "dim1": 24, "dim2": 24}
    first = next(item for item in found.data["links"] if item["class"] == "dim1")
    assert (first["from"], first["to"], first["rate"], first["latency"]) == (
        "gpu0",
        "gpu4",
        "50.5 GB/s",
        "500ns",
    )
    last = next(item for item in found.data["links"] if item["class"] == "dim2")
    assert last["latency"] == "0.5ns"
    machine = found.fabric()
    assert machine.num_ranks == 24
    assert not [item for item in topology.check(machine) if "can deadlock" in item.what]


def test_older_astra_files(sample: Sample) -> None:
    found = sample("network.json")
    assert (found.counts["gpus"], found.counts["switches"]) == (8, 4)
    counts = {item.get("count", 1) for item in found.data["links"] if item["class"] == "dim0"}
    assert counts == {2}  # six links to three neighbours


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("npus_count: [4]\n", "'topology' is missing"),
        (
            "npus_count: [4]\ntopology: [Star]\nbandwidth: [1]\nlatency: [1]\n",
            "'Star' is not known",
        ),
        ("npus_count: [4, 2]\ntopology: [Ring]\nbandwidth: [1]\nlatency: [1]\n", "equally many"),
        ("npus_count: [0]\ntopology: [Ring]\nbandwidth: [1]\nlatency: [1]\n", "must be 1 to"),
        ("npus_count: [4]\ntopology: [Ring]\nbandwidth: [0]\nlatency: [1]\n", "above 0 GB/s"),
    ],
)
def test_astra_errors(text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        import_text(text, "network.yml")


def test_simai_servers_get_adapters_and_zones(sample: Sample) -> None:
    found = sample("simai.txt")
    machine = found.fabric()
    assert machine.num_zones == 2
    assert machine.ranks == ("n0/gpu0", "n0/gpu1", "n1/gpu0", "n1/gpu1")
    nodes = found.data["nodes"]
    assert nodes["n1/nic1"] == {"kind": "nic", "nic": "cx7-roce400", "zone": 1}
    assert nodes["spine0"]["zone"] == -1
    assert nodes["n1/pcie1"] == {"kind": "switch", "switch": "pcie-switch", "zone": 1}
    assert nodes["n1/nvswitch0"]["zone"] == 1
    rates = {(item["from"], item["to"]): item.get("rate") for item in found.data["links"]}
    assert rates["n0/gpu0", "n0/nvswitch0"] == "2880Gbps"
    assert rates["n0/nic0", "leaf0"] == "400Gbps"
    (noisy,) = [item for item in found.data["links"] if "error_rate" in item]
    assert (noisy["from"], noisy["error_rate"]) == ("leaf1", 0.001)


def test_ns3_files_have_hosts_and_switches(sample: Sample) -> None:
    found = sample("ns3.txt")
    assert found.data["links"] == [
        {
            "from": "host0",
            "to": "switch0",
            "type": "ethernet400",
            "rate": "100Gbps",
            "latency": "1us",
        },
        {
            "from": "host1",
            "to": "switch0",
            "type": "ethernet400",
            "rate": "100Gbps",
            "latency": "1000ns",
        },
        {
            "from": "host2",
            "to": "switch0",
            "type": "ethernet400",
            "rate": "100Gbps",
            "latency": "0.001ms",
        },
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("4 1 3\n9\n0 3 1Gbps 1us 0\n", "x.txt:2: unknown node '9'; choose 0 to 3"),
        ("4 1 1\n3\n0 3 1Foo 1us 0\n", "x.txt:3:"),
        ("4 1 1\n3\n0 0 1Gbps 1us 0\n", "x.txt:3: links 0 to itself"),
        ("4 1 1\n3\n0 3 1Gbps\n", "x.txt:3: a link must have"),
        ("4 2 1\n3\n", "must list 2 switches; lists 1"),
    ],
)
def test_simai_errors(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as failure:
        import_text(text, "x.txt", kind="simai")
    assert message in str(failure.value)


def test_graphs_with_attributes_of_any_names(sample: Sample) -> None:
    found = sample("plain.json")
    assert found.data["links"] == [
        {
            "from": "host0",
            "to": "leaf0",
            "type": "ethernet400",
            "rate": "40 Gb/s",
            "latency": "1.5us",
        },
        {
            "from": "host1",
            "to": "n7",
            "type": "ethernet400",
            "rate": "12.5 GB/s",
            "latency": "2us",
            "count": 2,
        },
        {"from": "n7", "to": "leaf0", "type": "ethernet400", "rate": "400 Gb/s"},
    ]
    assert found.data["nodes"]["leaf0"]["latency"] == "450ns"
    assert found.fabric().num_ranks == 2


def test_graphml_keys_and_defaults(sample: Sample) -> None:
    found = sample("plain.graphml", chip="b200-sxm")
    got = [(item["rate"], item["latency"]) for item in found.data["links"]]
    assert got == [("200 Gb/s", "800ns"), ("200 Gb/s", "900ns")]
    assert found.data["nodes"]["a"] == {"kind": "gpu", "chip": "b200-sxm"}


@pytest.mark.parametrize("name", ["dgx-a100", "fat-tree:k=4"])
def test_our_own_graphs_come_back_unchanged(name: str, tmp_path: Path) -> None:
    import networkx as nx

    machine = topology.load(name)
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(nx.node_link_data(topology.to_networkx(machine), edges="links")))
    assert topology.load(path) == machine


def test_every_sample_can_be_written_read_and_loaded(sample: Sample, tmp_path: Path) -> None:
    for path in sorted(SAMPLES.iterdir()):
        found = sample(path.name)
        out = tmp_path / f"{path.name}.yaml"
        out.write_text(found.to_yaml(), encoding="utf-8")
        assert topology.load(out) == topology.load(path) == found.fabric()
        for item in found.assumptions:
            assert item.what.split()[0] in out.read_text(encoding="utf-8")


def test_a_superchip_is_beside_its_processor() -> None:
    """A Grace for each NUMA node, to which its GPUs share 450 GB/s: whole in GH200, halves in GB200."""
    pair = "     GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X NV18 0-71 0\nGPU1 NV18 X {}\n"
    for chip, second, rate in (
        ("gh200", "72-143 1", "450000 MB/s"),
        ("gb200", "0-71 0", "225000 MB/s"),
    ):
        found = import_text(pair.format(second), "x", chip=chip).data
        assert {
            node["switch"] for name, node in found["nodes"].items() if name.startswith("cpu")
        } == {"grace"}
        own = [link for link in found["links"] if link["type"] == "nvlink-c2c"]
        assert [(link["from"], link["rate"]) for link in own] == [("gpu0", rate), ("gpu1", rate)]
        assert not any(link["type"].startswith("pcie") for link in found["links"])


def test_a_table_of_one_gpu_is_a_machine() -> None:
    found = import_text(
        "     GPU0 CPU Affinity NUMA Affinity\nGPU0  X  0-31  0\n", "x", chip="l40s"
    )
    assert (found.counts["gpus"], found.counts["cpus"]) == (1, 1)
    assert not [item for item in found.assumptions if "row is missing" in item.why]


def test_a_row_that_is_missing_is_told() -> None:
    lines = (SAMPLES / "smi_mesh.txt").read_text().splitlines()
    whole, less = (
        import_text("\n".join(text) + "\n", "x") for text in (lines, [*lines[:2], *lines[3:]])
    )
    told = [str(item) for item in less.assumptions if "row is missing" in item.why]
    assert told == [
        "gpu1: its paths, from the rows of the others (its row is missing in the table)"
    ]
    assert not [item for item in whole.assumptions if "row is missing" in item.why]
