"""InfiniBand switches, some with SHARP."""

from __future__ import annotations

from clusim.hardware.figures import Figure, assumed, published
from clusim.hardware.switch import Switch, switch_figures


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


SWITCHES = (
    Switch(
        "switchx2",
        switch_figures(
            published(36, "SwitchX-2 SX6036: 36 ports FDR"),
            published("170ns", "SX6036 brief: 170 ns port to port"),
        ),
        usual_for=("ib-fdr",),
    ),
    Switch(
        "switch-ib",
        switch_figures(
            published(36, "Switch-IB SB7700: 36 ports EDR"),
            published("90ns", "Switch-IB brief: 90 ns port to port"),
        ),
    ),
    Switch(
        "switch-ib2",
        switch_figures(
            published(36, "Switch-IB 2 SB7800: 36 ports EDR"),
            published("90ns", "Switch-IB 2 brief: 90 ns port to port"),
        )
        | {
            "reduction_latency": assumed("300ns", "SHARP v1: store, then aggregate; not published"),
            "reduction_capacity": assumed("64KiB", "SHARP v1 is for short vectors"),
            "reduction_rate": assumed("50 GB/s", "SHARP v1: short vectors, far below line rate"),
            "reduction_slots": assumed(8, "SHARP v1: few operations of 256 B under way"),
        },
        usual_for=("ib-edr",),
    ),
    Switch(
        "quantum",
        switch_figures(published(40, "Quantum QM8700/QM8790: 40 ports HDR"), _SUB_130)
        | _sharp("1 TB/s", "SHARP v2"),
        usual_for=("ib-hdr",),
    ),
    Switch(
        "quantum-hdr100",
        switch_figures(published(80, "Quantum QM8700 split: 80 ports HDR100"), _SUB_130)
        | _sharp("1 TB/s", "SHARP v2"),
    ),
    Switch(
        "quantum2",
        switch_figures(
            published(64, "Quantum-2 QM9700/QM9790: 64 ports NDR"),
            assumed(
                "150ns", "not published; as Quantum (below 130 ns) with more FEC, 130-200 ns seen"
            ),
        )
        | _sharp("3.2 TB/s", "SHARP v3"),
        usual_for=("ib-ndr",),
    ),
    Switch(
        "quantum-x800",
        switch_figures(
            published(144, "Quantum-X800 Q3400: 144 ports XDR"),
            assumed("130ns", "below 100 ns is quoted without FEC; as Quantum"),
        )
        | _sharp("14.4 TB/s", "SHARP v4"),
        usual_for=("ib-xdr",),
    ),
)
