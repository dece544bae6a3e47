"""Host interior: links between sockets, links between CPU and GPU, DRAM.

**Hardware** Sockets are joined by two to four coherent links that carry cache lines of 64 B with
separate framing. DRAM channels are half duplex and reach 75 to 90% of their peak.
**Model** A socket link has its physical rate and pays a header per cache line; DRAM is a `memory` node
with the peak of its channels and an efficiency, behind a link of that rate in each direction, so that
reads and writes together are limited by the node.
**Not modelled** Snoops and directories, NUMA clusters inside a socket, last-level caches (DDIO), banks
and refresh.
**Parameters** The figures below, by the keys of a topology file.
"""

from __future__ import annotations

from clusim.hardware.figures import Figure, Preset, assumed, calibrated, published
from clusim.hardware.pcie import PCIE_WEIGHT


def _format(flit: Figure, header: Figure, line: Figure | None, control: Figure) -> Preset:
    preset = {
        "flit": flit,
        "header": header,
        "payload": assumed(
            {"sm": "128B", "ce": "256B", "nic": "4096B"}, "as on the links next to it"
        ),
        "control": control,
    }
    return preset if line is None else {**preset, "limit": line}


_LINE = published("64B", "coherent links move cache lines of 64 B")
_NO_CONTROL = assumed({}, "responses and credits travel in the header of other packets")

NUMA_FORMATS: dict[str, Preset] = {
    "qpi": _format(
        published("8B", "QPI: flits of 80 bits, 64 counted in the rate"),
        published("8B", "QPI: one header flit per data packet of 8 flits"),
        _LINE,
        assumed({"write": 8, "read_response": 8}, "completion of one flit per cache line"),
    ),
    "upi": _format(
        assumed("8B", "UPI: flits of 192 bits in three slots"),
        assumed("16B", "80% of the rate: reads from the other socket reach 80 to 85% (Intel MLC)"),
        _LINE,
        _NO_CONTROL,
    ),
    "xgmi-socket": _format(
        assumed("8B", "words of the data fabric"),
        assumed("16B", "80% of the rate, as measured on UPI"),
        _LINE,
        _NO_CONTROL,
    ),
    "power9-x": _format(
        assumed("8B", "as the other socket links"),
        assumed("16B", "80% of the rate, as measured on UPI"),
        _LINE,
        _NO_CONTROL,
    ),
    "nvlink-c2c": _format(
        assumed("1B", "no padding to a word"),
        calibrated(
            "9B",
            "GH200 copies host to device at 419.9 of 450 GB/s = 128/(128+9)",
            "copy-benchmarks",
        ),
        assumed("128B", "one request of an SM; see the header"),
        assumed({}, "requests and acknowledgements are part of the header"),
    ),
    "dram": _format(
        assumed("1B", "no padding"),
        assumed("1B", "commands have separate wires; a format has at least 1 B"),
        None,
        assumed({}, "commands have separate wires"),
    ),
}
"""Packet formats by name."""


def _socket(rate: Figure, form: str, latency: Figure, cls: str = "numa") -> dict[str, Figure]:
    return {
        "rate": rate,
        "latency": latency,
        "format": published(form, "the packet format of this link"),
        "buffer": assumed("32KiB", "more than rate x credit round trip (64 GB/s x 0.2 us = 13 KB)"),
        "weight": assumed(PCIE_WEIGHT, "NVLink is preferred for any number of hops"),
        "class": assumed(cls, "class in reports"),
    }


_CROSSING = assumed(
    "60ns",
    "memory of the other socket is 50 to 80 ns further, there and back through the root complexes (Intel MLC)",
)

NUMA_LINKS: dict[str, Preset] = {
    "qpi": _socket(published("19.2 GB/s", "QPI 9.6 GT/s x 16 data lanes"), "qpi", _CROSSING),
    "qpi-8": _socket(published("16 GB/s", "QPI 8 GT/s x 16 data lanes"), "qpi", _CROSSING),
    "upi": _socket(published("20.8 GB/s", "UPI 10.4 GT/s x 20 lanes: Skylake"), "upi", _CROSSING),
    "upi-11.2": _socket(published("22.4 GB/s", "UPI 11.2 GT/s x 20: Ice Lake"), "upi", _CROSSING),
    "upi-16": _socket(
        published("32 GB/s", "UPI 2.0: 16 GT/s x 16 of 24 lanes: Sapphire Rapids"), "upi", _CROSSING
    ),
    "upi-20": _socket(
        published("40 GB/s", "UPI 2.0: 20 GT/s x 16 of 24 lanes: Emerald Rapids"), "upi", _CROSSING
    ),
    "upi-24": _socket(
        published("48 GB/s", "UPI 2.0: 24 GT/s x 16 of 24 lanes: Granite Rapids"), "upi", _CROSSING
    ),
    "xgmi": _socket(
        published("21.3 GB/s", "xGMI of EPYC Naples: 10.67 GT/s x 16"), "xgmi-socket", _CROSSING
    ),
    "xgmi2": _socket(
        published("32 GB/s", "xGMI2 of EPYC Rome and Milan: 16 GT/s x 16 (18 GT/s on some boards)"),
        "xgmi-socket",
        _CROSSING,
    ),
    "xgmi3": _socket(
        published("64 GB/s", "xGMI3 of EPYC Genoa and Turin: 32 GT/s x 16"),
        "xgmi-socket",
        _CROSSING,
    ),
    "power9-x": _socket(
        published("32 GB/s", "POWER9 X bus, 64 GB/s in both directions together"),
        "power9-x",
        _CROSSING,
    ),
    "nvlink-c2c": _socket(
        published("450 GB/s", "NVLink-C2C of Grace Hopper and Grace Blackwell: 900 GB/s both ways"),
        "nvlink-c2c",
        assumed(
            "150ns",
            "as an NVLink: half of a GPU's egress plus the PHYs; CPU loads of HBM 0.7-0.8 us",
        ),
        "c2c",
    )
    | {
        "buffer": assumed(
            "256KiB", "more than rate x credit round trip (450 GB/s x 0.3 us = 135 KB)"
        )
    },
    "grace-c2c": _socket(
        assumed(
            "100 GB/s", "Graces of a node are joined all to all (arXiv 2408.11556); not published"
        ),
        "nvlink-c2c",
        _CROSSING,
    ),
}
"""Links between sockets, and between a Grace and its GPU, by name."""

_DRAM: dict[str, tuple[str, str, float, str]] = {
    "ddr3-1866x4": ("59.7 GB/s", "4 channels DDR3-1866 x 8 B", 0.8, "Ivy Bridge E5 v2"),
    "ddr4-2400x4": ("76.8 GB/s", "4 channels DDR4-2400 x 8 B", 0.85, "Broadwell E5 v4"),
    "ddr4-2666x6": ("128 GB/s", "6 channels DDR4-2666 x 8 B", 0.83, "Skylake SP"),
    "ddr4-2933x6": ("140.8 GB/s", "6 channels DDR4-2933 x 8 B", 0.83, "Cascade Lake SP"),
    "ddr4-2666x8": ("170 GB/s", "8 channels DDR4-2666 x 8 B", 0.8, "POWER9"),
    "ddr4-3200x8": ("204.8 GB/s", "8 channels DDR4-3200 x 8 B", 0.82, "Ice Lake SP, Rome, Milan"),
    "ddr4-3200x2": ("51.2 GB/s", "2 of 8 channels DDR4-3200: a quarter of a socket", 0.82, "NPS4"),
    "ddr5-4800x8": ("307.2 GB/s", "8 channels DDR5-4800 x 8 B", 0.8, "Sapphire Rapids"),
    "ddr5-5600x8": ("358.4 GB/s", "8 channels DDR5-5600 x 8 B", 0.8, "Emerald Rapids"),
    "ddr5-6400x8": ("409.6 GB/s", "8 channels DDR5-6400 x 8 B", 0.8, "Granite Rapids, 8 channels"),
    "ddr5-6400x12": ("614.4 GB/s", "12 channels DDR5-6400 x 8 B", 0.8, "Granite Rapids, Turin"),
    "ddr5-4800x12": ("460.8 GB/s", "12 channels DDR5-4800 x 8 B", 0.8, "Genoa"),
    "lpddr5x-grace": (
        "512 GB/s",
        "Grace with 240 GB LPDDR5X (384 GB/s with 480 GB)",
        0.88,
        "Grace",
    ),
    "lpddr5x-grace-480": ("384 GB/s", "Grace with 480 GB LPDDR5X", 0.88, "Grace"),
    "lpddr5x-gb10": ("273 GB/s", "256 bit LPDDR5X-8533, shared with the GPU", 0.85, "GB10"),
}
"""DRAM channels of a socket -> peak, derivation, efficiency of streams, CPU."""


def _memory(peak: str, subject: str, efficiency: float, cpu: str) -> Preset:
    zero = assumed(0, "no links but the one to its socket")
    one = assumed(1.0, "every byte that is delivered or fetched crosses the channels once")
    return {
        "sms": assumed(1, "runs no kernels; the processes that serve a NIC are its CTAs"),
        "cta_slots": assumed(256, "the number of flows of the engine"),
        "write_latency": assumed("60ns", "accepted by the memory controller"),
        "read_latency": assumed("90ns", f"idle load from local DRAM, 80 to 110 ns ({cpu})"),
        "response_latency": assumed("50ns", "through the CPU's mesh into a core"),
        "memory_quantum": assumed("2us", "as for GPUs"),
        "memory_rate": published(peak, f"{subject} ({cpu})"),
        "memory_efficiency": assumed(efficiency, f"STREAM on {cpu} reaches 75 to 90% of the peak"),
        "memory_per_delivered": one,
        "memory_per_read": one,
        "memory_per_injected": one,
        "peak_flops": assumed({}, "runs no kernels"),
        "links": zero,
    }


MEMORY: dict[str, Preset] = {name: _memory(*row) for name, row in _DRAM.items()}
"""DRAM of a socket by name, for nodes of kind `memory`."""


def _dram(peak: str, subject: str, efficiency: float, cpu: str) -> Preset:
    return {
        "rate": published(peak, f"{subject} ({cpu}); in each direction, the node limits the sum"),
        "latency": assumed("10ns", "between mesh and memory controller"),
        "format": published("dram", "no packets"),
        "buffer": assumed("128KiB", "queues of the memory controllers"),
        "weight": assumed(PCIE_WEIGHT, "NVLink is preferred for any number of hops"),
        "class": assumed("dram", "class in reports"),
    }


DRAM_LINKS: dict[str, Preset] = {f"dram-{name}": _dram(*row) for name, row in _DRAM.items()}
"""Links between a root complex and its memory, by name."""
