"""NVLinks and PCIe slots that NCCL is told of, where they are not those that are there.

NCCL takes the NVLinks of a GPU from the XML that it is given, one direction at a time; only of a GPU without any it
asks the driver. A file that somebody edited, or that a virtual machine made, then makes NCCL search on other links than
the wires: `Fabric.told` and `Fabric.told_pcie` have what it reads, `Fabric.links` what its data flow on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from clusim.topology.model import Fabric

SWITCH = "switch"
"""Stands for all NVSwitches, which NCCL takes for one."""


def told_of(fabric: Fabric, name: str) -> dict[str, int] | None:
    """Return links by where they lead of a GPU of any machine, as NCCL reads them; None: those that are there."""
    found = fabric.told.get(name)
    if found is None and "/" in name:
        zone, _, own = name.partition("/")
        found = fabric.told.get(own)
        if found is not None:
            return {to if to == SWITCH else f"{zone}/{to}": n for to, n in found.items()}
    return None if found is None else dict(found)


def told_slot(fabric: Fabric, name: str) -> tuple[int, int] | None:
    """Return generation and lanes of a GPU's or adapter's slot, as NCCL reads them; None: those that are there."""
    found = fabric.told_pcie.get(name) or fabric.told_pcie.get(name.partition("/")[2])
    if not found:
        return None
    gen, _, lanes = found.removeprefix("gen").partition("-x")
    return int(gen), int(lanes)


def wired(fabric: Fabric) -> dict[str, Counter[str]]:
    """Return the NVLinks that are there: GPU -> GPU or `SWITCH` -> how many."""
    gpus = {node.name for node in fabric.nodes if node.kind == "gpu"}
    found: dict[str, Counter[str]] = {name: Counter() for name in gpus}
    for link in fabric.links:
        if link.cls in ("nvlink", "xgmi"):
            for end, other in ((link.a, link.b), (link.b, link.a)):
                if end in gpus:
                    found[end][other if other in gpus else SWITCH] += link.count
    return found


def told_lines(fabric: Fabric) -> list[str]:
    """Return a line for each GPU of which NCCL is told something else than is there."""
    found = list(_lines(fabric)) if fabric.told else []
    slots: dict[tuple[str, str], list[str]] = {}
    links = {end: link for link in fabric.links for end in (link.a, link.b) if link.cls == "pcie"}
    for name, slot in fabric.told_pcie.items():
        there = f"{links[name].rate.bytes_per_s / 1e9:.3g} GB/s" if name in links else "no slot"
        slots.setdefault((slot, there), []).append(name)
    for (slot, there), names in slots.items():
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        found.append(
            f"NCCL is told of other PCIe slots than are there: {shown} at {slot}, not {there}"
        )
    return found


def _lines(fabric: Fabric) -> Iterator[str]:
    there = wired(fabric)
    for gpu, told in fabric.told.items():
        own = there.get(gpu, Counter())
        if dict(told) == {to: n for to, n in own.items() if n}:
            continue
        yield f"NCCL is told of other NVLinks than are there: {gpu} has {_shown(told)}, not {_shown(own)}"


def _shown(links: object) -> str:
    assert isinstance(links, dict)
    words = [
        f"{n} to {'NVSwitches' if to == SWITCH else to}" for to, n in sorted(links.items()) if n
    ]
    return " and ".join(words) or "none"
