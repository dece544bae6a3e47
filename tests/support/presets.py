"""Hardware presets as the objects of a topology."""

from __future__ import annotations

from typing import Literal

from clusim.topology import Format, Link, Node
from clusim.topology.catalogue import preset
from clusim.topology.components import make_format, make_link, make_nic, make_switch


def preset_format(name: str) -> Format:
    return make_format(name, preset("formats", name))


def preset_switch(name: str) -> Node:
    return make_switch(preset("switches", name))


def preset_nic(name: str) -> Node:
    return make_nic(preset("nics", name))


def preset_link(
    name: str, length_m: float = 0.0, medium: Literal["fibre", "copper"] = "fibre"
) -> Link:
    """Return a link of a preset type over a cable of a length [m]."""
    spec = preset("link_types", name)
    if length_m:
        spec = spec.model_copy(update={"length": length_m, "medium": medium})
    return make_link(spec, name)
