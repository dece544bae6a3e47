"""Switch chips: ports, latency, reduction unit.

**Hardware** NVSwitch is a single-stage crossbar; generation 3 and 4 replicate multicast stores and reduce on the way
(NVLink SHARP). No vendor figure for port-to-port latency or buffers exists.
**Model** Virtual cut-through with input buffers and virtual output queues; one reduction unit per chip.
**Not modelled** Internal speed-up and the arbiter's pipeline.
**Parameters** The figures below, by the keys of a topology file.
"""

from __future__ import annotations

from clusim.hardware.figures import Preset, assumed, calibrated, published

__all__ = ["NVSWITCHES"]

_LATENCY = calibrated(
    "110ns",
    "100-150 ns left for the switch by the LL ring step of 0.6 us; no vendor figure for NVSwitch",
)
_UNIT_LATENCY = assumed("100ns", "a pipeline of the order of the port-to-port latency")
_UNIT_CAPACITY = assumed(
    "2MiB",
    "not the limit: 8 GPUs x 16 CTAs request 1.2 MiB over four chips at most; from 512 KiB on the busbw of an 8-GPU"
    " all-reduce no longer changes, 256 KiB would cost it 3%",
)
_ALU_GEN3 = published(
    "1.6 TB/s",
    "third-generation NVSwitch: 400 GFLOP/s FP32 per chip (Hot Chips 34), one add per 4-byte operand",
)

NVSWITCHES: dict[str, Preset] = {
    "nvswitch1": {
        "ports": published(18, "NVSwitch: 18 ports, full crossbar (GTC 2018)"),
        "latency": _LATENCY,
        "store_and_forward": assumed(False, "a crossbar with sub-microsecond latency cuts through"),
    },
    "nvswitch2": {
        "ports": published(36, "NVIDIA A100 whitepaper: 36 ports"),
        "latency": _LATENCY,
        "store_and_forward": assumed(False, "a crossbar with sub-microsecond latency cuts through"),
    },
    "nvswitch3": {
        "ports": published(64, "third-generation NVSwitch: 64 ports (Hot Chips 34)"),
        "latency": _LATENCY,
        "store_and_forward": assumed(False, "a crossbar with sub-microsecond latency cuts through"),
        "reduction_latency": _UNIT_LATENCY,
        "reduction_capacity": _UNIT_CAPACITY,
        "reduction_rate": _ALU_GEN3,
    },
    "nvswitch4": {
        "ports": published(72, "NVLink 5 Switch chip: 72 ports"),
        "latency": _LATENCY,
        "store_and_forward": assumed(False, "a crossbar with sub-microsecond latency cuts through"),
        "reduction_latency": _UNIT_LATENCY,
        "reduction_capacity": assumed(
            "8MiB", "as NVSwitch 3, for links twice as fast and half as many chips per GPU"
        ),
        "reduction_rate": published(
            "14.4 TB/s", "3.6 TFLOP/s per chip (NVLink 5 Switch), 4-byte operands"
        ),
    },
    "generic": {
        "latency": assumed("1ps", "no latency unless one is given"),
        "store_and_forward": assumed(False, "virtual cut-through unless said otherwise"),
    },
}
"""Switch chips by name."""
