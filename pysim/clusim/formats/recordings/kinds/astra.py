"""Text workloads of ASTRA-sim 1."""

from __future__ import annotations

from clusim.formats.recordings.kind import LAST, RecordingKind

_POLICY = rb"(?:MICRO|DATA|MODEL|HYBRID_\w+|CUSTOMIZED|DISTRIBUTED_\w+|TRANSFORMER_\w+)"

KIND = RecordingKind(
    "text workloads of ASTRA-sim 1",
    begins=(
        (LAST, rb"\A\s*" + _POLICY + rb"[^\n]*\n\s*\d+\s*\n"),
    ),  # SimAI's workloads begin in the same way
    read_by="clusim.formats.recordings.astra",
)
