"""Bandwidths that come out of the engine over PCIe and adapters, against what was measured on such machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusim.base import resources
from clusim_cli.main import run


def busbw_GBps(capsys: pytest.CaptureFixture[str], *words: str) -> float:
    """Run the command; return the bus bandwidth it reports."""
    own = "direct" if "sendrecv" in words else "ring"
    command = ["run", *words, "--algorithm", own, "--channels", "8", "--size", "64MiB", "--json"]
    assert run(command) == 0
    return float(json.loads(capsys.readouterr().out)["busbw_GBps"])


@pytest.mark.parametrize(
    ("slot", "chip", "measured_GBps"),
    [
        ("pcie-gen4-x16", "a100-pcie-40gb", 26.2),  # A100 device to host 26.19
        ("pcie-gen5-x16", "h100-pcie", 52.4),  # H100 device to host 52
    ],
)
def test_peers_below_a_switch(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    slot: str,
    chip: str,
    measured_GBps: float,
) -> None:
    path = resources.find_topology("a100-pcie-x8")
    assert path is not None
    text = path.read_text(encoding="utf-8")
    text = text.replace("chip: a100-pcie-40gb", f"chip: {chip}").replace("pcie-gen4-x16", slot)
    file = tmp_path / "box.yaml"
    file.write_text(text, encoding="utf-8")
    one_way = busbw_GBps(capsys, str(file), "--ranks", "0,1", "--collective", "broadcast")
    assert one_way == pytest.approx(measured_GBps, rel=0.02)
    both_ways = busbw_GBps(capsys, str(file), "--ranks", "0,1", "--collective", "sendrecv")
    assert one_way * 0.94 < both_ways < one_way, "acknowledgements cost the other direction"


def test_through_host_memory_is_slower_than_below_a_switch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    near = busbw_GBps(capsys, "a100-pcie-x8", "--ranks", "0,1", "--collective", "broadcast")
    far = busbw_GBps(capsys, "a100-pcie-x8", "--ranks", "0,4", "--collective", "broadcast")
    assert 10 < far < near


@pytest.mark.parametrize(("name", "wire_GBps"), [("hgx-h100-ndr", 49.7), ("dgx-a100", 24.84)])
def test_gpudirect_through_the_own_adapter(
    capsys: pytest.CaptureFixture[str], name: str, wire_GBps: float
) -> None:
    """Both directions at once: read requests of one share the slot with data of the other; 46-48 GB/s seen at NDR."""
    words = (name, "--nodes", "2", "--ranks", "0,8", "--collective", "sendrecv")
    assert 0.95 * wire_GBps < busbw_GBps(capsys, *words) < wire_GBps
