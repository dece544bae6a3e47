"""HPE Slingshot's switches."""

from __future__ import annotations

from clusim.hardware.figures import assumed, calibrated, published
from clusim.hardware.switch import Switch, switch_figures

SWITCHES = (
    Switch(
        "rosetta",
        switch_figures(
            published(64, "Rosetta: 64 ports 200 Gb/s"),
            calibrated("350ns", "De Sensi et al., SC20: 300 to 400 ns, mean 350", "slingshot"),
        ),
        usual_for=("slingshot",),
    ),
    Switch(
        "rosetta2",
        switch_figures(
            published(64, "Slingshot 400: 64 ports 400 Gb/s"),
            assumed("350ns", "as Rosetta"),
        ),
    ),
)
