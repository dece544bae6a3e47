"""Recordings of real jobs: one reader per format; `clusim.formats.recordings.kinds` says which one a file needs."""

from clusim.formats.recordings.model import Event, Group, Recording

__all__ = ["Event", "Group", "Recording"]
