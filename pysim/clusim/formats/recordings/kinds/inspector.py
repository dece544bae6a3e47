"""NCCL's Inspector plugin."""

from __future__ import annotations

from clusim.formats.recordings.kind import RecordingKind

KIND = RecordingKind(
    "JSON of NCCL's Inspector plugin",
    begins=((3, rb'"(?:coll_perf|inspector_output_format_version)"\s*:'),),
    read_by="clusim.formats.recordings.inspector",
)
