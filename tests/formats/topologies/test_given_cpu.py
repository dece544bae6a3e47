"""Processors given with ``--cpu``: recorded, NUMA nodes of one socket joined, refused where they make no sense."""

from __future__ import annotations

import pytest

from clusim.base.errors import ClusimError
from clusim.formats.topologies import import_text
from clusim.formats.topologies.identify import processor


def table(*numas: int, nics: int = 0) -> str:
    """Return `nvidia-smi topo -m` of GPUs on NUMA nodes, and adapters that are far from all of them."""
    names = [f"GPU{n}" for n in range(len(numas))] + [f"NIC{n}" for n in range(nics)]
    lines = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity"])]
    for at, name in enumerate(names):
        cells = [" X " if other == name else _way(at, to, numas) for to, other in enumerate(names)]
        rest = [f"{8 * numas[at]}-{8 * numas[at] + 7}", str(numas[at])] if at < len(numas) else []
        lines.append("\t".join([name, *cells, *rest]))
    return "\n".join(lines) + "\n"


def _way(a: int, b: int, numas: tuple[int, ...]) -> str:
    gpus = a < len(numas) and b < len(numas)
    return "PHB" if gpus and numas[a] == numas[b] else "SYS"


@pytest.mark.parametrize(
    ("numas", "cpu", "sockets"),
    [
        ((3, 3, 1, 1, 7, 7, 5, 5), "epyc-milan", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ((0, 1, 2, 3), "xeon-spr", [[0, 1], [2, 3]]),
        ((0, 0, 1, 1), "epyc-genoa", [[0, 1], [2, 3]]),
        ((0, 1, 2, 3), "grace", [[0], [1], [2], [3]]),
        ((0, 1, 2, 3), None, [[0], [1], [2], [3]]),
    ],
)
def test_numa_nodes_of_a_socket_are_one_processor(
    numas: tuple[int, ...], cpu: str | None, sockets: list[list[int]]
) -> None:
    found = import_text(table(*numas), "box.txt", cpu=cpu)
    at: dict[str, list[int]] = {}
    for link in found.data["links"]:
        if link["from"].startswith("gpu") and link["to"].startswith("cpu"):
            at.setdefault(link["to"], []).append(int(link["from"][3:]))
    assert sorted(at.values()) == sockets
    chips = {keys["switch"] for name, keys in found.data["nodes"].items() if name.startswith("cpu")}
    assert chips == {cpu or "root-complex"}
    assert found.data["sources"].get("cpu", "") == (f"{cpu}, given with --cpu" if cpu else "")
    joined = [item for item in found.assumptions if "two sockets of" in item.what]
    assert len(joined) == (len(sockets) < len(set(numas)))
    if cpu is None:
        assert any("--cpu does" in item.why for item in found.assumptions)
    found.fabric()


@pytest.mark.parametrize(
    ("vendor", "model", "name"),
    [
        ("NVIDIA", 3407, "grace"),
        ("NVIDIA", 16, "vera"),
        ("NVIDIA", None, "grace"),
        ("ARM", 16, "vera"),
    ],
)
def test_processors_of_one_maker_differ_by_their_model(
    vendor: str, model: int | None, name: str
) -> None:
    """The part number of MIDR_EL1: 0xd4f is Neoverse V2, 0x10 Olympus (Linux, cputype.h)."""
    assert processor("arm64", vendor, 0, model)[0].name == name


def test_adapters_near_no_gpu_keep_their_order_and_get_a_socket() -> None:
    found = import_text(table(1, 3, 5, 7, nics=2), "box.txt", cpu="epyc-rome")
    assert [name for name in found.data["nodes"] if name.startswith("cpu")] == ["cpu0", "cpu1"]
    assert {link["to"] for link in found.data["links"] if link["from"].startswith("nic")} == {
        "cpu1"
    }


def test_a_file_that_names_another_processor_is_overruled_in_words() -> None:
    text = (
        '<system version="1"><cpu numaid="0" affinity="1" arch="x86_64" vendor="GenuineIntel" familyid="6"'
        ' modelid="106"><pci busid="0000:01:00.0" class="0x030200" vendor="0x10de" device="0x2236"'
        ' link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="86" rank="0" gdr="1"/></pci></cpu></system>'
    )
    found = import_text(text, "box.xml", cpu="epyc-turin")
    assert found.data["nodes"]["cpu0"]["switch"] == "epyc-turin"
    assert any("given; the file names xeon-icx" in item.why for item in found.assumptions)


def test_an_unknown_processor_and_a_kind_without_any_are_errors() -> None:
    with pytest.raises(ClusimError, match=r"^no processor 'rome'; there are .*epyc-rome, .*grace"):
        import_text(table(0, 1), "box.txt", cpu="rome")
    with pytest.raises(ClusimError, match=r"^net\.yml: --cpu: .* does not use processors; omit it"):
        import_text("npus_count: [4]\n", "net.yml", cpu="grace")
