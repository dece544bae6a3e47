"""Random spreads of the writes and messages of an image: load, flowlets, detours, order."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from clusim.base.errors import ScheduleError
from clusim.engine.abi import NONE, ConnKind, Policy
from clusim.engine.image import Image, empty
from clusim.engine.simulation import Simulation

__all__ = ["spread_image", "without_spreads"]


def spread_image(image: Image, rng: random.Random) -> Image:
    """Return the image, in half of the cases with spreads of some of its flows."""
    if rng.random() < 0.5:
        return image
    spreads = empty("spreads", rng.randint(1, 3))
    for row in spreads:
        row["gap_ps"] = rng.choice([0, 0, 1, 500, 5000, 40000])
        row["nak_ps"] = rng.choice([1, 300, 3000, 20000])
        row["reorder_bytes"] = rng.choice([0, 0, 64, 1000, 1 << 20])
        row["ordered"] = rng.random() < 0.6
        row["estimate"] = rng.randrange(2)
        row["detour_vcs"] = rng.randrange(3)
        row["bias_bytes"] = rng.choice([0, 0, 100, 5000])
        if rng.random() < 0.5:
            row["detour_lo"] = rng.randrange(len(image.targets))
            row["detour_hi"] = rng.randint(row["detour_lo"] + 1, len(image.targets))
    conns, sources = image.conns.copy(), image.sources.copy()
    may = (conns["kind"] == ConnKind.WRITE) & (conns["path"] == NONE)
    for place in may.nonzero()[0]:
        conns["spread"][place] = _drawn(rng, len(spreads))
    for place in range(len(sources)):
        sources["spread"][place] = _drawn(rng, len(spreads))
    result = replace(image, spreads=spreads, conns=conns, sources=sources)
    result = _with_queue_pairs(result, rng)
    if rng.random() < 0.4:
        result = _with_minimal_paths(result, rng)
    return result if _legal(result) else _without_detours(result)


def _with_queue_pairs(image: Image, rng: random.Random) -> Image:
    """Give some spread connections several queue pairs, which take turns or share every transfer."""
    conns, keys = image.conns.copy(), image.queue_keys.tolist()
    for conn in conns:
        if conn["spread"] != NONE and conn["queue_lo"] == conn["queue_hi"] and rng.random() < 0.4:
            conn["queue_lo"] = len(keys)
            keys += [rng.getrandbits(rng.choice([3, 32])) for _ in range(rng.randint(1, 4))]
            conn["queue_hi"], conn["split"] = len(keys), rng.randrange(2)
    return replace(image, conns=conns, queue_keys=np.array(keys, image.queue_keys.dtype))


def _with_minimal_paths(image: Image, rng: random.Random) -> Image:
    """Let some spreads use minimal paths on a further virtual channel, over wires with a dimension."""
    spreads, wires = image.spreads.copy(), image.wires.copy()
    used = [image.conns["vc"], image.conns["vc_response"], image.sources["vc"]]
    channel = 2 + max(int(values.max(initial=0)) for values in used)
    if channel > 7:
        return image
    spreads["detour_vcs"] = 0
    for row in spreads:
        if rng.random() < 0.7:
            row["minimal_vc"], row["gap_ps"], row["detour_hi"] = channel, 0, row["detour_lo"]
    for wire in wires:
        wire["dim"] = wire["dim"] or rng.randrange(3)
    return replace(image, nvc=max(image.nvc, channel + 1), spreads=spreads, wires=wires)


def _drawn(rng: random.Random, count: int) -> int:
    return rng.randrange(count) if rng.random() < 0.7 else NONE


def _legal(image: Image) -> bool:
    """False if a detour leads over an endpoint, or to where no route goes on."""
    try:
        Simulation(image)
    except ScheduleError as error:
        if "spreads" not in str(error):
            raise
        return False
    return True


def _without_detours(image: Image) -> Image:
    spreads = image.spreads.copy()
    spreads["detour_hi"] = spreads["detour_lo"]
    return replace(image, spreads=spreads)


def without_spreads(image: Image) -> Image:
    """Return the image without spreads."""
    conns, sources = image.conns.copy(), image.sources.copy()
    conns["spread"] = sources["spread"] = NONE
    unpinned = conns["policy"] != Policy.PINNED
    conns["queue_hi"][unpinned] = conns["queue_lo"][unpinned]
    return replace(image, spreads=empty("spreads"), conns=conns, sources=sources)
