"""Links between GPUs and their packet formats.

**Hardware** NVLink packets are flits of 16 B: one header flit and up to 16 data flits; SM stores use at
most 128 B of payload, copy engines 256 B. Acknowledgements and credits use the opposite wire.
**Model** Payload-layer rate per link, header and payload in whole flits, fractional control bytes per
packet on the opposite wire, a service factor on the packets of in-network operations.
**Not modelled** Lanes, FEC blocks, address-extension and byte-enable flits.
**Parameters** The figures below, by the keys of a topology file.

A switch as one object: ports, latency, reduction unit.

**Hardware** NVSwitch is a single-stage crossbar; generation 3 and 4 replicate multicast stores and reduce on the way
(NVLink SHARP), as do SHARP units in InfiniBand switches. PCIe and Ethernet switches cut through.
**Model** Virtual cut-through with input buffers and virtual output queues; one reduction unit per chip.
**Not modelled** Internal speed-up and the arbiter's pipeline; shared buffers with dynamic thresholds.
**Parameters** The figures of `Switch`; a section of ``switches.yaml`` for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from clusim.hardware.datafiles import Entry, build, figures, pci_id
from clusim.hardware.figures import Figure, Preset, assumed, calibrated, check_figures, published

_UNITS = {
    "latency": "s",
    "store_and_forward": "true or false",
    "ports": "ports",
    "buffer": "B",
    "tier": "word",
    "reduction_latency": "s",
    "reduction_capacity": "B",
    "reduction_rate": "B/s",
    "reduction_slots": "packets",
}
_REQUIRED = ("latency", "store_and_forward")


@dataclass(frozen=True, slots=True)
class Switch:
    """One kind of switch.

    Attributes
    ----------
    name : str
        As topology files have it.
    figures : Preset
        Its figures.
    pci_ids : tuple of (int, int)
        PCI vendor and device numbers.
    usual_for : tuple of str
        Links, and kinds of networks, that usually lead to it.
    """

    name: str
    figures: Preset
    pci_ids: tuple[tuple[int, int], ...] = ()
    usual_for: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the figures."""
        check_figures(self.figures, _UNITS, [key for key in _UNITS if key not in _REQUIRED])

    def all_figures(self) -> Iterator[Figure]:
        """Yield every figure."""
        yield from self.figures.values()


def switch_of(name: str, entry: Entry) -> Switch:
    """Return the switch of a section of ``switches.yaml``."""
    ids = tuple(map(pci_id, entry.get("pci_ids", ())))
    return build(Switch, {**entry, "name": name}, figures=figures(entry["figures"]), pci_ids=ids)


_HEADER = published("16B", "NVLink: one 128-bit header flit per packet (WikiChip, NVLink)")
_FLIT = published("16B", "NVLink: 128-bit flits (WikiChip, NVLink)")
_PAYLOAD = published(
    {"sm": "128B", "ce": "256B", "nic": "128B"},
    "SM loads and stores 128 B, copy engine 256 B: NCCL maintainer in NVIDIA/nccl-tests thread 149",
)
_NVLS = "service factor = flit model of NVLS all-reduce over the measured rate at n = 8"


def _control(write: float, response: float, mark: Figure) -> Figure:
    """Control bytes per packet: acks of writes and read responses, one flit per multicast store."""
    return replace(mark, value={"write": write, "read_response": response, "multicast": 16})


def _service(factor: float, source: str, *rows: str, **others: float) -> Figure:
    kinds = ("multicast", "reduce_request", "reduce_fetch", "reduce_data", "reduce_result")
    return calibrated({**dict.fromkeys(kinds, factor), **others}, source, *rows)


def _nvlink(control: Figure, **more: Figure) -> dict[str, Figure]:
    return {"flit": _FLIT, "header": _HEADER, "payload": _PAYLOAD, "control": control, **more}


_READ_ACK = "read responses as on A100"
_VOLTA = _control(
    8,
    5.8,
    calibrated(
        0,
        f"V100 link 21.7 of 25.78 GB/s = 128/(128+16+8), TACCL ndv2 fit; {_READ_ACK}",
        "taccl-v100",
        "azure-a100",
    ),
)

GPU_FORMATS: dict[str, Preset] = {
    "nvlink1": _nvlink(_control(8, 5.8, assumed(0, "as V100, with links of another rate"))),
    "nvlink2": _nvlink(_VOLTA),
    "nvlink3": _nvlink(
        _control(
            3,
            5.8,
            calibrated(
                0,
                "read responses: 8x A100 ring all-reduce 231.6 GB/s (Azure ND A100 v4) ="
                " 128/(16+16+128+5.8) x 300; writes: A100 copy engine in both directions 186.4 of 200 GB/s, 3 B acks",
                "azure-a100",
                "copy-benchmarks",
            ),
        )
    ),
    "nvlink4": _nvlink(
        _control(
            2,
            6.8,
            calibrated(
                0,
                "writes: 8x H100 ring all-reduce 365-370 of 450 GB/s = 128/(144 x 1.066 + 2);"
                " reads 7% slower than writes (mscclpp put/get)",
                "azure-hopper",
                "wayne-h100",
                "mscclpp",
            ),
        ),
        service=_service(
            1.164,
            f"{_NVLS}: H100 273.6 of 320 GB/s (0.86, Azure ND H100 v5);"
            " writes in one direction: 125.1 of 150 GB/s = 128/(144 x 1.066), broadcast on 2 GH200 (simllm)",
            "azure-hopper",
            "wayne-h100",
            "simllm-gh200",
            write=1.066,
        ),
    ),
    "nvlink5": _nvlink(
        _control(
            16,
            6.8,
            calibrated(
                0,
                "NCCL's 40.1 of 50 GB/s per link = 128/(128+16+16), nccl src/graph/topo.h",
                "nccl-tuning",
            ),
        ),
        service=_service(
            1.355, f"{_NVLS}: B200 474 of 640 GB/s (0.74, NVIDIA/nccl thread 1807)", "nccl-1807"
        ),
    ),
    "xgmi": {
        "flit": assumed("16B", "as NVLink; AMD has not published the format"),
        "header": assumed("16B", "as NVLink"),
        "payload": assumed(
            {"sm": "64B", "ce": "256B", "nic": "64B"}, "half a cache line of 128 B per packet"
        ),
        "control": calibrated(
            {"write": 8, "read_response": 8},
            "8x MI300X all-reduce 310-330 of 448 GB/s (RCCL) = 64/(64+16+8)",
            "rccl-mi300x",
        ),
    },
    "ethernet": {
        "flit": assumed("1B", "packets have any length"),
        "header": assumed("64B", "the header of the packet-level comparison workloads"),
        "payload": assumed(
            {"sm": 4096, "ce": 4096, "nic": 4096}, "MTU 4096, the largest of InfiniBand and RoCE"
        ),
        "control": assumed({}, "flow control is free; acknowledgements are not modelled"),
    },
}
"""Packet formats by name."""


def _link(rate: Figure, form: str) -> dict[str, Figure]:
    cls = "xgmi" if form == "xgmi" else "nvlink"
    split = (
        "half of SM/L2 egress 150-200 and SerDes 2 x 50 per crossing; see the chip's write_latency"
    )
    latency = (
        assumed("150ns", f"as NVLink: {split}")
        if cls == "xgmi"
        else calibrated("150ns", split, "nccl-tuning")
    )
    return {
        "rate": rate,
        "latency": latency,
        "format": published(form, "the packet format of this generation"),
        "buffer": assumed(
            "32KiB", "more than rate x credit round trip (25 GB/s x 0.3 us = 7.5 KB), per VC"
        )
        if cls == "nvlink"
        else assumed(
            "64KiB", "more than rate x credit round trip (77 GB/s x 0.55 us = 42 KB), per VC"
        ),
        "class": assumed(cls, "class in reports"),
    }


GPU_LINKS: dict[str, Preset] = {
    "nvlink1": _link(published("20 GB/s", "8 lanes x 20 Gb/s"), "nvlink1"),
    "nvlink2": _link(
        published(
            "25.78125 GB/s", "8 lanes x 25.78125 Gb/s, no FEC: `nvidia-smi nvlink -s` shows 25.781"
        ),
        "nvlink2",
    ),
    "nvlink3": _link(
        published("25 GB/s", "4 lanes x 50 Gb/s; `nvidia-smi nvlink -s` shows 25"), "nvlink3"
    ),
    "nvlink4": _link(
        published("25 GB/s", "2 lanes x 106.25 Gb/s: 26.5625 as `nvidia-smi` shows x 16/17 (FEC)"),
        "nvlink4",
    ),
    "nvlink5": _link(
        published("50 GB/s", "2 lanes x 212.5 Gb/s: 53.125 as `nvidia-smi` shows x 16/17 (FEC)"),
        "nvlink5",
    ),
    "nvlink3-bridge": _link(
        published(
            "14.0625 GB/s",
            "GA102 cards: 112.5 GB/s of a bridge of 4 links, both directions together",
        ),
        "nvlink3",
    ),
    "xgmi-mi50": _link(published("50 GB/s", "MI50: 100 GB/s per link, both ways"), "xgmi"),
    "xgmi-mi100": _link(published("46 GB/s", "MI100: 92 GB/s per link, both ways"), "xgmi"),
    "xgmi-mi250x": _link(published("50 GB/s", "MI250X: 100 GB/s per link, both ways"), "xgmi"),
    "xgmi-mi300x": _link(
        published("64 GB/s", "MI300X: 7 links x 128 GB/s, both ways, 32 GT/s x 16"), "xgmi"
    ),
    "xgmi-mi355x": _link(
        published("76.8 GB/s", "MI355X: 7 links x 153.6 GB/s, both ways, 38.4 GT/s x 16"), "xgmi"
    ),
    "ethernet400": {
        "rate": published("400 Gb/s", "400GBASE / NDR"),
        "latency": assumed("500ns", "the hop of the packet-level comparison workloads"),
        "format": published("ethernet", "generic packets"),
        "buffer": assumed(
            "128KiB", "more than rate x credit round trip (50 GB/s x 1 us = 50 KB), per VC"
        ),
        "class": assumed("ethernet", "class in reports"),
    },
}
"""Link types by name."""

_NCCL_GBps = ((100, 40.1), (90, 20.6), (87, 12.0), (86, 12.0), (70, 20.0), (0, 18.0))


def nccl_link_GBps(compute_capability: int) -> float:
    """Return NCCL's bandwidth of a GPU's NVLink [GB/s] (src/graph/topo.h of 2.18 and later)."""
    return next(rate for lowest, rate in _NCCL_GBps if compute_capability >= lowest)
