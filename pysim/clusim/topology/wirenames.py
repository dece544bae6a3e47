"""Names and classes of wires, computed on request: a large topology has millions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class WireNames(Sequence[str]):
    """Wire names such as ``gpu0->nvswitch1.0``: ends, and number among parallel wires."""

    def __init__(self, nodes: Sequence[str], node_index: Mapping[str, int], wires: Array) -> None:
        """Name `wires` (rows of an image) by the names of nodes."""
        self._nodes, self._node_index, self._wires = nodes, node_index, wires

    def __len__(self) -> int:
        return len(self._wires)

    @overload
    def __getitem__(self, wire: int) -> str: ...
    @overload
    def __getitem__(self, wire: slice) -> list[str]: ...
    def __getitem__(self, wire: int | slice) -> str | list[str]:
        if isinstance(wire, slice):
            return list(self._names(self._wires[wire]))
        row = self._wires[wire]
        return f"{self._nodes[row['src']]}->{self._nodes[row['dst']]}.{row['ordinal']}"

    def __iter__(self) -> Iterator[str]:
        return self._names(self._wires)

    def _names(self, rows: Array) -> Iterator[str]:
        columns = (rows[name].tolist() for name in ("src", "dst", "ordinal"))
        nodes = self._nodes
        for src, dst, ordinal in zip(*columns, strict=True):
            yield f"{nodes[src]}->{nodes[dst]}.{ordinal}"

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def index(self, name: str, start: int = 0, stop: int | None = None) -> int:
        """Return the wire called `name`; raise `ValueError` if it does not exist."""
        wire = self._find(name)
        if wire is None or not start <= wire < (len(self) if stop is None else stop):
            raise ValueError(f"{name!r} is not a wire")
        return wire

    def _find(self, name: str) -> int | None:
        ends, _, ordinal = name.rpartition(".")
        if not (ordinal.isascii() and ordinal.isdecimal()):
            return None
        at = ends.find("->")
        while at >= 0:
            src, dst = self._node_index.get(ends[:at]), self._node_index.get(ends[at + 2 :])
            if src is not None and dst is not None:
                same = (self._wires["src"] == src) & (self._wires["dst"] == dst)
                parallel = np.flatnonzero(same)
                if int(ordinal) < len(parallel) and ordinal == str(int(ordinal)):
                    return int(parallel[int(ordinal)])
            at = ends.find("->", at + 1)
        return None


class WireClasses(Sequence[str]):
    """Class of every wire, the class of its link."""

    def __init__(self, names: Sequence[str], codes: Array) -> None:
        """Set the class of wire w to ``names[codes[w]]``."""
        self.names = tuple(names)
        self.codes = codes

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, wire: int) -> str: ...
    @overload
    def __getitem__(self, wire: slice) -> list[str]: ...
    def __getitem__(self, wire: int | slice) -> str | list[str]:
        if isinstance(wire, slice):
            return [self.names[code] for code in self.codes[wire].tolist()]
        return self.names[int(self.codes[wire])]

    def __iter__(self) -> Iterator[str]:
        return map(self.names.__getitem__, self.codes.tolist())
