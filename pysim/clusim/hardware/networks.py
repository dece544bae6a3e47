"""Networks between nodes: InfiniBand, RoCEv2, EFA, Slingshot; their links and switches.

**Hardware** InfiniBand is lossless by credits per virtual lane; RoCEv2 by pause frames (PFC), with
congestion marks (ECN) for the senders' rate control; EFA (SRD) and Slingshot spread packets over all
paths and have separate congestion control. SHARP units in InfiniBand switches reduce packets going up a
tree.
**Model** Rates after encoding and FEC, headers per packet, propagation from the cable's length, one
receive buffer per virtual channel and link with credits or with pause thresholds, marks by queue length,
cut-through switches of a fixed latency. Paths follow `clusim.lowering.paths`: by destination on
InfiniBand, by a hash of the flow on Ethernet.
**Not modelled** Retransmission after loss (nothing is lost), shared buffers with dynamic thresholds,
congestion control of EFA and Slingshot (approximated by credits), lane failures, FEC errors.
**Parameters** The figures of ``network_formats.yaml`` and below, by the keys of a topology file.
"""

from __future__ import annotations

from pathlib import Path

from clusim.base.datafiles import read
from clusim.hardware.figures import Figure, Preset, assumed, presets, published

_MTU_BYTES = 4096
_ETHERNET_MTU_BYTES = 4178
"""Wire bytes of the largest RoCE packet."""

_FABRIC_LENGTH_M = 100
"""Cable length for which buffers and pause headroom of the networks are sized."""

NETWORK_FORMATS = presets(read(Path(__file__).with_name("network_formats.yaml")))
"""Packet formats by name."""


def pause_headroom_bytes(rate_Bps: float, latency_ps: int, mtu_bytes: int = _MTU_BYTES) -> int:
    """Return the bytes that may arrive after the pause threshold is crossed.

    The pause frame travels back (`latency_ps`), both ends finish the current packet, and the bytes
    on the cable arrive: a round trip at the link rate and two packets.
    """
    return round(2 * latency_ps * 1e-12 * rate_Bps) + 2 * mtu_bytes


_RATES_Gbps = {
    "ib-fdr": (54.54, "14.0625 Gb/s x 4 lanes x 64/66"),
    "ib-edr": (100, "25.78125 Gb/s x 4 lanes x 64/66"),
    "ib-hdr100": (100, "53.125 Gb/s x 2 lanes after FEC"),
    "ib-hdr": (200, "53.125 Gb/s x 4 lanes after FEC"),
    "ib-ndr200": (200, "106.25 Gb/s x 2 lanes after FEC"),
    "ib-ndr": (400, "106.25 Gb/s x 4 lanes after FEC"),
    "ib-xdr": (800, "212.5 Gb/s x 4 lanes after FEC"),
}
_PHY_NS = {"ib-fdr": 20, "ib-edr": 20}
"""PHYs of both ends; with FEC 60 ns."""


def _round_trip_buffer(rate_GBps: float, latency_ns: float) -> int:
    """Return a power of two of KiB that holds rate x round trip over the longest cable, twice."""
    need = 2 * rate_GBps * 2 * (latency_ns + 5 * _FABRIC_LENGTH_M)
    return 1 << max(4, (round(need) // 1024).bit_length())


def _infiniband(name: str) -> Preset:
    rate, how = _RATES_Gbps[name]
    phy = _PHY_NS.get(name, 60)
    size_kib = _round_trip_buffer(rate / 8, phy)
    return {
        "rate": published(f"{rate:g} Gb/s", how),
        "latency": assumed(
            f"{phy}ns",
            "PHYs of both ends" + (" with RS-FEC" if phy == 60 else "") + ", no cable",
            ["20ns", "150ns"],
        ),
        "format": published("infiniband", "InfiniBand local packets"),
        "buffer": assumed(
            f"{size_kib}KiB",
            f"credits per VL, not published: twice rate x round trip of {_FABRIC_LENGTH_M} m of fibre",
        ),
        "class": assumed("infiniband", "class in reports"),
    }


def _roce(gbps: int) -> Preset:
    rate_Bps = gbps * 1e9 / 8
    latency_ns = 60 if gbps <= 25 else 150
    xoff = max(65_536, gbps * 2048)
    headroom = pause_headroom_bytes(
        rate_Bps, (latency_ns + 5 * _FABRIC_LENGTH_M) * 1000, _ETHERNET_MTU_BYTES
    )
    step = -(-headroom // 16_384) * 16_384
    return {
        "rate": published(f"{gbps} Gb/s", "Ethernet, after encoding and FEC"),
        "latency": assumed(
            f"{latency_ns}ns", "MACs and PHYs of both ends, RS-FEC from 50 Gb/s on, no cable", "60%"
        ),
        "format": published("roce", "RoCEv2 in Ethernet frames"),
        "buffer": assumed(
            f"{xoff + step}B",
            f"xoff and headroom: rate x round trip of {_FABRIC_LENGTH_M} m of fibre and two packets ({headroom} B)",
        ),
        "pfc": assumed(
            {"xoff": f"{xoff}B", "xon": f"{xoff - 4 * _MTU_BYTES}B"},
            "static threshold of 2 KiB per Gb/s, above ECN's; switches use dynamic thresholds",
        ),
        "ecn": assumed(
            {"min": f"{gbps * 1000}B", "max": f"{gbps * 4000}B", "probability": 0.2},
            "practice at 400 Gb/s: 400 KB, 1.6 MB, 0.2; scaled with the rate",
        ),
        "class": assumed("roce", "class in reports"),
    }


def _own_class(gbps: int, name: str, latency: Figure) -> Preset:
    size_kib = _round_trip_buffer(gbps / 8, 150)
    return {
        "rate": published(f"{gbps} Gb/s", "Ethernet, after encoding and FEC"),
        "latency": latency,
        "format": published(name, "packet format of this network"),
        "buffer": assumed(
            f"{size_kib}KiB",
            f"credits replace its congestion control: twice rate x round trip of {_FABRIC_LENGTH_M} m of fibre",
        ),
        "class": assumed(name, "class in reports"),
    }


_ETHERNET_PHY = assumed("150ns", "MACs and PHYs of both ends with RS-FEC, no cable", "60%")

NETWORK_LINKS: dict[str, Preset] = {
    **{name: _infiniband(name) for name in _RATES_Gbps},
    **{f"roce-{gbps}": _roce(gbps) for gbps in (25, 40, 50, 100, 200, 400, 800)},
    **{f"efa-{gbps}": _own_class(gbps, "efa", _ETHERNET_PHY) for gbps in (25, 50, 100, 200, 400)},
    **{
        f"slingshot-{gbps}": _own_class(gbps, "slingshot", _ETHERNET_PHY)
        for gbps in (100, 200, 400)
    },
}
"""Link types by name; their latency excludes the cable, which `length` adds."""


USUAL_LINKS: dict[str, dict[int, str]] = {
    "ib": {56: "ib-fdr", 100: "ib-edr", 200: "ib-hdr", 400: "ib-ndr", 800: "ib-xdr"},
    "roce": {rate: f"roce-{rate}" for rate in (25, 40, 50, 100, 200, 400, 800)},
    "efa": {rate: f"efa-{rate}" for rate in (25, 50, 100, 200, 400)},
    "slingshot": {rate: f"slingshot-{rate}" for rate in (100, 200, 400)},
    "tcp": {rate: f"roce-{rate}" for rate in (25, 40, 50, 100)},
}
"""Links by kind of network and rate [Gb/s]."""
