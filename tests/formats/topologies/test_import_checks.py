"""An import prints the errors and warnings of ``topo check`` at once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from clusim import topology
from clusim.formats.topologies.nccl_dump import dump_system
from clusim_cli.main import run


def slowed(text: str, speed: str) -> str:
    """Return an XML whose PCIe switches have uplinks of another speed."""
    bridge = r'(<pci [^>]*class="0x060400"[^>]*link_speed=")[^"]*'
    assert re.search(bridge, text)
    return re.sub(bridge, rf"\g<1>{speed}", text)


def printed(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(args) == 0
    return " ".join(capsys.readouterr().out.split())


def test_an_uplink_two_generations_below_its_devices_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "box.xml"
    path.write_text(slowed(dump_system(topology.load("dgx-h100")), "5.0 GT/s PCIe"))
    shown = printed(["topo", "import", str(path)], capsys)
    assert "found by `clusim topo check` (1): warning: PCIe switches" in shown
    assert "15.8:1; a single device is several times faster" in shown
    data = json.loads(printed(["topo", "import", str(path), "--json"], capsys))
    assert [item["level"] for item in data["findings"]] == ["warning"]


def test_an_uplink_one_generation_below_its_devices_is_usual(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "box.xml"
    path.write_text(slowed(dump_system(topology.load("dgx-h100")), "16.0 GT/s PCIe"))
    assert "topo check" not in printed(["topo", "import", str(path)], capsys)


def test_a_gpu_with_fewer_links_or_lanes_than_its_twins_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = dump_system(topology.load("a100x4-mesh"))
    first = text.index("<gpu ")
    text = text[:first] + text[first:].replace('count="4"', 'count="3"', 1)
    slot = text.index('link_width="16"', text.index('class="0x030200"'))
    text = text[:slot] + text[slot:].replace('link_width="16"', 'link_width="4"', 1)
    path = tmp_path / "mesh.xml"
    path.write_text(text)
    shown = printed(["topo", "import", str(path)], capsys)
    assert "asymmetric: gpu0 has" in shown
    assert "of pcie, gpu" in shown
    assert "NCCL reads other NVLinks than the hardware has: gpu0" in shown
