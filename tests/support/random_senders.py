"""Sender policies for the flows of a random image."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from clusim.engine.abi import NONE, ConnKind
from clusim.engine.image import Image
from clusim.policies.choice import BoundSender, Sender, find_policy
from support import sender_policies
from support.images import LINE_RATE

NAMES = ("swift", "timely", "nscc", "dctcp", "dcqcn-policy", "hpcc", "plb", "reps")
CLASSES = ("Free", "Narrow", "Pulse", "Traced", "Traced", "Wander", "Wander")


def sender_image(image: Image, rng: random.Random) -> Image:
    """Return the image with sender policies for most flows; not for receivers in order without retransmission."""
    rows = []
    senders = []
    for _ in range(rng.randint(1, 3)):
        name = rng.choice([*NAMES, *(f"{sender_policies.PLACE}:{word}" for word in CLASSES)])
        row = control_of(rng) | {"sender": find_policy(name).mode}
        rows.append(row)
        senders.append(BoundSender(Sender(name), tuple(row.items())))
    controls = np.zeros(len(rows), image.controls.dtype)
    for number, row in enumerate(rows):
        for key, value in row.items():
            controls[number][key] = value
    first = len(image.controls)
    conns, sources = image.conns.copy(), image.sources.copy()
    for table, able in ((conns, conns["kind"] == ConnKind.WRITE), (sources, sources["vc"] >= 0)):
        for row in np.flatnonzero(able):
            spread = table[row]["spread"]
            row_of = image.spreads[spread] if spread != NONE else None
            if row_of is not None and row_of["ordered"] and not row_of["timeout_ps"]:
                continue
            if rng.random() < 0.8:
                table[row]["control"] = first + rng.randrange(len(rows))
    return replace(
        image,
        controls=np.concatenate((image.controls, controls)),
        conns=conns,
        sources=sources,
        senders=(*[None] * first, *senders),
    )


def controlled(image: Image) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the flows with rate control: connections, then sources."""
    return np.flatnonzero(np.append(image.conns["control"], image.sources["control"]) != NONE)


def control_of(rng: random.Random) -> dict[str, int]:
    """Return random figures of a rate control."""
    line = rng.choice([LINE_RATE, LINE_RATE // 4, 5 * LINE_RATE])
    return {
        "alpha_timer_ps": rng.choice([300, 4001, 50000]),
        "increase_timer_ps": rng.choice([500, 4001, 30011]),
        "cnp_interval_ps": rng.choice([1, 1000, 20000]),
        "cnp_delay_ps": rng.choice([1, 300, 3000]),
        "byte_counter": rng.choice([64, 1000, 20000]),
        "line_rate": line,
        "min_rate": rng.choice([line // 50, line // 8]),
        "additive": line // rng.choice([50, 10, 3]),
        "hyper": line // rng.choice([20, 5, 2]),
        "g_65536": rng.choice([256, 5000, 40000]),
        "fast_recovery": rng.choice([0, 1, 5]),
        "kept_65536": rng.choice([0, 30000, 60000]),
        "clamp": rng.randrange(2),
    }
