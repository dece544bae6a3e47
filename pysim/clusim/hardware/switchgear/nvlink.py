"""NVSwitch, generations 1 to 4, and a switch without properties."""

from __future__ import annotations

from clusim.hardware.figures import assumed, calibrated, published
from clusim.hardware.switch import Switch

_LATENCY = calibrated(
    "110ns",
    "100-150 ns left for the switch by the LL ring step of 0.6 us; no vendor figure for NVSwitch",
    "nccl-tuning",
)
_CUT = assumed(False, "a crossbar with sub-microsecond latency cuts through")
_UNIT_LATENCY = assumed("100ns", "a pipeline of the order of the port-to-port latency")

SWITCHES = (
    Switch(
        "nvswitch1",
        {
            "ports": published(18, "NVSwitch: 18 ports, full crossbar (GTC 2018)"),
            "latency": _LATENCY,
            "store_and_forward": _CUT,
        },
    ),
    Switch(
        "nvswitch2",
        {
            "ports": published(36, "NVIDIA A100 whitepaper: 36 ports"),
            "latency": _LATENCY,
            "store_and_forward": _CUT,
        },
    ),
    Switch(
        "nvswitch3",
        {
            "ports": published(64, "third-generation NVSwitch: 64 ports (Hot Chips 34)"),
            "latency": _LATENCY,
            "store_and_forward": _CUT,
            "reduction_latency": _UNIT_LATENCY,
            "reduction_capacity": assumed(
                "2MiB",
                "not the limit: 8 GPUs x 16 CTAs request 1.2 MiB over four chips at most; from 512 KiB on the busbw of"
                " an 8-GPU all-reduce no longer changes, 256 KiB would cost it 3%",
            ),
            "reduction_rate": published(
                "1.6 TB/s",
                "third-generation NVSwitch: 400 GFLOP/s FP32 per chip (Hot Chips 34), one add per 4-byte operand",
            ),
        },
    ),
    Switch(
        "nvswitch4",
        {
            "ports": published(72, "NVLink 5 Switch chip: 72 ports"),
            "latency": _LATENCY,
            "store_and_forward": _CUT,
            "reduction_latency": _UNIT_LATENCY,
            "reduction_capacity": assumed(
                "8MiB", "as NVSwitch 3, for links twice as fast and half as many chips per GPU"
            ),
            "reduction_rate": published(
                "14.4 TB/s", "3.6 TFLOP/s per chip (NVLink 5 Switch), 4-byte operands"
            ),
        },
    ),
    Switch(
        "generic",
        {
            "latency": assumed("1ps", "no latency unless one is given"),
            "store_and_forward": assumed(False, "virtual cut-through unless said otherwise"),
        },
    ),
)
