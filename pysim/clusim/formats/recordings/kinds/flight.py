"""Dumps of PyTorch's flight recorder."""

from __future__ import annotations

import re

from clusim.formats.recordings.kind import RecordingKind


def _is_dump(name: str, data: bytes) -> bool:
    """Return True if a file is a pickle with the keys of a dump."""
    pickled = data[:1] == b"\x80" and len(data) > 1 and 2 <= data[1] <= 5
    return pickled and re.search(rb"entries|pg_config|collective_seq_id", data) is not None


KIND = RecordingKind(
    "dumps of PyTorch's flight recorder, nccl_trace_rank_*, pickle or JSON",
    begins=(
        # After the PyTorch profiler: its traces may contain groups.
        (
            3,
            rb'\A\s*\{(?=.*"(?:pg_config|entries)"\s*:)(?=.*"(?:pg_status|entries|collective_seq_id)"\s*:)',
        ),
    ),
    looks_so=_is_dump,
    read_by="clusim.formats.recordings.flight",
)
