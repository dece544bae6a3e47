"""PCI Express: rates after encoding, TLPs, data-link traffic, and PCIe switches.

**Hardware** Generations 1 and 2 send 8b/10b symbols, 3 to 5 blocks of 128b/130b, 6 flits of 256 B (236 B
of TLPs, 6 B of data-link information, 8 B CRC, 6 B FEC). A transaction is cut at the maximum payload
size (MPS) and a read at the maximum read request size (MRRS); every TLP pays framing, header and LCRC,
and is acknowledged and given credit for by DLLPs of 8 B on the opposite wire.
**Model** The rate is that of the data link layer (without encoding and SKP sets). A format has the bytes
of a TLP around its payload by kind, MPS and MRRS as limits, and the bytes owed to the opposite wire per
TLP: the share of ACK and flow-control DLLPs and, for data a NIC fetches, of its read requests. From
generation 6 on every flit reserves space for DLLPs, so TLPs pay for it and no bytes are owed.
**Not modelled** ECRC, TLP prefixes, power states, retraining, credits by type (one buffer per virtual
channel represents posted and completion credits), the 64 B read completion boundary of unaligned reads.
**Parameters** The figures of ``pcie.yaml``, by the keys of a topology file.

GPUs behave as devices of 128 B payload regardless of the slot: writes of an A100 reach 26.2 GB/s on Gen4
x16 (26.5 here), its reads 26.8 (27.2 here), an H100 on Gen5 51 to 52 GB/s (52.9 here).
"""

from __future__ import annotations

from pathlib import Path

from clusim.base.datafiles import read
from clusim.hardware.figures import Preset, figures

_DATA = read(Path(__file__).with_name("pcie.yaml"))

LANES = (1, 2, 4, 8, 16)

GENERATIONS: dict[int, tuple[float, float, str]] = {
    int(generation): tuple(row) for generation, row in _DATA["generations"].items()
}
"""Generation -> transfers per lane [GT/s], data-link bytes per lane [MB/s], derivation."""

PCIE_WEIGHT = 4
"""Weight of a PCIe, NUMA or DRAM link in hops.

Two such links are a longer path than any over NVLink (three hops at most).
"""

MPS_GPU_BYTES, MPS_HOST_BYTES, MRRS_BYTES = 128, 256, 512

_DLLP_BYTES, _REQUEST_BYTES = 8.0, 24
_ACK_FACTORS = {"": 3.0, "-mps256": 3.0, "-narrow": 1.4}
"""TLPs per ACK and per UpdateFC on x16, and on x1 to x4 links."""

_FLIT_SHARE = 6 / 236
"""Bytes of data-link information per byte of TLP in a flit of generation 6."""


def lane_MBps(generation: int) -> float:
    """Return the bandwidth of one lane after encoding [MB/s]."""
    return GENERATIONS[generation][1]


def x16_rate(generation: int, lanes: int = 16) -> str:
    """Return the rate of a link as a topology file has it."""
    return f"{lanes} x {lane_MBps(generation):g} MB/s"


def _format(generation: int, kind: str) -> Preset:
    """Return the packet format of a generation; `kind` is the end of its name."""
    mps = MPS_HOST_BYTES if kind == "-mps256" else MPS_GPU_BYTES
    owed, request = (
        round(2 * _DLLP_BYTES / _ACK_FACTORS[kind], 2),
        float(_REQUEST_BYTES),
    )
    section = "symbols" if generation < 3 else "tokens"
    if generation == 6:
        section, owed, request = "flits", 0.0, 16 * (1 + _FLIT_SHARE)
    headers = {"alone": (16, 0), "written": (16, mps), "answered": (12, mps)}
    values: dict[str, object] = {
        name: size + round((size + payload) * _FLIT_SHARE)
        for name, (size, payload) in headers.items()
    }
    values |= {
        "mps": mps,
        "mrrs": MRRS_BYTES,
        "factor": f"{_ACK_FACTORS[kind]:g}",
        "owed": owed,
    }
    values["fetched"] = round(owed + request * mps / MRRS_BYTES, 2)
    return figures(
        {**_DATA["formats"][section], "limit": _DATA["limits"][str(mps)]}, values
    )


PCIE_FORMATS: dict[str, Preset] = {
    f"pcie-gen{generation}{kind}": _format(generation, kind)
    for generation in GENERATIONS
    for kind in (("", "-narrow", "-mps256") if generation < 6 else ("", "-mps256"))
}
"""Packet formats: 128 B payload (``pcie-gen4``), x1 to x4 (``-narrow``), and 256 B (``-mps256``)."""


def _link(generation: int, lanes: int, kind: str) -> Preset:
    """Return the link type of a generation; `kind` is the end of its name."""
    narrow = "-narrow" if lanes <= 4 and generation < 6 else ""
    size_kib = round(max(4, lane_MBps(generation) * lanes / 1000))
    values = {
        "rate": x16_rate(generation, lanes),
        "how": GENERATIONS[generation][2],
        "form": f"pcie-gen{generation}{'-mps256' if kind == '-mps256' else narrow}",
        "buffer": 1 << (size_kib - 1).bit_length(),
        "weight": PCIE_WEIGHT,
    }
    latency = _DATA["latency"]["gpu" if kind == "-gpu" else "device"]
    return figures({**_DATA["link"], "latency": latency}, values)


PCIE_LINKS: dict[str, Preset] = {
    f"pcie-gen{generation}-x{lanes}{kind}": _link(generation, lanes, kind)
    for generation in GENERATIONS
    for lanes in LANES
    for kind, least in (("", 1), ("-gpu", 4), ("-mps256", 8))
    if lanes >= least
}
"""Link types of PCIe.

Between switches, root complexes and NICs (``pcie-gen4-x16``), to a GPU (``-gpu``), and of hosts and NICs
that use 256 B payloads (``-mps256``).
"""
