"""Logs of DeepSpeed's communication."""

from __future__ import annotations

from clusim.formats.recordings.kind import LAST, RecordingKind

KIND = RecordingKind(
    "logs of communication of DeepSpeed",
    begins=(
        (
            LAST,  # after NCCL logs, which may contain such lines
            rb"\A(?!.*NCCL INFO).*(?:\| comm op: \w+ \| time \(ms\): |Comm\. Op\s+Message Size\s+Count)",
        ),
    ),
    read_by="clusim.formats.recordings.deepspeed",
)
