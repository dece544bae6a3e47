"""Recordings of real jobs: one reader per format, detected by content."""

from clusim.formats.recordings.model import Event, Group, Recording

__all__ = ["Event", "Group", "Recording"]
