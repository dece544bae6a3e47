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
**Parameters** The figures of ``network_formats.yaml`` and ``network_links.yaml``, by the keys of a topology file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clusim.base.datafiles import read
from clusim.hardware.figures import Preset, figures, presets

_MTU_BYTES = 4096
_ETHERNET_MTU_BYTES = 4178
"""Wire bytes of the largest RoCE packet."""

_FABRIC_LENGTH_M = 100
"""Cable length for which buffers and pause headroom of the networks are sized."""

_DATA = read(Path(__file__).with_name("network_links.yaml"))

NETWORK_FORMATS = presets(read(Path(__file__).with_name("network_formats.yaml")))
"""Packet formats by name."""


def pause_headroom_bytes(
    rate_Bps: float, latency_ps: int, mtu_bytes: int = _MTU_BYTES
) -> int:
    """Return the bytes that may arrive after the pause threshold is crossed.

    The pause frame travels back (`latency_ps`), both ends finish the current packet, and the bytes
    on the cable arrive: a round trip at the link rate and two packets.
    """
    return round(2 * latency_ps * 1e-12 * rate_Bps) + 2 * mtu_bytes


def _link(section: str, kind: str, gbps: float, ns: int, **values: Any) -> Preset:
    """Return a link type; its buffer [KiB] holds rate x round trip over the longest cable, twice."""
    need = 2 * gbps / 8 * 2 * (ns + 5 * _FABRIC_LENGTH_M)
    buffer = 1 << max(4, (round(need) // 1024).bit_length())
    values = {"buffer": buffer, "length": _FABRIC_LENGTH_M, "ns": ns, **values}
    return figures(
        _DATA["figures"][section], {"kind": kind, "gbps": f"{gbps:g}", **values}
    )


def _infiniband(gbps: float, how: str, phy_ns: int) -> Preset:
    fec = " with RS-FEC" if phy_ns == 60 else ""
    return _link("infiniband", "infiniband", gbps, phy_ns, how=how, fec=fec)


def _roce(gbps: int) -> Preset:
    ns, xoff = 60 if gbps <= 25 else 150, max(65_536, gbps * 2048)
    headroom = pause_headroom_bytes(
        gbps * 1e9 / 8, (ns + 5 * _FABRIC_LENGTH_M) * 1000, _ETHERNET_MTU_BYTES
    )
    values = {"xoff": xoff, "xon": xoff - 4 * _MTU_BYTES, "headroom": headroom}
    values |= {"buffer": xoff - headroom // -16_384 * 16_384}
    return _link(
        "roce", "roce", gbps, ns, marks=gbps * 1000, marks_all=gbps * 4000, **values
    )


NETWORK_LINKS: dict[str, Preset] = {
    **{name: _infiniband(*row) for name, row in _DATA["infiniband"].items()},
    **{
        f"{kind}-{gbps}": _roce(gbps)
        if kind == "roce"
        else _link("own", kind, gbps, 150)
        for kind, rates in _DATA["ethernet"].items()
        for gbps in rates
    },
}
"""Link types by name; their latency excludes the cable, which `length` adds."""


USUAL_LINKS: dict[str, dict[int, str]] = {
    kind: {int(gbps): link for gbps, link in links.items()}
    for kind, links in _DATA["usual"].items()
} | {
    kind: {gbps: f"{kind}-{gbps}" for gbps in rates}
    for kind, rates in _DATA["ethernet"].items()
}
"""Links by kind of network and rate [Gb/s]."""
