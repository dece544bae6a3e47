"""Policies of receivers, of the classes of outputs and of paths, and marks at departure, for a random image."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from clusim.engine.abi import NONE, ConnKind, SenderMode
from clusim.engine.image import Image, empty
from clusim.policies.choice import BoundSender, Sender, find_policy
from support import path_policies, wire_policies
from support.random_senders import control_of

__all__ = ["chosen_image", "granted_image", "joined_image", "late_image", "pathed_image"]

RECEIVERS: tuple[tuple[str, dict[str, int]], ...] = (
    ("rccc", {"base_ps": 2000, "pull_bytes": 64}),
    ("rccc", {"base_ps": 20_000, "pull_bytes": 512, "share_65536": 60_000}),
    (f"{wire_policies.PLACE}:Grants", {}),
    (f"{wire_policies.PLACE}:Grants", {"first_bytes": 0, "period_ps": 500}),
)


def _with_row(image: Image, sender: Sender, row: dict[str, int]) -> Image:
    """Return the image with a further row of `controls` with a policy."""
    row = row | {"sender": find_policy(sender.name).mode, "receiver": 0}
    table = np.zeros(1, image.controls.dtype)
    for key, value in row.items():
        table[key] = value
    known = image.senders or (None,) * len(image.controls)
    return replace(
        image,
        controls=np.concatenate((image.controls, table)),
        senders=(*known, BoundSender(sender, tuple(row.items()))),
    )


def granted_image(image: Image, rng: random.Random) -> Image:
    """Return the image with receivers that grant credit to many of its flows."""
    conns, sources = image.conns.copy(), image.sources.copy()
    for _ in range(rng.randint(1, 2)):
        name, constants = rng.choice(RECEIVERS)
        image = _with_row(image, Sender(name, tuple(constants.items())), control_of(rng))
        for table, able in (
            (conns, conns["kind"] == ConnKind.WRITE),
            (sources, sources["vc"] >= 0),
        ):
            for row in np.flatnonzero(able):
                spread = table[row]["spread"]
                row_of = image.spreads[spread] if spread != NONE else None
                if row_of is not None and row_of["ordered"] and not row_of["timeout_ps"]:
                    continue
                if rng.random() < 0.5:
                    table[row]["control"] = len(image.controls) - 1
    return replace(image, conns=conns, sources=sources)


def chosen_image(image: Image, rng: random.Random) -> Image:
    """Return the image with policies of the schedules of some outputs of switches."""
    schedules, wires = [image.schedules], image.wires.copy()
    for name in rng.sample(["Oldest", "Highest", "Draws"], 2):
        sender = Sender(f"{wire_policies.PLACE}:{name}")
        image = _with_row(image, sender, dict.fromkeys(image.controls.dtype.names or (), 1))
        table = empty("schedules", 1)
        table["quantum"], table["policy"] = 1, len(image.controls)
        schedules.append(table)
        number = sum(map(len, schedules))
        for wire in wires:
            if image.nodes["endpoint"][wire["src"]] == NONE and rng.random() < 0.4:
                wire["schedule"] = number
    return replace(image, wires=wires, schedules=np.concatenate(schedules))


def joined_image(image: Image, rng: random.Random) -> Image:
    """Return the image with receivers that grant credit to flows with policies of senders, of most of their rows."""
    modes = (SenderMode.POLICY, SenderMode.TELEMETRY)
    rows = np.flatnonzero(np.isin(image.controls["sender"], modes))
    name, constants = rng.choice(RECEIVERS)
    image = _with_row(image, Sender(name, tuple(constants.items())), control_of(rng))
    controls, senders = image.controls.copy(), [*image.senders]
    for row in rows:
        if rng.random() < 0.8:
            controls["receiver"][row] = len(controls)
    return replace(image, controls=controls, senders=tuple(senders))


def pathed_image(image: Image, rng: random.Random) -> Image:
    """Return the image with policies of the paths of many switches."""
    nodes = image.nodes.copy()
    for name in rng.sample(["", "InTurn", "Mixed", "Mixed"], 2):
        sender = Sender("adaptive-policy", (("by_credit", rng.randrange(2)),))
        if name:
            sender = Sender(f"{path_policies.PLACE}:{name}")
        image = _with_row(image, sender, dict.fromkeys(image.controls.dtype.names or (), 1))
        for node in nodes:
            if node["endpoint"] == NONE and rng.random() < 0.5:
                node["policy"] = len(image.controls)
    return replace(image, nodes=nodes)


def late_image(image: Image, rng: random.Random) -> Image:
    """Return the image with marks at departure of many wires that mark; some more mark."""
    wires = image.wires.copy()
    for wire in wires:
        if wire["ecn_max_bytes"] == 0 and rng.random() < 0.3:
            wire["ecn_min_bytes"] = rng.choice([0, 100, 400])
            wire["ecn_max_bytes"] = wire["ecn_min_bytes"] + rng.choice([0, 200, 2000])
            wire["ecn_threshold"] = rng.choice([0, 2**30, 2**32 - 1])
        wire["ecn_departure"] = wire["ecn_max_bytes"] > 0 and rng.random() < 0.7
        wire["red"] &= 1 - wire["ecn_departure"]
    return replace(image, wires=wires)
