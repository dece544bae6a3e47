"""NCCL and RCCL files: what they state is in the fabric, what they do not state is a listed assumption."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clusim.base.errors import TopologyError
from clusim.formats.topologies import Imported, import_text

Sample = Callable[..., Imported]


def links(found: Imported) -> dict[tuple[str, str], tuple[int, str]]:
    """Return count and type of the links by their ends."""
    return {
        (item["from"], item["to"]): (item.get("count", 1), item["type"])
        for item in found.data["links"]
    }


def said(found: Imported, where: str) -> list[str]:
    """Return what was assumed of something."""
    return [item.what for item in found.assumptions if item.where == where]


def system(body: str, **options: Any) -> Imported:
    return import_text(f'<system version="1">{body}</system>', "x.xml", **options)


def cpu(body: str, **attributes: str) -> str:
    given = {
        "numaid": "0",
        "arch": "x86_64",
        "vendor": "GenuineIntel",
        "familyid": "6",
    } | attributes
    given.setdefault("modelid", "106")
    return f"<cpu {' '.join(f'{k}={v!r}' for k, v in given.items())}>{body}</cpu>"


def gpu(
    bus: int,
    dev: int,
    links: str = "",
    device: str = "0x20b2",
    speed: str = "16 GT/s",
    width: int = 16,
) -> str:
    return (
        f'<pci busid="0000:{bus:02x}:00.0" class="0x030200" vendor="0x10de" device="{device}"'
        f' link_speed="{speed}" link_width="{width}"><gpu dev="{dev}" sm="80" rank="{dev}">{links}</gpu></pci>'
    )


def test_a_file_that_was_pasted_is_read_and_errors_name_its_lines() -> None:
    text = f'<system version="1">\n{cpu(gpu(1, 0))}\n</system>'
    bare = import_text(text, "x")
    for front, behind in (
        ("$ cat box.xml\n", ""),
        ("```xml\n", "\n```\n"),
        ("Ours:\n\n", "\nWhy?\n"),
    ):
        pasted = import_text(front + text + behind, "x")
        assert (pasted.kind, pasted.data["links"]) == ("nccl-xml", bare.data["links"])
    with pytest.raises(TopologyError, match="x:5: not valid XML"):
        import_text(f"Ours:\n\n{text.replace('</cpu>', '<cpu>')}", "x")


def test_a_dump_gives_exactly_what_it_states(sample: Sample) -> None:
    found = sample("dump.xml")
    assert found.kind == "nccl-xml"
    assert links(found) == {
        ("pcie0", "cpu0"): (1, "pcie-gen5-x16"),
        ("gpu0", "pcie0"): (1, "pcie-gen5-x16-gpu"),
        ("card0", "pcie0"): (1, "pcie-gen4-x16"),
        ("nic0", "card0"): (1, "pcie-gen4-x16"),
        ("nic1", "card0"): (1, "pcie-gen4-x16"),
        ("pcie1", "cpu1"): (1, "pcie-gen2-x16"),
        ("gpu1", "pcie1"): (1, "pcie-gen5-x16-gpu"),
        ("gpu0", "nvswitch0"): (4, "nvlink4"),
        ("gpu1", "nvswitch0"): (4, "nvlink4"),
        ("gpu0", "nvswitch1"): (5, "nvlink4"),
        ("gpu1", "nvswitch1"): (5, "nvlink4"),
        ("cpu0", "mem0"): (1, "dram-ddr5-4800x8"),
        ("cpu1", "mem1"): (1, "dram-ddr5-4800x8"),
        ("cpu0", "cpu1"): (3, "upi-16"),
    }
    nodes = found.data["nodes"]
    assert nodes["pcie0"]["switch"] == "pex89144"
    assert nodes["pcie1"]["switch"] == "plx-pex9797"
    assert nodes["nic0"] == {"kind": "nic", "nic": "cx7-roce200"}
    assert nodes["cpu0"] == {"kind": "switch", "switch": "xeon-spr"}
    assert "architecture" not in found.data, "the chips say it"


def test_ranks_follow_rank_and_names_follow_dev(sample: Sample) -> None:
    fabric = sample("dump.xml").fabric()
    assert fabric.ranks == ("gpu1", "gpu0")


def test_what_is_odd_in_a_dump_is_said(sample: Sample) -> None:
    found = sample("dump.xml")
    assert said(found, "nic0") == ["16 lanes"]
    assert said(found, "pcie1") == ["its link to the CPU runs at generation 2, as in the file"]
    assert said(found, "0000:08:00.0") == ["a part of the switch above it"]
    assert said(found, "0000:20:00.0") == ["ignored"]


def test_a_virtual_machine_hides_speeds_and_switches(sample: Sample) -> None:
    found = sample("vm.xml")
    got = links(found)
    assert [got["gpu0", f"nvswitch{i}"] for i in range(6)] == [(2, "nvlink3")] * 6
    assert got["gpu1", "cpu1"] == (1, "pcie-gen4-x16-gpu")
    assert got["nic0", "cpu0"] == (1, "pcie-gen3-x16")
    assert found.counts["nics"] == 1
    assert said(found, "eth0") == ["one NIC, at the first CPU that lists it"]
    assert "its 12 links lead to 6 NVSwitches, 2/2/2/2/2/2" in said(found, "gpu0..1")


def test_a_vendor_file_names_no_gpus_and_no_links(sample: Sample) -> None:
    found = sample("vendor.xml")
    assert (found.counts["gpus"], found.counts["nics"], found.counts["nvlink_links"]) == (2, 1, 24)
    assert said(found, "gpu0..1") == ["links to 6 NVSwitches, 2/2/2/2/2/2"]
    assert found.data["network"] == {"kind": "rail", "link": "ib-hdr", "switch": "quantum"}


def test_another_chip_can_be_named(sample: Sample) -> None:
    found = sample("vendor.xml", chip="A100-PCIE-80GB")
    assert found.data["nodes"]["gpu0"]["chip"] == "a100-pcie-80gb"
    assert found.counts.get("nvlink_links", 0) == 0
    with pytest.raises(TopologyError, match="no chip 'z100'; did you mean"):
        sample("vendor.xml", chip="z100")


def test_xgmi_meshes_have_rings_and_odd_counts_are_said(sample: Sample) -> None:
    found = sample("mesh.xml")
    got = links(found)
    assert got["gpu0", "gpu1"] == (2, "xgmi-mi100")
    assert got["gpu2", "gpu3"] == (1, "xgmi-mi100")
    assert found.counts["xgmi_links"] == 5
    assert found.data["rings"] == [[0, 1, 2, 3], [0, 3, 2, 1]]
    assert said(found, "gpu0-gpu1") == ["2 links"]
    assert said(found, "gpu2") == ["1 links to 0000:99:00.0 ignored"]
    assert found.data["nodes"]["nic0"] == {"kind": "nic", "nic": "cx6-hdr-no-gdr"}
    assert found.fabric().nodes[4].nic.gpudirect is False  # type: ignore[union-attr]


def test_gpus_that_name_themselves_are_bridged_pairs() -> None:
    own = '<nvlink target="0000:{:02x}:00.0" count="12" tclass="0x030200"/>'
    body = "".join(gpu(i, i - 1, own.format(i), device="0x20b5") for i in (1, 2, 3))
    found = system(cpu(body))
    assert links(found)["gpu0", "gpu1"] == (12, "nvlink3")
    assert ("gpu1", "gpu2") not in links(found)
    assert said(found, "gpu2") == ["12 links ignored"]


def test_coherent_links_and_power_links_lead_to_the_cpu() -> None:
    body = gpu(1, 0, '<c2c bw="44712" count="10"/>', device="0x2342")
    found = system(cpu(body, arch="arm64", vendor="NVIDIA"))
    (link,) = [item for item in found.data["links"] if item["type"] == "nvlink-c2c"]
    assert (link["from"], link["to"], link["rate"]) == ("gpu0", "cpu0", "447120 MB/s")
    assert found.data["nodes"]["cpu0"]["switch"] == "grace"
    body = gpu(1, 0, '<nvlink target="0000:aa:00.0" count="3" tclass="0x068001"/>', device="0x1db1")
    found = system(cpu(body, arch="ppc64", vendor="IBM"))
    (link,) = [item for item in found.data["links"] if item["type"] == "nvlink2"]
    assert (link["from"], link["to"], link["count"]) == ("gpu0", "cpu0", 3)


@pytest.mark.parametrize(
    ("speed", "width", "kind"),
    [
        ("2.5 GT/s PCIe", 8, "pcie-gen1-x8-gpu"),
        ("8.0 GT/s PCIe", 16, "pcie-gen3-x16-gpu"),
        ("8 GT/s", 4, "pcie-gen3-x4-gpu"),
        ("64.0 GT/s PCIe", 16, "pcie-gen6-x16-gpu"),
        ("15 GT/s", 16, "pcie-gen4-x16-gpu"),
        ("", 0, "pcie-gen4-x16-gpu"),
        ("Unknown", 2, "pcie-gen4-x2"),
    ],
)
def test_speed_and_width_become_the_nearest_type(speed: str, width: int, kind: str) -> None:
    found = system(cpu(gpu(1, 0, speed=speed, width=width)))
    assert links(found)["gpu0", "cpu0"] == (1, kind)


@pytest.mark.parametrize(
    ("attributes", "root"),
    [
        ({"modelid": "79"}, "xeon-bdw"),
        ({"modelid": "85"}, "xeon-skl"),
        ({"modelid": "173"}, "xeon-gnr"),
        ({"vendor": "AuthenticAMD", "familyid": "143", "modelid": "49"}, "epyc-rome"),
        ({"vendor": "AuthenticAMD", "familyid": "23", "modelid": "1"}, "epyc-naples"),
        ({"vendor": "AuthenticAMD", "familyid": "175", "modelid": "1"}, "epyc-milan"),
        ({"vendor": "AuthenticAMD", "familyid": "175", "modelid": "17"}, "epyc-genoa"),
        ({"vendor": "AuthenticAMD", "familyid": "191", "modelid": "2"}, "epyc-turin"),
        ({"arch": "ppc64"}, "power9"),
        ({"arch": "arm64"}, "arm"),
    ],
)
def test_processors_become_root_complexes(attributes: dict[str, str], root: str) -> None:
    found = system(cpu(gpu(1, 0), **attributes))
    assert found.data["nodes"]["cpu0"]["switch"] == root


def test_every_two_numa_nodes_of_a_host_are_joined() -> None:
    body = "".join(cpu(gpu(i + 1, i), numaid=str(i)) for i in range(4))
    got = links(system(body))
    pairs = {ends: keys for ends, keys in got.items() if ends[0][:3] == ends[1][:3] == "cpu"}
    assert len(pairs) == 6
    assert set(pairs.values()) == {(1, "upi-11.2")}


def test_two_boards_of_switches_are_joined_as_in_a_dgx_2() -> None:
    def nvlinks(board: int) -> str:
        return "".join(
            f'<nvlink target="0000:{0xB0 + 8 * board + i:02x}:00.0" count="1" tclass="0x068000"/>'
            for i in range(6)
        )

    body = "".join(gpu(i + 1, i, nvlinks(i // 8), device="0x1db8") for i in range(16))
    found = system(cpu(body))
    got = links(found)
    assert [got[f"nvswitch{i}", f"nvswitch{i + 6}"] for i in range(6)] == [(8, "nvlink2")] * 6
    assert found.counts["nvlink_links"] == 16 * 6 + 6 * 8


def test_gpus_without_a_pci_device_and_devices_without_a_cpu() -> None:
    found = system(cpu('<gpu dev="0"/>') + gpu(9, 1))
    assert (found.counts["gpus"], found.counts["cpus"]) == (2, 2)


def test_groups_are_chosen_by_number_or_name(sample: Sample) -> None:
    first = sample("groups.xml")
    assert (first.counts["gpus"], first.counts["nics"]) == (2, 2)
    assert said(first, "mlx5_0") == ["ignored"]
    for choice in ("1", "other"):
        second = sample("groups.xml", group=choice)
        assert (second.counts["gpus"], second.counts["nics"]) == (4, 4)
        assert list(second.data["nodes"])[:4] == ["gpu0", "gpu1", "gpu2", "gpu3"]
    with pytest.raises(TopologyError, match="no group '7'"):
        sample("groups.xml", group="7")


def test_a_graph_gives_a_machine_its_channels_fit_on(sample: Sample) -> None:
    found = sample("graph.xml")
    got = links(found)
    assert found.kind == "nccl-graph"
    assert (found.counts["gpus"], found.counts["nics"]) == (4, 1)
    nvlinks = {ends: keys[0] for ends, keys in got.items() if keys[1].startswith("nvlink")}
    assert nvlinks == {
        ("gpu0", "gpu1"): 2,
        ("gpu1", "gpu2"): 2,
        ("gpu2", "gpu3"): 2,
        ("gpu0", "gpu2"): 1,
        ("gpu0", "gpu3"): 1,
        ("gpu1", "gpu3"): 1,
    }
    assert found.assumptions[0].where == "all hardware"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<system><cpu", "x.xml:1: not valid XML"),
        (
            "<system>\n<cpu numaid='zero'/></system>",
            "x.xml:2: numaid='zero' of <cpu>: must be an integer",
        ),
        ("<system/>", "no <cpu> and no <pci>"),
        ("<system><cpu/></system>", "names no GPU"),
        ("<!DOCTYPE system [<!ENTITY a 'b'>]><system>&a;</system>", "document type or entities"),
        ("<system>" + "<pci>" * 70 + "</pci>" * 70 + "</system>", "nested deeper than 64 levels"),
        ("<graphs><graph/></graphs>", "without channels"),
        ("<other/>", "not a topology that can be imported"),
        (
            "<system><cpu><pci busid='1'><gpu dev='0' sm='80'>\n<nvlink target='x' count='99999'/>"
            "</gpu></pci></cpu></system>",
            "x.xml:2: count=99999 of <nvlink>: must be 0 to 1024",
        ),
    ],
)
def test_errors_say_where_and_what(text: str, message: str) -> None:
    with pytest.raises(TopologyError) as failure:
        import_text(text, "x.xml")
    assert message in str(failure.value)
    assert "\n" not in str(failure.value)


def test_nics_keep_their_device_names_and_ports() -> None:
    nics = "".join(
        f'<pci busid="0000:{bus}0:00.0" class="0x020700" vendor="0x15b3" device="0x101b">'
        f'<nic><net name="{name}" dev="{bus}" speed="200000" port="{port}" gdr="1"/></nic></pci>'
        for bus, name, port in ((1, "mlx5_4", 1), (2, "mlx5_7", 2), (3, "ib weird", 1))
    )
    found = system(cpu(gpu(8, 0) + gpu(9, 1) + nics))
    assert sorted(found.data["nic_names"].values()) == ["mlx5_4", "mlx5_7:2"]
    for name, device in found.data["nic_names"].items():
        assert found.data["sources"][name].startswith(device.partition(":")[0])
    assert found.fabric().nic_names == found.data["nic_names"]
