"""Compiled programs of XLA."""

from __future__ import annotations

from clusim.formats.recordings.kind import RecordingKind

KIND = RecordingKind(
    "XLA HLO modules as text, one program for all devices",
    begins=((1, rb"\A\s*HloModule\s+[\w.$-]+"),),
    read_by="clusim.formats.recordings.hlo",
)
