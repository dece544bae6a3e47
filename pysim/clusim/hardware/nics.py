"""Network adapters: what they add to a message between a host's memory and the wire.

**Hardware** A process posts a work request; the adapter fetches data over PCIe, cuts them into packets and sends. The
receiving adapter writes them to memory, then a completion; data for a GPU are flushed by a read before the GPU may
look. NCCL's proxy thread on the CPU posts and watches on both sides.
**Model** `post` before the first fetch and `completion` after the last packet, each with the share of the proxy
thread; `flush` for GPUDirect; a forwarding latency in each direction. Rate control reacts to congestion marks.
**Not modelled** Doorbells and queues of their own, address translation misses, message rates, retransmission.
**Parameters** The figures below, by the keys of a topology file.
"""

from __future__ import annotations

from clusim.hardware.figures import Figure, Preset, assumed, calibrated, measured, published

__all__ = ["NICS", "RATE_CONTROLS"]

_PROXY = "NCCL's proxy thread adds 1 us per step on Intel (tuning.cc), half of it here"

_POST = calibrated(
    "1us",
    f"doorbell 0.15, work request 0.15, read request 0.2 us (verbs writes take 0.9-1.0 us end to end); {_PROXY}",
)
_COMPLETION = calibrated("750ns", f"completion entry and its poll 0.25 us; {_PROXY}")
_FLUSH = calibrated("1us", "a read of GPU memory by the adapter, there and back")
_NO_FLUSH = published("0", "data are in host memory; nothing to flush")


def _dcqcn(gbps: float) -> Preset:
    """Return DCQCN with the steps of the paper, which are for 40 Gb/s, scaled to a rate."""
    scale = gbps / 40
    paper = "DCQCN (Zhu et al., SIGCOMM 2015)"
    return {
        "g": published(1 / 256, paper),
        "alpha_timer": published("55us", paper),
        "increase_timer": published("55us", paper),
        "cnp_interval": published("50us", paper),
        "cnp_delay": assumed("2us", "notification packet back to the sender over an idle network"),
        "byte_counter": published("10MB", paper),
        "additive": calibrated(
            f"{40 * scale:g} Mb/s", f"{paper}: 40 Mb/s at 40 Gb/s, with the rate"
        ),
        "hyper": calibrated(
            f"{200 * scale:g} Mb/s", f"{paper}: 200 Mb/s at 40 Gb/s, with the rate"
        ),
        "min_rate": assumed("100 Mb/s", "floor of Mellanox adapters"),
        "fast_recovery": published(5, paper),
    }


RATE_CONTROLS: dict[str, Preset] = {
    "dcqcn": _dcqcn(40),
    **{f"dcqcn-{gbps}": _dcqcn(gbps) for gbps in (25, 50, 100, 200, 400, 800)},
}
"""Rate controls by name: the paper's, and scaled to a link's rate."""


def _nic(
    latency: Figure,
    *,
    post: Figure = _POST,
    completion: Figure = _COMPLETION,
    flush: Figure = _FLUSH,
    mtu: Figure | None = None,
    control: Figure | None = None,
    gpudirect: Figure | None = None,
    adaptive: Figure | None = None,
    ports: int = 1,
    gbps: int = 0,
) -> Preset:
    """Return an adapter; `gbps` is what it reports to NCCL, 0 the rate of its cable."""
    preset = {
        "latency": latency,
        "mtu": mtu or published(4096, "largest InfiniBand and RoCE MTU"),
        "gpudirect": gpudirect or published(True, "reads and writes GPU memory (GPUDirect RDMA)"),
        "post": post,
        "completion": completion,
        "flush": flush,
        "adaptive": adaptive or assumed(False, "one path per connection unless asked for"),
        "ports": published(ports, "network ports of the adapter"),
    }
    if gbps:
        preset["speed"] = published(f"{gbps} Gb/s", "rate of the adapter, as it reports it to NCCL")
    return preset if control is None else {**preset, "rate_control": control}


_CX_LATENCY = calibrated(
    "150ns",
    "verbs writes take 0.9-1.0 us back to back (ConnectX-5 to 7), of which two adapters 0.3 us",
)
_CX3_LATENCY = assumed("200ns", "as later ConnectX, somewhat slower")


def _roce(gbps: int, ports: int = 1) -> Preset:
    control = assumed(f"dcqcn-{gbps}", "DCQCN, its steps scaled with the rate")
    return _nic(_CX_LATENCY, control=control, ports=ports, gbps=gbps)


_SPRAY = published(True, "SRD sprays the packets of a message over many paths")
_EFA_FLUSH = published("1us", "aws-ofi-nccl flushes by a local read")


def _efa(gbps: int, transit_us: float, source: str) -> Preset:
    """Return an EFA adapter; `source` says where the delay of its messages is from."""
    preset = _nic(
        assumed("1us", "Nitro card: forwarding of a packet, part of the latency end to end"),
        flush=_EFA_FLUSH,
        mtu=published(4096, "ibv_devinfo of EFA: active_mtu 4096"),
        adaptive=_SPRAY,
        gbps=gbps,
    )
    stated = "75us" if gbps == 100 else "35us"
    preset = {
        **preset,
        "plugin": published("efa", "NCCL reaches EFA through aws-ofi-nccl"),
        "plugin_latency": published(
            stated, "aws-ofi-nccl states 75 us on p4d and p5, 35 us since p5en, to NCCL's tuner"
        ),
    }
    return {**preset, "transit": calibrated(f"{transit_us:g}us", f"SRD in firmware: {source}")}


_EFA_1 = "20 us per message that aws-ofi-nccl's tuner counts for p4d and p5, less what hosts, PCIe and cards take"
_EFA_3 = (
    "18 us per message that aws-ofi-nccl's tuner counts for p5en, less what hosts, PCIe and cards take; 1 KiB LL"
    " all-reduce on 4 p5en takes 15 us (tree) to 25 us (ring) per crossing (ncclgauge)"
)

NICS: dict[str, Preset] = {
    "cx3-fdr": _nic(_CX3_LATENCY, gbps=56),
    "cx4-edr": _nic(_CX_LATENCY, gbps=100),
    "cx5-edr": _nic(_CX_LATENCY, gbps=100),
    "cx6-hdr": _nic(_CX_LATENCY, gbps=200),
    "cx6-hdr100": _nic(_CX_LATENCY, gbps=100),
    "cx6-fdr": _nic(_CX_LATENCY, gbps=56),
    "cx7-ndr": _nic(_CX_LATENCY, gbps=400),
    "cx7-ndr200": _nic(_CX_LATENCY, ports=2, gbps=200),
    "cx8-xdr": _nic(_CX_LATENCY, gbps=800),
    "cx4-roce25": _roce(25, 2),
    "cx5-roce100": _roce(100),
    "cx6-roce100": _roce(100, 2),
    "cx6-roce200": _roce(200),
    "cx7-roce200": _roce(200, 2),
    "cx7-roce400": _roce(400),
    "cx8-roce800": _roce(800),
    "bf3": _roce(400),
    "bf3-ndr": _nic(_CX_LATENCY, gbps=400),
    "efa-25g": _efa(25, 13, _EFA_1),
    "efa-100g": _efa(100, 13, _EFA_1),
    "efa-100g-v2": _efa(100, 13, _EFA_1),
    "efa-200g": _efa(200, 12, _EFA_3),
    "efa-400g": _efa(400, 12, _EFA_3),
    "ena-25g": _nic(
        assumed("2us", "Nitro card"),
        post=assumed("12us", "TCP through the kernel, 25-30 us between two hosts"),
        completion=assumed("10us", "TCP through the kernel, 25-30 us between two hosts"),
        flush=_NO_FLUSH,
        mtu=published(8960, "jumbo frames of ENA, MTU 9001"),
        gpudirect=published(False, "no RDMA: data go through host memory"),
        gbps=25,
    ),
    "cassini-200g": _nic(
        measured(
            "400ns",
            "Slingshot 11 (Cassini): MPI latency 1.8 us between neighbours (De Sensi et al.)",
        ),
        mtu=assumed(2048, "Cassini cuts messages into 2 KiB packets"),
        adaptive=published(True, "Rosetta routes every packet by load"),
        gbps=200,
    ),
    "cx5-slingshot": _nic(
        _CX_LATENCY,
        adaptive=published(True, "Slingshot 10: Rosetta routes every packet by load"),
        gbps=100,
    ),
    "gvnic-200g": _nic(
        assumed("2us", "Titanium card"),
        post=assumed("8us", "GPUDirect-TCPXO: a service process posts for NCCL"),
        completion=assumed("6us", "GPUDirect-TCPXO: a service process watches for NCCL"),
        mtu=published(8192, "jumbo frames of gVNIC, MTU 8244 to 8896"),
        gpudirect=published(True, "GPUDirect-TCPXO: headers to the host, payload to the GPU"),
        gbps=200,
    ),
    "nic": _nic(_CX_LATENCY),
}
"""Adapters by name."""

for _name, _same in (("gpudirect-tcpxo", "gvnic-200g"), ("gpudirect-tcpx", "gvnic-200g")):
    NICS[_name] = NICS[_same]
