"""Plain hosts as endpoints: ideal sources and sinks of traffic, all delay is the network's."""

from __future__ import annotations

from clusim.hardware.figures import Preset, assumed

_NO_DELAY = assumed("1ps", "an ideal traffic source and sink: delay is the network's only")
_NO_MEMORY = assumed(0.0, "memory of hosts is not modelled")

HOST: Preset = {
    "architecture": assumed("host", "an ideal host: all delay is the network's"),
    "sms": assumed(64, "cores of a server"),
    "cta_slots": assumed(256, "no limit of interest: flows of a host"),
    "write_latency": _NO_DELAY,
    "read_latency": _NO_DELAY,
    "response_latency": _NO_DELAY,
    "memory_quantum": assumed("2us", "as for GPUs"),
    "memory_rate": assumed("100 TB/s", "never the limit"),
    "memory_efficiency": assumed(1.0, "never the limit"),
    "memory_per_delivered": _NO_MEMORY,
    "memory_per_read": _NO_MEMORY,
    "memory_per_injected": _NO_MEMORY,
    "peak_flops": assumed({}, "hosts run no kernels"),
    "links": assumed(0, "any number"),
}
"""The chip ``host``."""
