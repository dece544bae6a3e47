"""Names of the hardware presets of importers, and definitions of hardware without preset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusim.base.errors import InternalError, UnitError
from clusim.base.limits import printable
from clusim.base.records import dataclass
from clusim.base.units import parse_rate
from clusim.formats.topologies.common import CHIP_OPTION, Draft
from clusim.formats.topologies.identify import (
    ImportedDevice,
    Net,
    PciClass,
    nic_model,
)
from clusim.hardware import (
    ADAPTERS,
    GPUS,
    LINKS,
    PCIE_SWITCH_IDS,
    USUAL_SWITCHES,
    Cpu,
    Gpu,
    gpu,
    stand_in,
)
from clusim.hardware.identity import unknown_gpu
from clusim.hardware.networks import USUAL_LINKS
from clusim.hardware.product_names import gpu_by_product, gpu_by_words
from clusim.topology.keys import did_you_mean


def known_chip(draft: Draft, name: str, where: str) -> str:
    """Return the chip's name; GPUs of another architecture use the protocols of the first."""
    architecture = gpu(name).architecture.name
    for keys in draft.nodes.values():
        is_gpu = keys["kind"] == "gpu"
        first = gpu(keys["chip"]).architecture.name if is_gpu else architecture
        if first != architecture and "architecture" not in draft.settings:
            draft.settings["architecture"] = first
            draft.assume(
                where, f"the protocols of {first}", f"{name} is {architecture}"
            )
    return name


def given_chip(draft: Draft) -> str:
    """Return the chip that the user names, empty if he does not."""
    if not draft.chip:
        return ""
    result = gpu_by_product(draft.chip)
    if result is None:
        raise draft.fail(
            f"no chip {printable(draft.chip)!r}{did_you_mean(draft.chip, GPUS)}"
        )
    return result.name


def product_chip(draft: Draft, text: str) -> str:
    """Return the chip of a product that the file names."""
    result = gpu_by_product(text)
    if result is None:
        message = f"{unknown_gpu(text)}; choose a simulated GPU with --chip NAME"
        raise draft.fail(message)
    return result.name


def hinted_chip(draft: Draft, where: str | list[str], part: str) -> str:
    """Return the assumed chip of the unnamed GPUs `where`; `part` is a part of the reason."""
    hint = gpu_by_words(Path(draft.where).name)
    if hint is not None and hint[0] is not None:
        draft.assume(where, f"chip {hint[0].name}", "by the file's name")
        return hint[0].name
    aside = f"unknown {hint[1]!r} in the file's name; " if hint else ""
    chip = unnamed_chip()
    draft.assume(
        where, f"chip {chip}", f"{aside}{part}; --chip does", settles=CHIP_OPTION
    )
    return chip


def unnamed_chip() -> str:
    """Return the chip assumed for GPUs without any identification."""
    result = stand_in("anything")
    if result is None:
        raise InternalError("no default GPU")
    return result.name


def check_rate(text: str) -> None:
    """Raise `UnitError` if a text is not a rate above 0."""
    if parse_rate(text).num == 0:
        raise UnitError(f"{printable(text)!r}: zero bandwidth")


def pcie_type(gen: int, lanes: int) -> str:
    """Return the link type of a PCIe connection."""
    return f"pcie-gen{gen}-x{lanes}"


def gpu_pcie(link: str) -> str:
    """Return the type of the same connection with a GPU at its end."""
    return f"{link}-gpu" if f"{link}-gpu" in LINKS else link


def pcie_switch(vendor: int | None, device: int | None) -> tuple[str, str]:
    """Return the type of a PCIe switch, and the reason (empty if the file names the switch)."""
    name = PCIE_SWITCH_IDS.get((vendor or 0, device or 0), "")
    if name:
        return name, ""
    if vendor in (None, 0xFFFF) or device is None:
        return "pcie-switch", "the file does not name the switch"
    return "pcie-switch", f"no figures of the switch 0x{vendor:04x}:0x{device:04x}"


def c2c_link(rate_MBps: int) -> dict[str, Any]:
    """Return the keys of a coherent link between a GPU and its CPU."""
    return {"type": "nvlink-c2c", "rate": f"{min(rate_MBps, 10**7)} MB/s"}


def shared_c2c(gpus: int) -> dict[str, Any]:
    """Return the keys of the coherent link of each GPU among several that share a CPU's."""
    rate = parse_rate(str(LINKS["nvlink-c2c"]["rate"].value))
    return c2c_link(rate.num * 10**6 // rate.den // gpus)


def nvlink_keys(chip: Gpu, *, xgmi: bool = False) -> dict[str, Any]:
    """Return the keys of a link between GPUs, or between a GPU and an NVSwitch."""
    if chip.link and chip.link.startswith("xgmi") == xgmi:
        return {"type": chip.link}
    if xgmi:
        alike = (c for c in GPUS.values() if (c.pcie >= 5) == (chip.pcie >= 5))
        return {"type": next(c.link for c in alike if c.link.startswith("xgmi"))}
    return {"type": chip.architecture.nvlink}


def direct_keys(chip: Gpu, *, xgmi: bool = False) -> dict[str, Any]:
    """Return the keys of a direct link between GPUs, without a switch."""
    return {**nvlink_keys(chip, xgmi=xgmi), "latency": DIRECT_LATENCY}


DIRECT_LATENCY = "275ns"
"""Egress of 150 to 200 ns, twice a SerDes of 50 ns; a link to a switch has half."""

_USUAL_Gbps = {3: 100, 4: 200, 5: 400, 6: 800}
"""Usual rate of the NICs of nodes by PCIe generation [Gb/s]."""

SLOW_Gbps = 10
"""Maximum rate of Ethernet that is assumed to be for management (TCP) [Gb/s]."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """Identity of a network interface.

    Attributes
    ----------
    name : str
        Its preset.
    kind : str
        Type of its network: ``ib``, ``roce``, ``efa``, ``slingshot``, ``tcp``.
    gbps : float
        Rate [Gb/s].
    why : str
        Reason of the assumption; empty if the file names it.
    direct : bool
        True if its preset has GPUDirect, so that a file that denies it needs another.
    """

    name: str
    kind: str
    gbps: float
    why: str
    direct: bool = True


def adapter_of(net: Net, device: ImportedDevice | None, generation: int) -> Adapter:
    """Return the identity of an interface.

    `generation` is the PCIe generation of the GPUs, used if the file does not contain a rate.
    """
    family, ethernet, gbps = (
        nic_model(device.vendor, device.device) if device else ("", False, 0)
    )
    speed_Gbps = max(0.001, net.speed_mbps / 1000) if net.speed_mbps else float(gbps)
    infiniband = (
        device is not None
        and (device.cls or 0) >> 8 == PciClass.INFINIBAND >> 8
        and not ethernet
    )
    rate = speed_Gbps or float(_USUAL_Gbps.get(generation, 200))
    kind = {"efa": "efa", "cassini": "slingshot"}.get(
        family, "ib" if infiniband else "roce"
    )
    why = ""
    if device is None or (
        kind == "roce" and not family and speed_Gbps and rate <= SLOW_Gbps
    ):
        kind = "tcp"
        why = (
            "an interface of the kernel"
            if device is None
            else f"{rate:g} Gb/s: for management"
        )
    table = _adapters(kind, family)
    if kind in ("ib", "roce"):
        speed_text = f"{rate:g} Gb/s {'InfiniBand' if kind == 'ib' else 'Ethernet'}"
        if not speed_Gbps:
            why = f"no NIC or rate in the file; usual with PCIe Gen{generation}"
        elif not family:
            why = f"{speed_text}; the file does not name the NIC"
        elif min(abs(speed - rate) for speed in table) > 1:
            why = f"the nearest we have to {speed_text}"
    return Adapter(_nearest(table, rate), kind, rate, why, direct=kind != "tcp")


def stated_adapter(draft: Draft, net: Net, model: str) -> Adapter:
    """Return the NIC of a remark in the file."""
    rate = net.speed_mbps / 1000 if net.speed_mbps else 0.0
    if model in draft.remarks.nics:
        keys = draft.remarks.nics[model]
        draft.define("nics", model, keys)
        return Adapter(
            model, "roce", rate, "", direct=keys.get("gpudirect") is not False
        )
    adapter = ADAPTERS[model]
    direct = bool(adapter.figures["gpudirect"].value)
    return Adapter(model, adapter.kind, rate or adapter.gbps, "", direct=direct)


def _adapters(kind: str, family: str) -> dict[int, str]:
    """Return the NICs for a network by rate [Gb/s]: the NICs of a family, or the usual models."""
    nics = [nic for nic in ADAPTERS.values() if nic.kind == kind]
    stated = family if kind in ("ib", "roce") else ""
    same = {nic.gbps: nic.name for nic in nics if stated and nic.family == stated}
    return same or {nic.gbps: nic.name for nic in nics if nic.usual}


def _nearest(table: Mapping[int, str], gbps: float) -> str:
    return table[min(table, key=lambda rate: (abs(rate - gbps), rate))]


def nic_keys(
    draft: Draft, adapter: Adapter, gpudirect: bool | None
) -> dict[str, Any]:
    """Return the keys of a NIC's graph node."""
    if gpudirect is False and adapter.direct:
        keys = {"base": adapter.name, "gpudirect": False}
        return {"nic": draft.define("nics", f"{adapter.name}-no-gdr", keys)}
    return {"nic": adapter.name}


def network_link(kind: str, rate: str) -> str:
    """Return the usual link of a network with the nearest rate."""
    return _nearest(USUAL_LINKS[kind], parse_rate(rate).bytes_per_s * 8e-9)


def set_network(draft: Draft, adapters: Mapping[str, Adapter]) -> None:
    """Set the usual network of a node's fastest NICs; `adapters` are its NICs by graph node."""
    if draft.remarks.network:
        draft.settings["network"] = draft.remarks.network
    if not adapters or draft.remarks.network:
        return
    kind, rate = max(
        ((a.kind, a.gbps) for a in adapters.values()),
        key=lambda key: (key[0] != "tcp", key[1]),
    )
    link = _nearest(USUAL_LINKS[kind], rate)
    switch = USUAL_SWITCHES.get(link) or USUAL_SWITCHES[kind]
    draft.settings["network"] = {"kind": "rail", "link": link, "switch": switch}
    draft.assume(
        [name for name, a in adapters.items() if (a.kind, a.gbps) == (kind, rate)],
        f"with --nodes, joined by kind rail, link {link}, switch {switch}",
        "the file describes one node; the usual network of such NICs",
    )


USUAL_MEMORY = (
    "the memory its processor usually has",
    "the file does not mention host memory",
)
"""Assumption about the memory of a processor, and its reason."""


def add_memory(
    draft: Draft, cpu: str, processor: Cpu, memory: str = "", **keys: Any
) -> str:
    """Add memory to a processor, its usual one without a name; return its graph node."""
    memory = memory or processor.memory
    name = draft.node(cpu.replace("cpu", "mem", 1), "memory", chip=memory, **keys)
    draft.link(cpu, name, type=f"dram-{memory}")
    return name
