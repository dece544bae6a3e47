"""What a traced run was made of: the engine's input, the schedule's columns, the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from clusim.errors import TraceError
from clusim.trace.reader import open_trace

__all__ = ["Inputs", "read_inputs"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a traced run.

    Attributes
    ----------
    image : mapping
        Arrays of the engine's input by name, as in `clusim.image`; empty for traces of format 1.
    nvc, seed : int
        The image's two numbers.
    schedule : mapping
        Columns such as ``tasks/stream``; texts as lists of str. Empty for synthetic traffic.
    nodes, node_kinds : list of str
        Name and kind of every node.
    node_tiers : list of str
        Tier of every node, as in classes of wires (``gpu switch pcie root memory nic leaf spine``); its kind in traces
        without tiers.
    rank_endpoint : ndarray, shape (ranks,)
        Endpoint of every rank.
    """

    image: Mapping[str, Array]
    nvc: int
    seed: int
    schedule: Mapping[str, Array | list[str]]
    nodes: list[str]
    node_kinds: list[str]
    rank_endpoint: Array
    node_tiers: list[str] = field(default_factory=list)

    def texts(self, name: str) -> list[str]:
        """Return a text column of the schedule, empty if the trace has none of that name."""
        values = self.schedule.get(name, [])
        return values if isinstance(values, list) else [str(value) for value in values]

    def numbers(self, name: str) -> Array:
        """Return a number column of the schedule, empty if the trace has none of that name."""
        values = self.schedule.get(name)
        return np.empty(0, np.int64) if values is None else np.asarray(values)


def _text_list(values: Array) -> list[str]:
    return [v.decode() if isinstance(v, bytes) else str(v) for v in values.tolist()]


def _column(dataset: Any) -> Array | list[str]:
    values = dataset[...]
    return _text_list(values) if values.dtype.kind in "SO" else values


def read_inputs(path: str | Path) -> Inputs:
    """Return the inputs that a trace repeats; raises `TraceError` for one of format 1, which has none."""
    with open_trace(path) as file:
        if "/image" not in file:
            raise TraceError(
                f"{path}: written by an older clusim, without the inputs of the run; run it again"
            )
        image = {name: item[...] for name, item in file["/image"].items()}
        scalars = image.pop("scalars")
        schedule: dict[str, Array | list[str]] = {}

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                schedule[name] = _column(item)

        if "/schedule" in file:
            file["/schedule"].visititems(visit)
        tier = "node_tier" if "/fabric/node_tier" in file else "node_kind"
        return Inputs(
            image=image,
            nvc=int(scalars[0]),
            seed=int(scalars[1]),
            schedule=schedule,
            nodes=_text_list(file["/fabric/node"][...]),
            node_kinds=_text_list(file["/fabric/node_kind"][...]),
            rank_endpoint=file["/fabric/rank_endpoint"][...],
            node_tiers=_text_list(file[f"/fabric/{tier}"][...]),
        )
