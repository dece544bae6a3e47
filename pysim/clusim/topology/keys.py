"""Keys of topology files as named arguments of `FabricBuilder`, for completion and type checks.

`schema` defines their values; a test compares the names. Also synonyms of keys, for messages about unknown ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from clusim.base.errors import suggest

Quantity = str | int
"""Quantity with a unit, such as ``110ns``, ``64KiB`` or ``25 GB/s``."""

Part = Mapping[str, Any]
"""Keys of a part of the file."""


class TopologyKeys(TypedDict, total=False):
    """Top-level keys of a topology file, without its name, nodes and links."""

    description: str
    sources: Mapping[str, str]
    architecture: str
    p2p: Literal["read", "write"]
    window: Quantity
    cta_skew: Quantity
    vcs: int
    p2p_level: str
    gdr_level: str
    gdr_read: bool
    acs: bool
    pxn: bool
    nvb: bool
    shm: bool
    nic_names: Mapping[str, str]
    routing: Literal["shortest", "dimension-order"]
    network_routing: Literal["shortest", "dimension-order"]
    forwarding: Part
    channels: Mapping[str, int]
    rings: Sequence[Sequence[int]]
    told_pcie: Mapping[str, str]
    told: Mapping[str, Mapping[str, int]]
    chips: Mapping[str, Part]
    switches: Mapping[str, Part]
    formats: Mapping[str, Part]
    link_types: Mapping[str, Part]
    nics: Mapping[str, Part]
    protocols: Mapping[str, Part]
    network: Part
    cluster: Part
    superpod: str
    logs: Part
    faults: Sequence[str]


class NodeKeys(TypedDict, total=False):
    """Keys of a graph node, without kind, chip and switch.

    A GPU or host forwards packets of others only with `relay`.
    """

    zone: int
    latency: Quantity
    relay: bool
    tier: str


class SwitchKeys(TypedDict, total=False):
    """Keys of a switch."""

    switch: str
    zone: int
    latency: Quantity
    store_and_forward: bool
    tier: str


LinkKeys = TypedDict(
    "LinkKeys",
    {
        "pair": Literal["all", "zip", "blocks"],
        "count": int | Sequence[int],
        "type": str,
        "dim": int,
        "dateline": Literal["none", "forward", "backward", "both"],
        "base": str,
        "rate": Quantity,
        "latency": Quantity,
        "format": str,
        "buffer": Quantity,
        "replay": Quantity,
        "error_rate": float,
        "length": Quantity,
        "medium": Literal["fibre", "copper"],
        "pfc": str | Part,
        "ecn": str | Part,
        "drop": str | Part,
        "schedule": str | Part,
        "queue_policy": str | Part,
        "schedule_policy": str | Part,
        "weight": int,
        "class": str,
    },
    total=False,
)
"""Keys of a link; ``class`` is given as ``**{"class": ...}``."""


SYNONYMS = {
    "bandwidth": "rate",
    "speed": "rate",
    "delay": "latency",
    "gpus": "nodes",
    "lanes": "count",
}
"""Common synonyms of keys, with the key that each denotes."""


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the nearest known word, otherwise all words."""
    return suggest(word, names, SYNONYMS)
