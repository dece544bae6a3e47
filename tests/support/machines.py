"""Small machines, written for one question each, and clusters of them."""

from __future__ import annotations

from pathlib import Path

from clusim.topology import Fabric, load

__all__ = ["cluster_of", "pcie_machine"]


def pcie_machine(
    *,
    gpus: int = 2,
    gen: int = 4,
    chip: str = "a100-pcie-40gb",
    nvlink: bool = False,
    below: str = "pcie",
    extra: str = "",
    nic: str = "cx6-hdr",
) -> str:
    """Return the YAML of a machine: GPUs and a NIC below a PCIe switch, or with ``below="cpu"`` a root complex."""
    parent = "pcie0" if below == "pcie" else "cpu0"
    links = [f"  - {{from: gpu0..{gpus - 1}, to: {parent}, type: pcie-gen{gen}-x16-gpu}}"]
    links.append(f"  - {{from: nic0, to: {parent}, type: pcie-gen{gen}-x16}}")
    links.append(f"  - {{from: pcie0, to: cpu0, type: pcie-gen{gen}-x16}}")
    links.append("  - {from: cpu0, to: mem0, type: dram-ddr4-3200x8}")
    if nvlink:
        links.append(f"  - {{from: gpu0..{gpus - 1}, to: switch0, count: 4, type: nvlink3}}")
    return "\n".join(
        [
            "name: bench",
            "p2p: write",
            "channels: {default: 2}",
            extra,
            "nodes:",
            f"  gpu0..{gpus - 1}: {{kind: gpu, chip: {chip}}}",
            "  pcie0: {kind: switch, switch: pcie-switch}",
            *(["  switch0: {kind: switch, switch: nvswitch2}"] if nvlink else []),
            f"  nic0: {{kind: nic, nic: {nic}}}",
            "  cpu0: {kind: switch, switch: xeon-icx}",
            "  mem0: {kind: memory, chip: ddr4-3200x8}",
            "links:",
            *links,
            "network: {kind: single, link: ib-hdr, switch: quantum}",
        ]
    )


def cluster_of(text: str, tmp_path: Path, nodes: int = 2) -> Fabric:
    """Return `nodes` machines of a YAML text, joined by their network."""
    path = tmp_path / "bench.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, nodes=nodes)
