"""Exports of Nsight Systems, SQLite."""

from __future__ import annotations

from clusim.formats.recordings.kind import RecordingKind

KIND = RecordingKind(
    "SQLite exports of Nsight Systems (nsys export --type sqlite)",
    begins=((0, rb"\ASQLite format 3\0"),),
    read_by="clusim.formats.recordings.nsys",
)
