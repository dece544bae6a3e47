"""JSON lines of NCCL's profiler plugins."""

from __future__ import annotations

from clusim.formats.recordings.kind import RecordingKind

KIND = RecordingKind(
    "JSON lines of profiler plugins of NCCL: CoMMA, minimal-profiler",
    begins=((3, rb'"comm_hash"\s*:\s*"0x'), (3, rb'"recordType"\s*:\s*"(?:event|state)"')),
    read_by="clusim.formats.recordings.pluginlines",
)
