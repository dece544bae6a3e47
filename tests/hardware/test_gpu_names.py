"""Names of GPUs: a name means its product or is unknown, and no reader takes a named GPU for another one."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest

import clusim
from clusim import topology
from clusim.base.errors import ClusimError
from clusim.base.units import parse_size
from clusim.formats.topologies import import_text
from clusim.hardware import GPUS
from clusim.hardware.identity import Identity, identify_gpu, unknown_gpu
from clusim.hardware.product_names import (
    FORM_WORDS,
    SIZE_TOLERANCE,
    VENDOR_WORDS,
    gpu_by_product,
    gpu_by_words,
)

NAMES = [
    (row["name"], row["chip"])
    for row in csv.DictReader(
        (Path(__file__).parent / "gpu_names.csv").read_text(encoding="utf-8").splitlines()
    )
]
"""Product names as `nvidia-smi -L`, `rocm-smi` and pci.ids print them, and the chip; empty: not known."""

WORDS = """
ti super d s x 3e max-q laptop mobile sff edition server workstation blackwell
ada generation ampere rtx gtx quadro titan pro station dgxs mig vf nvl nvl4
cnx plus lite a100 h100 6000 4090 96gb 24gb 40gb 64gb 80gb 141gb pcie
sxm2 sxm4 sxm5 sxm6 oam hbm2 hbm3 hbm3e gddr6 nvidia amd tesla geforce hgx
dgx
""".split()  # noqa: SIM905 - a list of words


TABLE = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-7\t0\nGPU1\tSYS\t X \t8-15\t1\n"
)


def listed(*names: str) -> str:
    lines = [f"GPU {n}: {name} (UUID: GPU-{n:08x})" for n, name in enumerate(names)]
    return "\n".join([*lines, TABLE])


@pytest.mark.parametrize(("name", "chip"), NAMES, ids=[name for name, _ in NAMES])
def test_a_name_is_its_product_or_unknown(name: str, chip: str) -> None:
    found = gpu_by_product(name)
    assert (found.name if found else "") == chip
    if found is None:
        assert unknown_gpu(name).startswith(f"the GPU {name} is not known")


@pytest.mark.parametrize(("name", "chip"), NAMES, ids=[name for name, _ in NAMES])
def test_a_table_with_a_listing_is_imported_with_its_gpus_or_refused(name: str, chip: str) -> None:
    if chip:
        nodes = import_text(listed(name, name), "box.txt").data["nodes"]
        assert {nodes["gpu0"]["chip"], nodes["gpu1"]["chip"]} == {chip}
    else:
        with pytest.raises(ClusimError, match=r"^box\.txt: the GPU .* is not known.*--chip"):
            import_text(listed(name, name), "box.txt")
        forced = import_text(listed(name, name), "box.txt", chip="l40s")
        assert forced.data["nodes"]["gpu0"]["chip"] == "l40s"
        assert any(name in item.why for item in forced.assumptions)


def _may_stay(word: str, chip: str) -> bool:
    """Return True if a word is a vendor's, or a form, size or memory type that the chip has."""
    item = GPUS[chip]
    size = parse_size(str(item.figures["memory"].value)) / (1 << 30)
    if word in VENDOR_WORDS or word in FORM_WORDS[item.form]:
        return True
    if word.endswith("gb") and word[:-2].isdecimal():
        return abs(int(word[:-2]) - size) <= SIZE_TOLERANCE * size
    if word.startswith("sxm"):
        return item.form == "sxm" and (
            word in item.name or not any(c in item.name for c in "23456")
        )
    return (
        word.startswith(("hbm", "gddr")) and word in str(item.figures["memory_rate"].source).lower()
    )


def test_a_further_word_makes_another_product() -> None:
    """A word beside a known name gives the same chip only if it is on a list or agrees with the chip."""
    drawn = random.Random(7)
    for item in GPUS.values():
        for product in (*item.products, item.name, item.model):
            assert gpu_by_product(product) is not None, product
            for word in drawn.sample(WORDS, 20):
                at = drawn.randrange(len(product.split()) + 1)
                text = " ".join([*product.split()[:at], word, *product.split()[at:]])
                found = gpu_by_product(text)
                if found is not None:
                    own = " ".join((found.name, found.model, *found.products, *found.names)).lower()
                    assert word in own or _may_stay(word, found.name), (text, found.name)


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("NVIDIA A10M", "a10"),
        ("NVIDIA A800 40GB Active", None),
        ("NVIDIA RTX 5000 Ada Generation", "rtx-6000-ada"),
        ("AMD Instinct MI308X", "mi300x"),
        ("NVIDIA GeForce RTX 5090 D", "rtx-5090"),
        ("NVIDIA Graphics Device", None),
        ("NVIDIA GeForce RTX 5070 Ti", "rtx-5090"),
        ("NVIDIA GeForce RTX 4060", "rtx-4090"),
        ("NVIDIA GeForce GTX 1080 Ti", None),
        ("NVIDIA B100", "b200-sxm"),
    ],
)
def test_the_nearest_known_chip_is_named(text: str, near: str | None) -> None:
    assert unknown_gpu(text).partition("the nearest is ")[2] == (near or "")


@pytest.mark.parametrize(
    ("identity", "chip"),
    [
        (Identity(capability=121), "gb10"),
        (Identity(vendor=0x10DE, device=1, capability=107), "vr200"),
        (Identity(capability=103), "b300-sxm"),
        (Identity(capability=103, coherent=True), "gb300"),
        (Identity(capability=90, coherent=True), "gh200"),
        (Identity(capability=90), "h100-sxm5"),
        (Identity(vendor=0x1002, device=1, capability=304, gfx="942"), "mi300x"),
    ],
)
def test_a_compute_capability_is_that_of_its_usual_or_only_chip(
    identity: Identity, chip: str
) -> None:
    result = identify_gpu(identity)
    assert result is not None
    assert result.name == chip


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        (Identity(capability=110), "no known GPU has sm 110"),
        (
            Identity(vendor=0x1D94, device=0x55B7, capability=90, gfx="21943"),
            "1d94:55b7: not a GPU",
        ),
        (Identity(vendor=0x1E3E, device=1, capability=80), "1e3e:0001: not a GPU of NVIDIA"),
        (Identity(capability=80, gfx="1250"), "no known GPU has gcn 1250"),
        (Identity(product="NVIDIA A16", capability=86), "the GPU NVIDIA A16 is not known"),
    ],
)
def test_an_unknown_gpu_is_refused_and_not_replaced(identity: Identity, message: str) -> None:
    with pytest.raises(ClusimError, match=message):
        identify_gpu(identity)
    assert identify_gpu(Identity()) is None


def test_gpus_of_one_table_may_differ() -> None:
    found = import_text(listed("NVIDIA A10", "Tesla T4"), "box.txt")
    assert [found.data["nodes"][f"gpu{n}"]["chip"] for n in (0, 1)] == ["a10", "t4"]
    with pytest.raises(ClusimError, match="the GPU NVIDIA T400 is not known"):
        import_text(listed("NVIDIA A10", "NVIDIA T400"), "box.txt")


SMI = """
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|=========================================+========================+======================|
|   0  {name:<27} On  |   00000000:01:00.0 Off |                    0 |
| N/A   30C    P0              60W / 300W |       0MiB / 32768MiB  |      0%      Default |
|   1  {name:<27} On  |   00000000:02:00.0 Off |                    0 |
"""


def test_the_table_of_nvidia_smi_names_gpus() -> None:
    found = import_text(SMI.format(name="Tesla V100S-PCIE-32GB") + TABLE, "box.txt")
    assert found.data["nodes"]["gpu1"]["chip"] == "v100s-pcie"
    with pytest.raises(ClusimError, match="the GPU NVIDIA A16 is not known; the nearest is a10"):
        import_text(SMI.format(name="NVIDIA A16") + TABLE, "box.txt")


LSTOPO = """<?xml version="1.0"?>
<topology version="2.0"><object type="Machine" os_index="0">
<object type="Package" os_index="0"><object type="NUMANode" os_index="0" cpuset="0x1"/></object>
<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-ff]">
<object type="PCIDev" pci_busid="0000:01:00.0" pci_type="0300 [10de:27b0] [10de:16fa] a1" pci_link_speed="0.5">
<object type="OSDev" name="nvml0" osdev_type="1"><info name="GPUModel" value="{name}"/></object>
</object></object></object></topology>
"""


def test_lstopo_names_gpus() -> None:
    with pytest.raises(ClusimError, match=r"NVIDIA RTX 4500 Ada Generation is not known; .*6000"):
        import_text(LSTOPO.format(name="NVIDIA RTX 4500 Ada Generation"), "box.xml")
    found = import_text(LSTOPO.format(name="NVIDIA H800 PCIe"), "box.xml")
    assert found.data["nodes"]["gpu0"]["chip"] == "h800-pcie"


def test_an_unknown_pci_device_is_said_by_its_number() -> None:
    text = (
        '<system version="1"><cpu numaid="0" affinity="1" arch="x86_64" vendor="GenuineIntel" familyid="6"'
        ' modelid="106"><pci busid="0000:01:00.0" class="0x030200" vendor="0x10de" device="0x25b6"'
        ' link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="86" rank="0" gdr="1"/></pci></cpu></system>'
    )
    found = import_text(text, "box.xml")
    assert any("PCI device 10de:25b6 is not known" in item.why for item in found.assumptions)


def test_a_graph_and_simai_that_name_an_unknown_gpu_are_refused() -> None:
    graph = (
        '{"nodes": [{"id": "a", "kind": "gpu", "model": "NVIDIA T400"}, {"id": "b", "kind": "gpu",'
        ' "model": "NVIDIA T400"}], "links": [{"source": "a", "target": "b"}]}'
    )
    with pytest.raises(ClusimError, match="the GPU NVIDIA T400 is not known"):
        import_text(graph, "g.json")


def test_names_of_presets_files_mean_their_chips() -> None:
    for name in ("dgx-a100", "hgx-h800", "l40s-x8", "mi300x", "gb200-nvl72"):
        found = gpu_by_words(f"{name}.xml")
        assert found is not None
        chips = {
            node.endpoint.chip
            for node in topology.load(name).nodes
            if node.kind == "gpu" and node.endpoint
        }
        assert found[0] is not None
        assert {found[0].name} == chips


LOG = """# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 1024 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#  Rank  0 Group  0 Pid   7 on    lab01 device  0 [0x01] {name}
#  Rank  1 Group  0 Pid   7 on    lab01 device  1 [0x21] {name}
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    99.00   10.59   10.59      0    99.00   10.59   10.59      0
"""  # noqa: E501 - as it is printed


@pytest.mark.parametrize(
    "name", ["NVIDIA A16", "NVIDIA GeForce RTX 4090 D", "NVIDIA A800 40GB Active"]
)
def test_a_replay_of_an_unknown_gpu_names_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(LOG.format(name=name), encoding="utf-8")
    with pytest.raises(ClusimError, match=rf"job\.log: the GPU {name} is not known.*--topology"):
        clusim.replay(path)
    path.write_text(LOG.format(name="NVIDIA A10"), encoding="utf-8")
    with pytest.raises(
        ClusimError, match=r"job\.log: no preset has the GPU NVIDIA A10; .*--topology"
    ):
        clusim.replay(path)
    path.write_text(LOG.format(name="NVIDIA L20"), encoding="utf-8")
    assert clusim.replay(path).machine[0].startswith("l20-x8: concluded")
