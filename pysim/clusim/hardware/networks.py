"""Networks between machines: InfiniBand, RoCEv2, EFA, Slingshot; their links and switches.

**Hardware** InfiniBand is lossless by credits per virtual lane; RoCEv2 by pause frames (PFC), with congestion marks
(ECN) for the senders' rate control; EFA (SRD) and Slingshot spread packets over all paths and have congestion control
of their own. SHARP units in InfiniBand switches reduce packets on their way up a tree.
**Model** Rates after encoding and FEC, headers per packet, propagation from the cable's length, one receive buffer
per virtual channel and link with credits or with pause thresholds, marks by queue length, cut-through switches of a
fixed latency.
**Not modelled** Subnet managers and ECMP hashes, retransmission after loss (nothing is lost), shared buffers with
dynamic thresholds, EFA's and Slingshot's own congestion control (credits stand for it), lane failures, FEC errors.
**Parameters** The figures below, by the keys of a topology file.
"""

from __future__ import annotations

from clusim.hardware.figures import Figure, Preset, assumed, calibrated, published

__all__ = [
    "NETWORK_FORMATS",
    "NETWORK_LINKS",
    "NETWORK_SWITCHES",
    "USUAL_LINKS",
    "USUAL_SWITCHES",
    "pause_headroom_bytes",
]

_MTU_BYTES = 4096
_ETHERNET_MTU_BYTES = 4178
"""Wire bytes of the largest RoCE packet."""

_FABRIC_LENGTH_M = 100
"""Cable that buffers and pause headroom of the network types are made for."""


def _format(header: Figure, payload: Figure, control: Figure) -> Preset:
    return {
        "flit": assumed("1B", "packets have any length"),
        "header": header,
        "payload": payload,
        "control": control,
    }


_IB_PAYLOAD = published(
    {"sm": 4096, "ce": 4096, "nic": 4096}, "largest InfiniBand MTU; Quantum and ConnectX use it"
)

NETWORK_FORMATS: dict[str, Preset] = {
    "infiniband": _format(
        published(
            "26B",
            "IBTA: LRH 8, BTH 12, ICRC 4, VCRC 2 B; RETH (16 B) only on a message's first packet",
        ),
        _IB_PAYLOAD,
        assumed(
            {"write": 1.9, "aggregate": 1.9, "aggregate_result": 1.9},
            "an acknowledgement of 30 B (LRH, BTH, AETH, CRCs) per 16 packets; credits (8 B per 64 KiB) are lost in it",
        ),
    ),
    "roce": _format(
        published(
            "82B",
            "preamble and gap 20, Ethernet 14 + 4, IPv4 20, UDP 8, BTH 12, ICRC 4 B",
        ),
        published({"sm": 4096, "ce": 4096, "nic": 4096}, "RoCE MTU 4096 in jumbo frames"),
        assumed({"write": 5.6}, "an acknowledgement of 90 B per 16 packets"),
    ),
    "efa": _format(
        assumed(
            "110B",
            "preamble and gap 20, Ethernet 14 + 4, IPv4 20, UDP 8, and 44 B for SRD, whose header is not published",
        ),
        published({"sm": 4096, "ce": 4096, "nic": 4096}, "ibv_devinfo of EFA: active_mtu 4096"),
        assumed({"write": 24}, "SRD acknowledges out of order: 96 B per 4 packets"),
    ),
    "slingshot": _format(
        assumed(
            "62B",
            "Ethernet 14 + 4, IPv4 20, UDP 8, BTH-like 16; Slingshot drops preamble and gap (De Sensi et al., SC20)",
        ),
        assumed({"sm": 2048, "ce": 2048, "nic": 2048}, "Cassini cuts messages into 2 KiB packets"),
        assumed({"write": 8}, "acknowledgements between Rosetta ports, 32 B per 4 packets"),
    ),
}
"""Packet formats by name."""


def pause_headroom_bytes(rate_Bps: float, latency_ps: int, mtu_bytes: int = _MTU_BYTES) -> int:
    """Return what may still arrive after the pause threshold was passed [bytes].

    The pause frame travels back (`latency_ps`), a packet that has started is finished at both ends, and what is on the
    cable arrives: a round trip of the rate and two packets.
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
            f"{phy}ns", "PHYs of both ends" + (" with RS-FEC" if phy == 60 else "") + ", no cable"
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
            f"{latency_ns}ns", "MACs and PHYs of both ends, RS-FEC from 50 Gb/s on, no cable"
        ),
        "format": published("roce", "RoCEv2 in Ethernet frames"),
        "buffer": assumed(
            f"{xoff + step}B",
            f"xoff and headroom: rate x round trip of {_FABRIC_LENGTH_M} m of fibre and two packets ({headroom} B)",
        ),
        "pfc": assumed(
            {"xoff": f"{xoff}B", "xon": f"{xoff - 4 * _MTU_BYTES}B"},
            "static threshold of 2 KiB per Gb/s, above what ECN marks; switches use dynamic thresholds",
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
            f"credits stand for its congestion control: twice rate x round trip of {_FABRIC_LENGTH_M} m of fibre",
        ),
        "class": assumed(name, "class in reports"),
    }


_ETHERNET_PHY = assumed("150ns", "MACs and PHYs of both ends with RS-FEC, no cable")

NETWORK_LINKS: dict[str, Preset] = {
    **{name: _infiniband(name) for name in _RATES_Gbps},
    **{f"roce-{gbps}": _roce(gbps) for gbps in (25, 40, 50, 100, 200, 400, 800)},
    **{f"efa-{gbps}": _own_class(gbps, "efa", _ETHERNET_PHY) for gbps in (25, 50, 100, 200, 400)},
    **{
        f"slingshot-{gbps}": _own_class(gbps, "slingshot", _ETHERNET_PHY)
        for gbps in (100, 200, 400)
    },
}
"""Link types by name; their latency has no cable: give `length`."""


def _switch(ports: Figure, latency: Figure, buffer: Figure | None = None) -> dict[str, Figure]:
    preset = {
        "ports": ports,
        "latency": latency,
        "store_and_forward": published(False, "cut-through"),
    }
    return preset if buffer is None else {**preset, "buffer": buffer}


def _sharp(rate: str, version: str) -> dict[str, Figure]:
    return {
        "reduction_latency": assumed(
            "200ns", "not published; of the order of the port-to-port latency"
        ),
        "reduction_capacity": assumed("1MiB", "not the limit: slots are"),
        "reduction_rate": assumed(
            rate, f"{version} streams at line rate: operands of all ports at once"
        ),
        "reduction_slots": assumed(
            64, f"{version}: not published; 64 packets of 4 KiB cover 5 us of one port at NDR"
        ),
    }


_SUB_130 = published("130ns", "Quantum QM87x0 brief: port to port below 130 ns")

NETWORK_SWITCHES: dict[str, Preset] = {
    "switchx2": _switch(
        published(36, "SwitchX-2 SX6036: 36 ports FDR"),
        published("170ns", "SX6036 brief: 170 ns port to port"),
    ),
    "switch-ib": _switch(
        published(36, "Switch-IB SB7700: 36 ports EDR"),
        published("90ns", "Switch-IB brief: 90 ns port to port"),
    ),
    "switch-ib2": _switch(
        published(36, "Switch-IB 2 SB7800: 36 ports EDR"),
        published("90ns", "Switch-IB 2 brief: 90 ns port to port"),
    )
    | {
        "reduction_latency": assumed("300ns", "SHARP v1: store, then aggregate; not published"),
        "reduction_capacity": assumed("64KiB", "SHARP v1 is for short vectors"),
        "reduction_rate": assumed("50 GB/s", "SHARP v1: short vectors, far below line rate"),
        "reduction_slots": assumed(8, "SHARP v1: few operations of 256 B under way"),
    },
    "quantum": _switch(published(40, "Quantum QM8700/QM8790: 40 ports HDR"), _SUB_130)
    | _sharp("1 TB/s", "SHARP v2"),
    "quantum-hdr100": _switch(published(80, "Quantum QM8700 split: 80 ports HDR100"), _SUB_130)
    | _sharp("1 TB/s", "SHARP v2"),
    "quantum2": _switch(
        published(64, "Quantum-2 QM9700/QM9790: 64 ports NDR"),
        assumed("150ns", "not published; as Quantum (below 130 ns) with more FEC, 130-200 ns seen"),
    )
    | _sharp("3.2 TB/s", "SHARP v3"),
    "quantum-x800": _switch(
        published(144, "Quantum-X800 Q3400: 144 ports XDR"),
        assumed("130ns", "below 100 ns is quoted without FEC; as Quantum"),
    )
    | _sharp("14.4 TB/s", "SHARP v4"),
    "spectrum": _switch(
        published(32, "Spectrum SN2700: 32 ports 100 Gb/s"),
        published("300ns", "Spectrum SN2700 brief: 300 ns port to port"),
        published("16MiB", "Spectrum: 16 MB shared"),
    ),
    "spectrum2": _switch(
        published(32, "Spectrum-2 SN3700: 32 ports 200 Gb/s"),
        published("425ns", "Spectrum-2 SN3700 brief: 425 ns port to port"),
        published("42MiB", "Spectrum-2: 42 MB shared"),
    ),
    "spectrum3": _switch(
        published(32, "Spectrum-3 SN4700: 32 ports 400 Gb/s"),
        assumed("450ns", "as Spectrum-2 with more FEC"),
        published("64MiB", "Spectrum-3: 64 MB shared"),
    ),
    "spectrum4": _switch(
        published(64, "Spectrum-4 SN5600: 64 ports 800 Gb/s"),
        assumed("450ns", "as Spectrum-2 with more FEC"),
        published("160MiB", "Spectrum-4: 160 MB shared"),
    ),
    "tomahawk3": _switch(
        published(32, "Tomahawk 3: 12.8 Tb/s, 32 ports 400 Gb/s"),
        assumed("800ns", "600-900 ns of Tomahawk systems"),
        published("64MiB", "Tomahawk 3: 64 MB shared"),
    ),
    "tomahawk4": _switch(
        published(64, "Tomahawk 4: 25.6 Tb/s, 64 ports 400 Gb/s"),
        assumed("800ns", "600-900 ns of Tomahawk systems"),
        published("113MiB", "Tomahawk 4: 113 MB shared"),
    ),
    "tomahawk5": _switch(
        published(64, "Tomahawk 5: 51.2 Tb/s, 64 ports 800 Gb/s"),
        assumed("800ns", "600-900 ns of Tomahawk systems"),
        published("165MiB", "Tomahawk 5: 165 MB shared"),
    ),
    "ethernet": {
        "latency": assumed("600ns", "between Spectrum (300-450 ns) and Tomahawk (600-900 ns)"),
        "store_and_forward": assumed(False, "cut-through"),
    },
    "rosetta": _switch(
        published(64, "Rosetta: 64 ports 200 Gb/s"),
        calibrated("350ns", "De Sensi et al., SC20: 300 to 400 ns, mean 350"),
    ),
    "rosetta2": _switch(
        published(64, "Slingshot 400: 64 ports 400 Gb/s"),
        assumed("350ns", "as Rosetta"),
    ),
    "efa-fabric": {
        "latency": assumed("900ns", "Amazon's switches are not described; as Tomahawk systems"),
        "store_and_forward": assumed(False, "cut-through"),
    },
    "jupiter": {
        "latency": assumed("900ns", "Google's switches are not described; as Tomahawk systems"),
        "store_and_forward": assumed(False, "cut-through"),
    },
}
"""Switches by name."""

USUAL_LINKS: dict[str, dict[int, str]] = {
    "ib": {56: "ib-fdr", 100: "ib-edr", 200: "ib-hdr", 400: "ib-ndr", 800: "ib-xdr"},
    "roce": {rate: f"roce-{rate}" for rate in (25, 40, 50, 100, 200, 400, 800)},
    "efa": {rate: f"efa-{rate}" for rate in (25, 50, 100, 200, 400)},
    "slingshot": {rate: f"slingshot-{rate}" for rate in (100, 200, 400)},
    "tcp": {rate: f"roce-{rate}" for rate in (25, 40, 50, 100)},
}
"""Links by kind of network and rate [Gb/s]."""

USUAL_SWITCHES = {
    "ib-fdr": "switchx2",
    "ib-edr": "switch-ib2",
    "ib-hdr": "quantum",
    "ib-ndr": "quantum2",
    "ib-xdr": "quantum-x800",
    "efa": "efa-fabric",
    "slingshot": "rosetta",
    "roce": "ethernet",
    "tcp": "ethernet",
}
"""Switch that a link, or a kind of network, usually leads to."""
