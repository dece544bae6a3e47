"""Policies of the queues of wires for a random image."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from clusim.engine.image import Image
from clusim.policies.choice import BoundSender, Sender, find_policy
from support import sender_policies

__all__ = ["judged_image"]

CHOICES: tuple[tuple[str, dict[str, int]], ...] = (
    ("Moody", {}),
    ("Moody", {}),
    ("Step", {"mark_bytes": 300, "drop_bytes": 2000}),
    ("Threshold", {"alpha_1024": 512}),
    ("Threshold", {"alpha_1024": 300, "answer": 2}),
)


def judged_image(image: Image, rng: random.Random) -> Image:
    """Return the image with policies of the queues of some wires."""
    rows, senders = [], []
    for _ in range(rng.randint(1, 2)):
        name, constants = rng.choice(CHOICES)
        sender = Sender(f"{sender_policies.PLACE}:{name}", tuple(constants.items()))
        row = {name: 1 for name in image.controls.dtype.names}
        row |= {"sender": find_policy(sender.name).mode, "receiver": 0}
        rows.append(row)
        senders.append(BoundSender(sender, tuple(row.items())))
    controls = np.zeros(len(rows), image.controls.dtype)
    for number, row in enumerate(rows):
        for key, value in row.items():
            controls[number][key] = value
    first, wires = len(image.controls), image.wires.copy()
    for wire in wires:
        if rng.random() < 0.5:
            wire["policy"] = 1 + first + rng.randrange(len(rows))
    known = image.senders or (None,) * first
    return replace(
        image,
        controls=np.concatenate((image.controls, controls)),
        wires=wires,
        senders=(*known, *senders),
    )
