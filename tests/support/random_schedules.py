"""Random schedules of output ports: classes of the flows of an image, their priorities and quanta."""

from __future__ import annotations

import random
from dataclasses import replace

from clusim.engine.abi import CLASSES
from clusim.engine.image import Image, empty

__all__ = ["scheduled_image"]


def scheduled_image(image: Image, rng: random.Random) -> Image:
    """Return the image with schedules of most wires, and flows of several classes.

    The classes of images with minimal paths, which use a virtual channel above all others, stay.
    """
    conns, sources, nvc = image.conns.copy(), image.sources.copy(), image.nvc
    if not image.spreads["minimal_vc"].any():
        nvc = min(CLASSES, nvc + rng.randrange(3))
        for table in (conns, sources):
            for row in table:
                if rng.random() < 0.5:
                    row["vc"] = rng.randrange(nvc)
    schedules = empty("schedules", rng.randint(1, 3))
    levels = rng.choice([1, 2, 8])
    for row in schedules:
        row["priority"] = [rng.randrange(levels) for _ in range(CLASSES)]
        row["quantum"] = [rng.choice([1, 40, 100, 300, 1000, 10_000]) for _ in range(CLASSES)]
    wires = image.wires.copy()
    for wire in wires:
        if rng.random() < 0.7:
            wire["schedule"] = rng.randint(1, len(schedules))
    return replace(image, nvc=nvc, conns=conns, sources=sources, wires=wires, schedules=schedules)
