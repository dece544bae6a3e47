"""Measured serving runs, and their predictions."""
