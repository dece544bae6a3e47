"""Ethernet switches."""

from __future__ import annotations

from clusim.hardware.figures import assumed, published
from clusim.hardware.switch import Switch, switch_figures

SWITCHES = (
    Switch(
        "spectrum",
        switch_figures(
            published(32, "Spectrum SN2700: 32 ports 100 Gb/s"),
            published("300ns", "Spectrum SN2700 brief: 300 ns port to port"),
            published("16MiB", "Spectrum: 16 MB shared"),
        ),
    ),
    Switch(
        "spectrum2",
        switch_figures(
            published(32, "Spectrum-2 SN3700: 32 ports 200 Gb/s"),
            published("425ns", "Spectrum-2 SN3700 brief: 425 ns port to port"),
            published("42MiB", "Spectrum-2: 42 MB shared"),
        ),
    ),
    Switch(
        "spectrum3",
        switch_figures(
            published(32, "Spectrum-3 SN4700: 32 ports 400 Gb/s"),
            assumed("450ns", "as Spectrum-2 with more FEC"),
            published("64MiB", "Spectrum-3: 64 MB shared"),
        ),
    ),
    Switch(
        "spectrum4",
        switch_figures(
            published(64, "Spectrum-4 SN5600: 64 ports 800 Gb/s"),
            assumed("450ns", "as Spectrum-2 with more FEC"),
            published("160MiB", "Spectrum-4: 160 MB shared"),
        ),
    ),
    Switch(
        "tomahawk3",
        switch_figures(
            published(32, "Tomahawk 3: 12.8 Tb/s, 32 ports 400 Gb/s"),
            assumed("800ns", "600-900 ns of Tomahawk systems"),
            published("64MiB", "Tomahawk 3: 64 MB shared"),
        ),
    ),
    Switch(
        "tomahawk4",
        switch_figures(
            published(64, "Tomahawk 4: 25.6 Tb/s, 64 ports 400 Gb/s"),
            assumed("800ns", "600-900 ns of Tomahawk systems"),
            published("113MiB", "Tomahawk 4: 113 MB shared"),
        ),
    ),
    Switch(
        "tomahawk5",
        switch_figures(
            published(64, "Tomahawk 5: 51.2 Tb/s, 64 ports 800 Gb/s"),
            assumed("800ns", "600-900 ns of Tomahawk systems"),
            published("165MiB", "Tomahawk 5: 165 MB shared"),
        ),
    ),
    Switch(
        "ethernet",
        {
            "latency": assumed("600ns", "between Spectrum (300-450 ns) and Tomahawk (600-900 ns)"),
            "store_and_forward": assumed(False, "cut-through"),
        },
        usual_for=("roce", "tcp"),
    ),
)
