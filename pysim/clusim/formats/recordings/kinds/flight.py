"""Dumps of PyTorch's flight recorder."""

from __future__ import annotations

import re

from clusim.formats.recordings.kind import RecordingKind

__all__ = ["KIND"]


def _is_dump(name: str, data: bytes) -> bool:
    """Return whether a file is a pickle with the keys of a dump."""
    pickled = data[:1] == b"\x80" and len(data) > 1 and 2 <= data[1] <= 5
    return pickled and re.search(rb"entries|pg_config|collective_seq_id", data) is not None


KIND = RecordingKind(
    "dumps of PyTorch's flight recorder, nccl_trace_rank_*, pickle or JSON",
    begins=(
        (
            2,
            rb'\A\s*\{(?=.*"(?:pg_config|pg_status|entries)"\s*:)(?=.*"(?:collective_seq_id|pg_config)"\s*:)',
        ),
    ),
    looks_so=_is_dump,
    read_by="clusim.formats.recordings.flight",
)
