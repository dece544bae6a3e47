"""Completion records read in blocks, so memory is bounded for traces of any size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from clusim.base.errors import TraceError
from clusim.results.trace.held import BLOCK_ROWS
from clusim.results.trace.layout import PRIMITIVES
from clusim.results.trace.reader import open_trace, progress
from clusim.results.trace.rules import attribute, read

Array = NDArray[Any]

KEPT_BLOCKS = 4
"""Blocks kept in memory: 30 MB in all."""


class RecordFile:
    """The completion records of a trace, in the order of their times; a context manager.

    Attributes
    ----------
    count : int
        Records in the file.
    cut : bool
        Whether the run had more records than the trace was allowed to hold.
    """

    def __init__(self, path: str | Path, block_rows: int = BLOCK_ROWS) -> None:
        self.path = Path(path)
        self.block_rows = block_rows
        self.count = 0
        self.cut = False
        self._stack = ExitStack()
        self._blocks: OrderedDict[int, dict[str, Array]] = OrderedDict()
        self._file: Any = None

    def __enter__(self) -> RecordFile:
        """Open the file; raises `TraceError` if it holds no records, or not why they were late."""
        with ExitStack() as stack:
            self._file = stack.enter_context(open_trace(self.path))
            if "/primitives" not in self._file:
                raise TraceError(
                    f"{self.path}: holds no completed slices; run again with --trace-primitives"
                )
            group = self._file["/primitives"]
            if "gate" not in group:
                raise TraceError(
                    f"{self.path}: written by an older clusim, without what slices waited for; run it again"
                )
            _, _, self.count = progress(self._file)
            self.cut = bool(attribute(self._file, "/primitives", "cut", 0))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._blocks.clear()
        self._stack.close()

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return -(-self.count // self.block_rows)

    def block(self, index: int) -> dict[str, Array]:
        """Return block `index` as columns ``time gate instance seq wire cause``."""
        if index in self._blocks:
            self._blocks.move_to_end(index)
            return self._blocks[index]
        low = index * self.block_rows
        high = min(self.count, low + self.block_rows)
        try:
            rows = {name: read(self._file, f"/primitives/{name}", low, high) for name in PRIMITIVES}
        except (OSError, ValueError, KeyError) as broken:
            reason = str(broken).splitlines()[0]
            raise TraceError(f"{self.path}: not a readable trace: {reason}") from None
        if (rows["gate"] > rows["time"]).any():
            raise TraceError(f"{self.path}: /primitives: a slice complete before its gate opened")
        self._blocks[index] = rows
        if len(self._blocks) > KEPT_BLOCKS:
            self._blocks.popitem(last=False)
        return rows

    def blocks(self) -> Iterator[dict[str, Array]]:
        """Yield all blocks in the order of time."""
        for index in range(self.num_blocks):
            yield self.block(index)
