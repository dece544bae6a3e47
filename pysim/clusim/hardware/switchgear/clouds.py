"""Switches of clouds, which nobody describes."""

from __future__ import annotations

from clusim.hardware.figures import assumed
from clusim.hardware.switch import Switch

SWITCHES = (
    Switch(
        "efa-fabric",
        {
            "latency": assumed("900ns", "Amazon's switches are not described; as Tomahawk systems"),
            "store_and_forward": assumed(False, "cut-through"),
        },
        usual_for=("efa",),
    ),
    Switch(
        "jupiter",
        {
            "latency": assumed("900ns", "Google's switches are not described; as Tomahawk systems"),
            "store_and_forward": assumed(False, "cut-through"),
        },
    ),
)
