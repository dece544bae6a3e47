"""Binding of ``clusim_channels.h``: one attempt of the graph search inside a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clusim._engine import ffi, lib
from clusim.base.records import dataclass

_ARRAYS = {
    "link_rates": np.float32,
    "paths": np.int32,
    "links": np.int32,
    "nets": None,
    "starts": np.uint8,
    "nets_first": np.int32,
    "nets_to_try": np.int32,
    "choices_first": np.int32,
    "choices": np.int32,
}
NETS = np.dtype(
    [(name, np.float32) for name in ("rate", "latency_us", "widest")]
    + [(name, np.int32) for name in ("port", "head", "is_collective")]
)
"""Layout of a ``clusim_channels_net``."""


@dataclass(frozen=True, slots=True)
class Channels:
    """The best channels of an attempt, and the steps that are left.

    Attributes
    ----------
    orders : tuple of tuple of int
        GPUs of each channel in order, as many as the node has; of heads only the first is valid.
    ends : tuple of (int, int)
        NICs by which a channel enters and leaves.
    """

    orders: tuple[tuple[int, ...], ...]
    ends: tuple[tuple[int, int], ...]
    latency_us: float
    hops: int


def attempt(
    node: Mapping[str, Any],
    conditions: Mapping[str, float],
    best: Mapping[str, float],
    steps: int,
) -> tuple[Channels | None, int]:
    """Build channels under conditions; return them if they are better than `best`, and the steps left.

    Parameters
    ----------
    node, conditions, best : mapping
        Members of the structs of ``clusim_channels.h``; arrays are copied to their types if necessary.
    steps : int
        Most steps; -1 is returned if the largest number of channels was found.

    Raises
    ------
    MemoryError
        Memory is short.
    """
    kept = {
        name: np.ascontiguousarray(node[name], kind)
        for name, kind in _ARRAYS.items()
    }
    typed = ffi.new("clusim_channels_node *")
    for name, array in kept.items():
        setattr(
            typed,
            name,
            ffi.cast(ffi.typeof(getattr(typed, name)), array.ctypes.data),
        )
    for name in ("num_gpus", "num_nets", "num_links", "has_switch"):
        setattr(typed, name, node[name])
    most, num_gpus = int(conditions["most"]), int(node["num_gpus"])
    orders, ends = (
        np.zeros((most, num_gpus), np.int32),
        np.zeros((most, 2), np.int32),
    )
    result = ffi.new("clusim_channels_best *", {**best, "steps": steps})
    result.orders = ffi.from_buffer("int32_t[]", orders)
    result.ends = ffi.from_buffer("int32_t[]", ends)
    wanted = ffi.new("clusim_channels_conditions *", dict(conditions))
    if lib.clusim_channels_attempt(typed, wanted, result) != lib.CLUSIM_OK:
        raise MemoryError("out of memory in the search for channels")
    if not result.improved:
        return None, result.steps
    count = result.num_channels
    found = Channels(
        tuple(tuple(row) for row in orders[:count].tolist()),
        tuple((first, last) for first, last in ends[:count].tolist()),
        result.latency_us,
        result.hops,
    )
    return found, result.steps
