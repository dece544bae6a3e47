"""Readers of rare formats, found by clusim through the entry points of this distribution."""
