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
**Parameters** The figures below, by the keys of a topology file.

GPUs behave as devices of 128 B payload regardless of the slot: writes of an A100 reach 26.2 GB/s on Gen4
x16 (26.5 here), its reads 26.8 (27.2 here), an H100 on Gen5 51 to 52 GB/s (52.9 here).
"""

from __future__ import annotations

from clusim.hardware.figures import Figure, Preset, assumed, calibrated, published

LANES = (1, 2, 4, 8, 16)

GENERATIONS: dict[int, tuple[float, float, str]] = {
    1: (2.5, 249.26, "2.5 GT/s x 8/10 (8b/10b), less a SKP set of 4 symbols in 1180 to 1538"),
    2: (5, 498.53, "5 GT/s x 8/10 (8b/10b), less a SKP set of 4 symbols in 1180 to 1538"),
    3: (8, 981.98, "8 GT/s x 128/130, less a SKP block in 370 to 375"),
    4: (16, 1963.96, "16 GT/s x 128/130, less a SKP block in 370 to 375"),
    5: (32, 3927.92, "32 GT/s x 128/130, less a SKP block in 370 to 375"),
    6: (64, 7562.5, "64 GT/s PAM4 x 242/256: flits of 256 B less 8 B CRC and 6 B FEC"),
}
"""Generation -> transfers per lane [GT/s], data-link bytes per lane [MB/s], derivation."""

PCIE_WEIGHT = 4
"""Weight of a PCIe, NUMA or DRAM link in hops.

Two such links are a longer path than any over NVLink (three hops at most).
"""

MPS_GPU_BYTES, MPS_HOST_BYTES, MRRS_BYTES = 128, 256, 512

_DLLP_BYTES = 8.0
_ACK_FACTOR = {"wide": 3.0, "narrow": 1.4}
"""TLPs per ACK and per UpdateFC on x16, and on x1 to x4 links."""

_FLIT_SHARE = 6 / 236
"""Bytes of data-link information per byte of TLP in a flit of generation 6."""


def lane_MBps(generation: int) -> float:
    """Return the bandwidth of one lane after encoding [MB/s]."""
    return GENERATIONS[generation][1]


def x16_rate(generation: int, lanes: int = 16) -> str:
    """Return the rate of a link as a topology file has it."""
    return f"{lanes} x {lane_MBps(generation):g} MB/s"


def _control(mps: int, factor: float, request: float) -> dict[str, float]:
    """Return the bytes owed to the opposite wire per TLP; `request` is the size of a read request."""
    dllps = round(2 * _DLLP_BYTES / factor, 2)
    return {
        "write": dllps,
        "read_request": dllps,
        "read_response": dllps,
        "fetch": round(dllps + request * mps / MRRS_BYTES, 2),
        "aggregate": round(dllps + request * mps / MRRS_BYTES, 2),
        "aggregate_result": dllps,
    }


def _framed(generation: int, mps: int, width: str) -> Preset:
    """Return the packet format of generations 1 to 5."""
    frame = (
        "STP and sequence number 3 B, LCRC 4 B, END 1 B"
        if generation < 3
        else "STP token with sequence number 4 B, LCRC 4 B"
    )
    header = {"default": "24B", "read_response": "20B", "fetch": "20B", "aggregate": "20B"}
    factor = _ACK_FACTOR[width]
    spec = "PCI Express base specification"
    return {
        "flit": published(
            "1B" if generation < 3 else "4B",
            f"{spec}: {'symbols' if generation < 3 else 'TLPs are multiples of double words'}",
        ),
        "header": published(
            header,
            f"{spec}: {frame}; header 16 B (4DW) of writes and requests, 12 B of completions",
        ),
        "payload": _payload(mps),
        "control": assumed(
            _control(mps, factor, 24),
            f"an ACK and an UpdateFC of 8 B each per {factor:g} TLPs, the AckFactor of the specification's latency"
            " table; fetched data also pay a request of 24 B per 512 B on the opposite wire; designs"
            " budget 2 to 5% of a direction",
            "40%",
        ),
        "limit": _limit(mps),
    }


def _flits(mps: int) -> Preset:
    """Return the packet format of generation 6."""

    def around(header: int, payload: int) -> str:
        return f"{header + round((header + payload) * _FLIT_SHARE)}B"

    spec = "PCI Express 6.0 specification, flit mode"
    request = 16 * (1 + _FLIT_SHARE)
    return {
        "flit": published("1B", f"{spec}: TLPs fill the 236 B of the flits without gaps"),
        "header": published(
            {
                "default": around(16, 0),
                "write": around(16, mps),
                "aggregate_result": around(16, mps),
                "read_response": around(12, mps),
                "fetch": around(12, mps),
                "aggregate": around(12, mps),
            },
            f"{spec}: header base 16 B of writes and requests, 12 B of completions, no framing, no LCRC; plus the"
            " TLP's share of the 6 B in 242 that carry ACKs and credits",
        ),
        "payload": _payload(mps),
        "control": assumed(
            {
                "fetch": round(request * mps / MRRS_BYTES, 2),
                "aggregate": round(request * mps / MRRS_BYTES, 2),
            },
            "ACKs and credits have their place in every flit; only the requests of fetched data are owed",
        ),
        "limit": _limit(mps),
    }


def _payload(mps: int) -> Figure:
    return assumed(
        {"sm": f"{mps}B", "ce": f"{mps}B", "nic": "4096B"},
        "SMs and copy engines send packets of the MPS; a NIC's packets are cut by `limit` on these wires",
        "0%",
    )


def _limit(mps: int) -> Figure:
    value = {"default": f"{mps}B", "read_request": f"{MRRS_BYTES}B"}
    if mps == MPS_GPU_BYTES:
        return calibrated(
            value,
            "MPS 128 B: A100 on Gen4 x16 writes 26.19 and reads 26.78 GB/s (256 B would be 28.8), H100 on Gen5 x16 51"
            " and 52 GB/s; MRRS 512 B is the usual setting",
            "copy-benchmarks",
            bounds="0%",
        )
    return published(
        value,
        "MPS 256 B and MRRS 512 B of servers (Neugebauer et al., SIGCOMM 2018: Understanding PCIe performance)",
    )


PCIE_FORMATS: dict[str, Preset] = {}
for _generation in GENERATIONS:
    for _mps, _tail in ((MPS_GPU_BYTES, ""), (MPS_HOST_BYTES, "-mps256")):
        if _generation == 6:
            PCIE_FORMATS[f"pcie-gen6{_tail}"] = _flits(_mps)
            continue
        PCIE_FORMATS[f"pcie-gen{_generation}{_tail}"] = _framed(_generation, _mps, "wide")
        if not _tail:
            PCIE_FORMATS[f"pcie-gen{_generation}-narrow"] = _framed(_generation, _mps, "narrow")
"""Packet formats: 128 B payload (``pcie-gen4``), x1 to x4 (``-narrow``), and 256 B (``-mps256``)."""

_DEVICE_LATENCY = assumed(
    "50ns",
    "two PHYs and a few cm of board; with the 110 ns of a switch and the root complex it leaves DMA reads of DRAM at"
    " the 400-700 ns of Neugebauer et al., SIGCOMM 2018; less than the 100 ns of a switch, which has two PHYs",
    ["20ns", "100ns"],
)
_GPU_LATENCY = calibrated(
    "250ns",
    "way through the GPU between SMs and its PCIe port: NCCL's LL step over PCIe of 1.0 us (tuning.cc) less flag,"
    " switch and memory, halved; GDR and PCIe stores need 0.3-0.8 us longer than hosts' stores",
    "nccl-tuning",
    bounds=["150ns", "400ns"],
)


def _buffer(generation: int, lanes: int) -> Figure:
    size_kib = max(4, lane_MBps(generation) * lanes / 1000)
    size_kib = 1 << (round(size_kib) - 1).bit_length()
    return assumed(
        f"{size_kib}KiB",
        "credits of one type; about rate x 1 us, so that the round trip of ACK and UpdateFC never limits",
    )


def _link(generation: int, lanes: int, form: str, latency: Figure) -> Preset:
    return {
        "rate": published(x16_rate(generation, lanes), GENERATIONS[generation][2]),
        "latency": latency,
        "format": published(form, "the packet format of this generation"),
        "buffer": _buffer(generation, lanes),
        "weight": assumed(PCIE_WEIGHT, "NVLink is preferred for any number of hops"),
        "class": assumed("pcie", "class in reports"),
    }


PCIE_LINKS: dict[str, Preset] = {}
for _generation in GENERATIONS:
    for _lanes in LANES:
        _narrow = "-narrow" if _lanes <= 4 and _generation < 6 else ""
        _name = f"pcie-gen{_generation}-x{_lanes}"
        _form = f"pcie-gen{_generation}{_narrow}"
        PCIE_LINKS[_name] = _link(_generation, _lanes, _form, _DEVICE_LATENCY)
        if _lanes >= 4:
            PCIE_LINKS[f"{_name}-gpu"] = _link(_generation, _lanes, _form, _GPU_LATENCY)
        if _lanes >= 8:
            _form = f"pcie-gen{_generation}-mps256"
            PCIE_LINKS[f"{_name}-mps256"] = _link(_generation, _lanes, _form, _DEVICE_LATENCY)
"""Link types of PCIe.

Between switches, root complexes and NICs (``pcie-gen4-x16``), to a GPU (``-gpu``), and of hosts and NICs
that use 256 B payloads (``-mps256``).
"""
