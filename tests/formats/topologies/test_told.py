"""What NCCL is told and what the wires are: XML files that somebody edited, or that list no NVLinks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusim import topology
from clusim.base.errors import TopologyError
from clusim.base.terms.operations import Algorithm
from clusim.formats.topologies import Imported, import_text
from clusim.nccl import LATEST, Version, parse_env
from clusim.nccl.choice import Communicators
from clusim.nccl.topology import build_system

HIDDEN = '<nvlink target="fffffff:ff:ff.0" count="{}" tclass="0x068000"/>'


def link(to: int, count: int) -> str:
    return f'<nvlink target="0000:{to + 1:02x}:00.0" count="{count}" tclass="0x030200"/>'


def gpu(index: int, links: str, sm: int, device: str) -> str:
    return (
        f'<pci busid="0000:{index + 1:02x}:00.0" class="0x030200" vendor="0x10de" device="{device}"'
        f' link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="{index}" sm="{sm}" rank="{index}" gdr="1">'
        f"{links}</gpu></pci>"
    )


def system(*links: str, sm: int = 80, device: str = "0x20b0") -> Imported:
    gpus = "".join(gpu(i, own, sm, device) for i, own in enumerate(links))
    head = '<cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">'
    return import_text(f'<system version="1">{head}{gpus}</cpu></system>', "x.xml")


def channels(found: Imported) -> int:
    machine = found.fabric()
    members = Communicators(machine, LATEST, parse_env({})).of(tuple(range(machine.num_ranks)))
    return members.comm.num_searched


def test_one_direction_is_what_nccl_searches_on() -> None:
    """Measured on two A100 whose file says count="1" on one side: one channel of the graph, 28.5 GB/s."""
    whole, odd = system(link(1, 12), link(0, 12)), system(link(1, 12), link(0, 1))
    assert odd.data["links"] == whole.data["links"]
    assert odd.data["told"] == {"gpu1": {"gpu0": 1}}
    assert "told" not in whole.data
    assert channels(odd) == 1
    assert channels(whole) == 12
    seen = build_system(odd.fabric(), LATEST)
    rates = [next(k.rate for k in one.links if k.kind == "nvl") for one in seen.gpus]
    assert rates == [240.0, 20.0]
    assert seen.told == [
        "NCCL reads other NVLinks than the hardware has: gpu1 has 1 to gpu0, not 12 to gpu0"
    ]


def test_a_gpu_has_the_links_that_its_dump_lists_in_search_and_wires() -> None:
    """17 of 18 links of one GPU, and none of another: the driver's answer in a dump of a run."""
    for count, links in ((17, 17), (0, 0)):
        lists = [HIDDEN.format(18)] * 7 + [HIDDEN.format(count) if count else ""]
        found = system(*lists, sm=90, device="0x2330")
        assert found.counts["nvlink_links"] == 7 * 18 + links
        assert "told" not in found.data
        warnings = [item.what for item in topology.check(found.fabric()) if item.level == "warning"]
        assert any(line.startswith("asymmetric: gpu7 has") for line in warnings)


def test_a_gpu_of_a_rack_without_nvlinks_leaves_one_slow_ring() -> None:
    """NCCL's fallback without a ring: one channel of 0.1 GB/s, doubled, and no NVLS."""
    machine = system(*[HIDDEN.format(18)] * 7, "", sm=90, device="0x2330").fabric()
    members = Communicators(machine, LATEST, parse_env({})).of(tuple(range(8)))
    assert not members.comm.nvls_channels
    hosts = [
        (f"0x{host}", links) for host in "ab" for links in ((18, 18) if host == "a" else (18, 0))
    ]
    text = "".join(tray(number, host, links) for number, (host, links) in enumerate(hosts))
    rack = import_text(f'<system version="1">{text}</system>', "tray.xml").fabric()
    found = Communicators(rack, LATEST, parse_env({})).of((0, 1, 2, 3)).comm
    ring = found.graphs[Algorithm.RING]
    assert (ring.num_channels, ring.intra_GBps, found.num_channels) == (1, 0.1, 2)
    lines = [item.what for item in topology.check(rack) if item.level == "warning"]
    assert any(
        line.startswith("gpu3: no NVLink, unlike the other GPUs of the rack") for line in lines
    )


def tray(number: int, host: str, links: int) -> str:
    """Return a host of a rack with one superchip."""
    nvlinks = HIDDEN.format(links) if links else ""
    return (
        f'<cpu host_hash="{host}" numaid="{number}" arch="arm64"><pci busid="000{number}:06:00.0" class="0x030200">'
        f'<gpu dev="{number}" sm="103" rank="{number}" gdr="1">{nvlinks}<c2c bw="44712" count="5"/></gpu></pci></cpu>'
    )


def test_files_without_nvlinks_are_completed_as_nccl_asks_the_driver() -> None:
    silent = system(*("" for _ in range(8)), sm=90, device="0x2330")
    assert silent.counts["nvlink_links"] == 8 * 18
    assert "told" not in silent.data
    cards = system("", "", sm=86, device="0x2204")
    assert cards.counts.get("nvlink_links", 0) == 0


def test_an_input_of_nccl_may_leave_links_of_some_gpus_to_the_driver() -> None:
    links = [HIDDEN.format(18)] * 7
    gpus = "".join(gpu(i, own, 90, "0x2330") for i, own in enumerate([*links, ""]))
    text = re.sub(r' (sm|rank)="[0-9]+"', "", gpus)
    head = '<cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">'
    found = import_text(f'<system version="1">{head}{text}</cpu></system>', "x.xml")
    assert found.counts["nvlink_links"] == 8 * 18


def test_gpus_that_name_themselves_have_wires_that_nccl_does_not_see() -> None:
    found = system(*(link(i, 12) for i in range(2)), device="0x20b5")
    assert found.counts["nvlink_links"] == 12
    assert found.data["told"] == {"gpu0": {"gpu0": 12}, "gpu1": {"gpu1": 12}}
    seen = build_system(found.fabric(), Version(2, 21, 5))
    assert not any(k.kind == "nvl" for one in seen.gpus for k in one.links)


def test_it_is_kept_in_topology_files_and_clusters(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    found = system(link(1, 12), link(0, 1))
    path.write_text(found.to_yaml())
    machine = topology.load(path)
    assert machine.told == {"gpu1": {"gpu0": 1}}
    path.write_text(topology.to_yaml(machine))
    assert topology.load(path).told == machine.told
    path.write_text(found.to_yaml().replace("gpu1: {gpu0: 1}", "gpu7: {gpu0: 1}"))
    with pytest.raises(TopologyError, match="unknown GPU 'gpu7'"):
        topology.load(path)
