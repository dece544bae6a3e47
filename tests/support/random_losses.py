"""Random losses: drops and trims of switches, and retransmission of the flows of an image with receivers in order."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from clusim.engine.abi import NONE, ConnKind
from clusim.engine.image import Image, empty

__all__ = ["lossy_image"]


def lossy_image(image: Image, rng: random.Random) -> Image:
    """Return the image with retransmission of most of its writes and messages, and with wires that drop or trim
    packets."""
    spreads = image.spreads.copy()
    spreads["ordered"] |= np.array([rng.random() < 0.5 for _ in spreads], bool)
    spreads = np.concatenate((spreads, empty("spreads", 2)))
    spreads["ordered"][-2:] = 1
    for row in spreads:
        row["nak_ps"] = row["nak_ps"] or rng.choice([1, 300, 3000])
        if row["ordered"] and rng.random() < 0.9:
            row["timeout_ps"] = rng.choice([40_000, 300_000, 2_000_000])
            row["retries"] = 65_536
            row["selective"] = rng.random() < 0.5
            row["trimmed"] = row["selective"] and rng.random() < 0.8
    conns, sources = image.conns.copy(), image.sources.copy()
    writes = (conns["kind"] == ConnKind.WRITE) & (conns["path"] == NONE)
    for row in writes.nonzero()[0]:
        if conns["spread"][row] == NONE:
            conns["spread"][row] = len(spreads) - 1 - rng.randrange(2)
    sources["spread"][sources["spread"] == NONE] = len(spreads) - 1 - rng.randrange(2)
    nvc = 0 if spreads["minimal_vc"].any() else max(2, image.nvc)
    nodes, wires = image.nodes.copy(), image.wires.copy()
    largest = int(
        max(image.conns["packet_bytes"].max(initial=1), sources["packet_bytes"].max(initial=1))
    )
    for row in nodes:
        if row["endpoint"] == NONE and row["unit"] == NONE and rng.random() < 0.6:
            row["shared_bytes"] = rng.choice([4, 10, 40]) * (largest + 64)
    for row in wires:
        if rng.random() < 0.6:
            row["queue_bytes"] = rng.choice([1, 2, 3, 5, 20]) * (largest + 64) + rng.randrange(300)
            row["alpha_1024"] = rng.choice([0, 256, 1024, 8192])
            row["red"] = row["ecn_max_bytes"] > 0 and rng.random() < 0.5
            if nvc > 1 and rng.random() < 0.8:
                row["trim_vc"] = rng.randrange(1, nvc)
    return replace(
        image,
        nvc=max(nvc, image.nvc),
        spreads=spreads,
        conns=conns,
        sources=sources,
        nodes=nodes,
        wires=wires,
    )
