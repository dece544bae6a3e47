"""NCCL's own transport for TCP sockets: data go through host memory and the kernel."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.transport import Transport, message

_TCP = "TCP through the kernel, 25-30 us between two hosts"

TRANSPORT = Transport(
    name="sockets",
    title="sockets (NCCL's own)",
    figures=message(
        "sockets",
        post=assumed("12us", _TCP),
        completion=assumed("10us", _TCP),
        flush=published("0", "data are in host memory; nothing to flush"),
        gpudirect=published(False, "no RDMA: data go through host memory"),
    ),
    in_logs="Socket",
)
