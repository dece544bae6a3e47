"""Foundations: errors, units, files, limits, terms of the field, executors, display."""
