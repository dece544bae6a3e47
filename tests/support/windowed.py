"""Random images on which switches may work in windows of time."""

from __future__ import annotations

import random
from dataclasses import replace

from clusim.abi import NONE, ConnKind, FaultKind, Policy
from clusim.image import Image
from support.random_images import random_image

__all__ = ["windowed_image"]


def _without(image: Image) -> Image:
    """Take away what makes the engine handle every packet of a switch by an event."""
    conns, sources, wires = image.conns.copy(), image.sources.copy(), image.wires.copy()
    for flows in (conns, sources):
        flows["policy"][flows["policy"] == Policy.ADAPTIVE] = Policy.STRIPE
        flows["control"] = NONE
    for name in ("xoff_bytes", "xon_bytes", "ecn_min_bytes", "ecn_max_bytes", "ecn_threshold"):
        wires[name] = 0
    faults = image.faults[image.faults["kind"] != FaultKind.RATE]
    return replace(image, conns=conns, sources=sources, wires=wires, faults=faults)


def windowed_image(seed: int, size: str = "small") -> Image:
    """Return a random image with switches that only forward, by packets that go where they were sent."""
    while True:
        image = random_image(random.Random(seed), size=size)
        kinds = set(image.conns["kind"].tolist())
        if (image.nodes["endpoint"] == NONE).any() and not kinds & {
            ConnKind.MULTIMEM,
            ConnKind.AGGREGATION,
        }:
            return _without(image)
        seed += 1_000_000
