"""Inputs and completed slices of a run in memory, with the content of a trace.

HDF5 is not used, because it is slow to load.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clusim.base.arrays import Array
from clusim.base.records import dataclass
from clusim.results.trace.layout import PRIMITIVES

if TYPE_CHECKING:
    from clusim.engine.abi import Engine
    from clusim.engine.image import Senders
    from clusim.results.bins import BinRecorder


BLOCK_ROWS = 1 << 18
"""Rows of a block."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a traced run.

    Attributes
    ----------
    image : mapping
        Arrays of the engine's input by name, as in `clusim.engine.image`; empty for traces of format 1.
    nvc, seed : int
        The image's two numbers.
    schedule : mapping
        Columns such as ``tasks/stream``; texts as lists of str. Empty for synthetic traffic.
    nodes, node_kinds : list of str
        Name and kind of every node.
    node_tiers : list of str
        Tier of every graph node, as in link classes (``gpu switch pcie root memory nic leaf spine``); its kind in
        traces without tiers.
    rank_endpoint : ndarray, shape (ranks,)
        Endpoint of every rank.
    senders : tuple
        Sender policies by row of the image's rate controls; empty for traces, which have none.
    """

    image: Mapping[str, Array]
    nvc: int
    seed: int
    schedule: Mapping[str, Array | list[str]]
    nodes: list[str]
    node_kinds: list[str]
    rank_endpoint: Array
    node_tiers: list[str] = field(default_factory=list)
    senders: Senders = ()

    def texts(self, name: str) -> list[str]:
        """Return a text column of the schedule, empty if the trace does not have it."""
        values = self.schedule.get(name, [])
        return (
            values
            if isinstance(values, list)
            else [text.decode() for text in values.tolist()]
        )

    def numbers(self, name: str) -> Array:
        """Return a number column of the schedule, empty if the trace does not have it."""
        values = self.schedule.get(name)
        return np.empty(0, np.int64) if values is None else np.asarray(values)


class Records(ABC):
    """Completion records in time order, in blocks of `block_rows`; `cut` if there were more."""

    cut = False

    def __init__(self, path: Path, block_rows: int) -> None:
        self.path, self.count, self._block_rows = path, 0, block_rows

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return -(-self.count // self._block_rows)

    @abstractmethod
    def block(self, index: int) -> dict[str, Array]:
        """Return block `index` as columns ``time gate instance seq wire cause``."""

    def blocks(self) -> Iterator[dict[str, Array]]:
        """Yield all blocks in the order of time."""
        for index in range(self.num_blocks):
            yield self.block(index)


class HeldRecords(Records):
    """The completion records of a run in memory; a `clusim.simulation.session.Sink`."""

    takes_proxies = True

    def __init__(self, block_rows: int = BLOCK_ROWS) -> None:
        super().__init__(Path("run"), block_rows)
        self._held: list[Array] = []
        self._columns: dict[str, Array] = {}

    def records(self, records: Array) -> None:
        """Keep completion records, in time order."""
        self._held.append(records)
        self.count += len(records)
        self._columns = {}

    def tick(self, now_ps: int, engine: Engine, recorder: BinRecorder) -> None:
        """Do nothing; records in memory need no flush."""

    def block(self, index: int) -> dict[str, Array]:
        """Return a block."""
        if not self._columns:
            rows = np.concatenate(self._held)
            self._held = [rows]
            self._columns = {
                column: np.ascontiguousarray(rows[name])
                for column, (name, _) in PRIMITIVES.items()
            }
        low = index * self._block_rows
        return {
            name: values[low : low + self._block_rows]
            for name, values in self._columns.items()
        }
