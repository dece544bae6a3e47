"""Recordings of real jobs: readers of the formats people have, and schedules made of them."""

from clusim.recording.model import Event, Group, Recording

__all__ = ["Event", "Group", "Recording"]
