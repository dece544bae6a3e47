"""PyTorch profiler (Kineto) traces."""

from __future__ import annotations

from clusim.formats.recordings.kind import RecordingKind

KIND = RecordingKind(
    "PyTorch profiler (Kineto) traces, one .json[.gz] per rank",
    begins=(
        (2, rb'"(?:traceEvents|baseTimeNanoseconds|deviceProperties|distributedInfo)"\s*:'),
        (6, rb'\A\s*\[\s*\{.{0,2000}?"ph"\s*:'),
    ),
    read_by="clusim.formats.recordings.kineto",
)
