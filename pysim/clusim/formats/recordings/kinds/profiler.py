"""Traces of NCCL's example profiler plugin."""

from __future__ import annotations

from clusim.formats.recordings.kind import RecordingKind

KIND = RecordingKind(
    "chrome trace of NCCL's example profiler plugin",
    begins=((5, rb'\A\s*\[?\s*\{.{0,2000}?"cat"\s*:\s*"(?:GROUP|COLL|P2P|PROXY|NET|KERNEL)\w*"'),),
    read_by="clusim.formats.recordings.profiler",
)
