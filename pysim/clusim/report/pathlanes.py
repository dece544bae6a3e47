"""The critical path as the page draws it: over the lanes of ranks, and over the channels that it passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from clusim.analysis.pathrows import GROUPS, PathRows, RowSpans
from clusim.report.lanes import Bars, Lanes, LaneTasks, Schedule, window
from clusim.report.message import pack

MOST_ROWS = 24
"""Channels that a page shows."""


@dataclass(frozen=True, slots=True)
class PathLanes:
    """A critical path, prepared for the page.

    Attributes
    ----------
    steps, slices, over : Lanes
        Its steps on the rows of channels, what the channels did, and its steps on the lanes of the timeline.
    """

    found: PathRows
    steps: Lanes
    slices: Lanes
    over: Lanes

    @classmethod
    def of(cls, found: PathRows, lanes: Lanes, schedule: Schedule) -> PathLanes:
        """Prepare a path; `lanes` are those of the timeline."""
        place = {key: i for i, key in enumerate(zip(lanes.ranks, lanes.streams, strict=True))}
        keys = zip(schedule["tasks/rank"], schedule["tasks/stream"], strict=True)
        # Behind the last task is the one that no rank has.
        lane_of = np.array([*(place.get((int(rank), own), -1) for rank, own in keys), -1], np.int64)
        lane = lane_of[found.tasks]
        known = np.flatnonzero(lane >= 0)
        path = found.path
        over = RowSpans(lane, path.kind, path.name, path.start_ps, path.end_ps)
        picked = RowSpans(*(getattr(over, name)[known] for name in RowSpans.__slots__))
        return cls(found, _lanes(path), _lanes(found.slices), _lanes(picked))

    def header(self) -> dict[str, Any]:
        """Return what does not depend on the window of time."""
        return {
            "rows": [
                f"rank {rank}, {what}" if rank >= 0 else what for rank, what in self.found.rows
            ],
            "ranks": [rank for rank, _ in self.found.rows],
            "whats": self.found.whats,
            "primitives": list(self.found.primitives),
            "groups": list(GROUPS),
        }

    def message(self, from_ps: int, until_ps: int, columns: int) -> bytes:
        """Return what is drawn of a window of time."""
        found: dict[str, Any] = {}
        for name in ("steps", "slices", "over"):
            bars = window(getattr(self, name), from_ps, until_ps, columns)
            found |= {f"{name}_{key}": values for key, values in _columns(bars).items()}
        return pack({}, found)


def _lanes(spans: RowSpans) -> Lanes:
    times = spans.start_ps, spans.start_ps, spans.end_ps
    return Lanes([], [], [], [LaneTasks(spans.row, spans.kind, spans.name, *times)])


def _columns(bars: Bars) -> dict[str, Any]:
    return {
        "start": bars.start_ps.astype(np.float64),
        "duration": (bars.end_ps - bars.start_ps).astype(np.float64),
        "row": bars.lane.astype(np.uint16),
        "kind": bars.kind.astype(np.uint8),
        "name": bars.name.astype(np.uint32),
        "count": bars.count.astype(np.uint32),
    }
