"""GOAL schedules."""

from __future__ import annotations

from clusim.formats.recordings.kind import RecordingKind

KIND = RecordingKind(
    "GOAL schedules of LogGOPSim and ATLAHS, text or binary",
    begins=(
        (0, rb"\A(?:\x7f\x10|\x26\x09)\0{6}"),
        (7, rb"\A(?>\s+|/\*.*?\*/|//[^\n]*\n|#[^\n]*\n)*+num_ranks\s+\d+"),
    ),
    read_by="clusim.formats.recordings.goal",
)
